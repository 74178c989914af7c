"""Predict with a bundle: NumPy and ONNX Runtime only, one member's compute for every input."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import FileError, InputError, ModelError, whole
from randens.deploy.bundle import Bundle

__all__ = ["Prediction", "Predictor"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Answers to n inputs: `labels` int64 [n] and `logits` float32 [n, C] of the member sampled for each input.

    `members` int64 [n] are the sampled members. Logits reveal them too: where the draw must stay secret, pass
    on labels only.
    """

    labels: NDArray[np.int64]
    logits: NDArray[np.float32]
    members: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


class Predictor:
    """Draws one member per input with the operating system's secure generator, and runs only that member.

    Every input is run on its own, so that the time of a call does not tell which inputs shared a member. It may be
    called from several threads.

    Parameters
    ----------
    bundle : path or Bundle
        A bundle written by `export`.
    threads : int
        ONNX Runtime's threads per call.

    Examples
    --------
    >>> import torch, randens
    >>> net, x, y = torch.nn.Linear(4, 3).eval(), torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> bundle = randens.deploy.export(net, (x, y), "bundle")
    >>> bool((Predictor(bundle).predict(x.numpy()).labels == net(x).argmax(dim=1).numpy()).all())
    True
    """

    def __init__(self, bundle: str | os.PathLike[str] | Bundle, *, threads: int = 1) -> None:
        whole("threads", threads, 1, 1024)
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self._networks = [_session(self.bundle, i, threads) for i in range(len(self.bundle.files))]
        self._cumulative = np.cumsum(self.bundle.probs)
        self._last = int(np.flatnonzero(self.bundle.probs)[-1])

    def __len__(self) -> int:
        return len(self.bundle.members)

    def members_at(self, points: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The members at uniform 64-bit numbers, by the cumulative probabilities; never one with probability 0."""
        uniform = (points >> np.uint64(11)) * 2.0**-53
        # The cumulative sum may end just below 1.
        return np.minimum(np.searchsorted(self._cumulative, uniform, side="right"), self._last)

    def draw(self, n: int) -> NDArray[np.int64]:
        """Member indices [n]: independent draws from α by the operating system's secure generator."""
        return self.members_at(np.frombuffer(os.urandom(8 * n), dtype=np.uint64))

    def predict(self, x: ArrayLike, member: int | None = None) -> Prediction:
        """Answers for inputs [n, *input_shape], each by a member sampled for it alone, or all by `member`."""
        inputs = self.check(x)
        members = self.draw(len(inputs)) if member is None else np.full(len(inputs), member, dtype=np.int64)
        logits = np.empty((len(inputs), len(self.bundle.classes)), dtype=np.float32)
        for row, drawn in enumerate(members.tolist()):
            logits[row] = self._run(drawn, inputs[row : row + 1])[0]
        if not np.isfinite(logits).all():
            row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
            raise ModelError(f"input {row} makes the classifier return NaN or infinite logits")
        return Prediction(logits.argmax(axis=1), logits, members)

    def logits(self, x: ArrayLike) -> NDArray[np.float32]:
        """Every member's logits [M, n, C]: M times the compute, for comparisons."""
        inputs = self.check(x)
        return np.stack([self._run(member, inputs) for member in range(len(self))])

    def _run(self, member: int, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        drawn = self.bundle.members[member]
        total: Any = np.float32(0)
        for file, weight in zip(drawn.files, drawn.weights, strict=True):
            total = total + np.float32(weight) * self._networks[file].run(["logits"], {"inputs": inputs})[0]
        return np.asarray(total, dtype=np.float32)

    def check(self, x: ArrayLike) -> NDArray[np.float32]:
        """`x` as float32 [n, *input_shape]; another shape, NaN or values outside the bounds are refused."""
        shape, bounds = self.bundle.input_shape, self.bundle.bounds
        expected = f"[n, {', '.join(map(str, shape))}]"
        try:
            given = np.asarray(x)
        except (TypeError, ValueError):
            raise InputError(f"x is not an array; give numbers of shape {expected}") from None
        if given.dtype.kind != "f":
            raise InputError(
                f"x has dtype {given.dtype}; inputs must be floating point, e.g. x / 255 for images in 0..255"
            )
        if given.ndim == 0 or given.shape[1:] != shape:
            raise InputError(f"x has shape {list(given.shape)}; it must be {expected}")
        with np.errstate(over="ignore"):
            inputs = np.ascontiguousarray(given, dtype=np.float32)
        if not np.isfinite(inputs).all():
            raise InputError("x holds NaN or infinite values; inputs must be finite")
        if bounds is not None and inputs.size and (inputs.min() < bounds[0] or inputs.max() > bounds[1]):
            raise InputError(
                f"x ranges over [{inputs.min():g}, {inputs.max():g}]; valid inputs lie in "
                f"[{bounds[0]:g}, {bounds[1]:g}]"
            )
        return inputs


def _session(bundle: Bundle, index: int, threads: int) -> Any:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        raise ModelError("a bundle needs ONNX Runtime; run `pip install '.[runtime]'` in a clone") from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    file, content = bundle.path / bundle.files[index].name, bundle.read(index)
    try:
        # From the verified bytes: a file that is exchanged meanwhile, or weights in another file, are never read.
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime's exceptions have no public base class.
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"{file} is not an ONNX file that ONNX Runtime can read ({reason})") from error
    found = [
        [(node.name, list(node.shape[1:])) for node in nodes]
        for nodes in (session.get_inputs(), session.get_outputs())
    ]
    expected = [[("inputs", list(bundle.input_shape))], [("logits", [len(bundle.classes)])]]
    if found != expected:
        raise FileError(
            f"{file} maps {found[0]} to {found[1]}; the manifest says {expected[0]}, {expected[1]}"
        )
    return session
