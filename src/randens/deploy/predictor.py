"""Predicting with a bundle: NumPy and ONNX Runtime only, one member's compute for every input."""

from __future__ import annotations

import bisect
import importlib
import math
import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import FileError, InputError, ModelError, whole
from randens.deploy.bundle import Average, Bundle

__all__ = ["Prediction", "Predictor"]

_CHUNK = 512  # inputs per pass: bounds the memory

_random_bytes = os.urandom  # the operating system's secure generator
_largest = np.maximum.reduce


@dataclass(frozen=True, eq=False)
class Prediction:
    """Answers to n inputs: `labels` int64 [n] and `logits` float32 [n, C] of the member drawn for each input.

    `members` int64 [n] are the drawn members. Logits reveal them too: where the draw must stay secret, pass
    on labels only.
    """

    labels: NDArray[np.int64]
    logits: NDArray[np.float32]
    members: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> Prediction:
        """The answers to inputs start..stop-1."""
        return Prediction(self.labels[start:stop], self.logits[start:stop], self.members[start:stop])


class Predictor:
    """Draws one member per input with the operating system's secure generator, and runs only that member.

    It may be called from several threads.

    Parameters
    ----------
    bundle : path or Bundle
        A bundle written by `export`.
    lean : bool
        Map all members from their files and keep only those just drawn in memory: for large members, at some
        cost in speed.
    threads : int
        ONNX Runtime's threads per call.
    expect : str, optional
        Refuse a bundle with another checksum.

    Examples
    --------
    >>> import torch, randens
    >>> net, x, y = torch.nn.Linear(4, 3).eval(), torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> bundle = randens.deploy.export(randens.RandomizedEnsemble([net]), (x, y), "bundle")
    >>> bool((Predictor(bundle).predict(x.numpy()).labels == net(x).argmax(dim=1).numpy()).all())
    True
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str] | Bundle,
        *,
        lean: bool = False,
        threads: int = 1,
        expect: str | None = None,
    ) -> None:
        whole("threads", threads)
        self.bundle = Bundle.open(bundle.path if isinstance(bundle, Bundle) else bundle, expect)
        make = _Mapped if lean else _Loaded
        self._members: list[_Session] = [
            make(self.bundle, i, threads) for i in range(len(self.bundle.members))
        ]
        self._averages = self.bundle.averages or tuple(
            Average(of=(i,), weights=(1.0,)) for i in range(len(self))
        )
        self._lean, self._averaged = lean, bool(self.bundle.averages)
        # A part of it takes less time than a new array of one number.
        self._numbers = np.arange(max(len(self), len(self.bundle.classes)), dtype=np.int64)
        self._numbers.flags.writeable = False
        probs = np.asarray(self.bundle.probs)
        self._cumulative = np.cumsum(probs)
        self._steps: list[float] = self._cumulative.tolist()
        self._last = int(np.flatnonzero(probs)[-1])
        self._shape = self.bundle.input_shape
        self._bounds = self.bundle.bounds
        self._highest = _highest_bits(self._bounds)

    def __len__(self) -> int:
        return len(self.bundle.probs)

    def draw(self, n: int) -> NDArray[np.int64]:
        """Member indices [n]: independent draws from α. A member with probability 0 is never drawn."""
        if n == 1:
            return np.array([self._draw_one()], dtype=np.int64)
        bits = np.frombuffer(_random_bytes(8 * n), dtype=np.uint64)
        uniform = (bits >> np.uint64(11)) * 2.0**-53
        drawn = np.searchsorted(self._cumulative, uniform, side="right")
        # The cumulative sum may end just below 1.
        return np.minimum(drawn, self._last).astype(np.int64)

    def _draw_one(self) -> int:
        """Make one draw by the same rule without arrays, which would take longer than everything else for one
        input.
        """
        point = (int.from_bytes(_random_bytes(8), sys.byteorder) >> 11) * 2.0**-53
        return min(bisect.bisect_right(self._steps, point), self._last)

    def predict(self, x: ArrayLike) -> Prediction:
        """Answers for inputs [n, *input_shape], each by a member drawn for it alone."""
        inputs = self.check(x)
        if len(inputs) == 1:
            index = self._draw_one()
            logits = self._answer(index, inputs)
            if self._lean:
                self._release({index})
            label, numbers = _label_of_one(logits), self._numbers
            return Prediction(numbers[label : label + 1], logits, numbers[index : index + 1])
        members = self.draw(len(inputs))
        drawn = set(members.tolist())
        if len(drawn) == 1:
            logits = self._answer(int(members[0]), inputs)
        else:
            logits = np.empty((len(inputs), len(self.bundle.classes)), dtype=np.float32)
            for index in drawn:
                rows = np.flatnonzero(members == index)
                logits[rows] = self._answer(index, inputs[rows])
        if self._lean:
            self._release(drawn)
        _check_finite(logits)
        return Prediction(logits.argmax(axis=1), logits, members)

    def _release(self, drawn: set[int]) -> None:
        """Release the memory of the networks that the `drawn` members do not use."""
        used = {network for index in drawn for network in self._averages[index].of}
        for index, member in enumerate(self._members):
            if index not in used:
                member.rest()

    def logits(self, x: ArrayLike) -> NDArray[np.float32]:
        """Every member's logits [M, n, C]: M times the compute, for comparisons."""
        inputs = self.check(x)
        known = [member.run(inputs) for member in self._members]
        return np.stack(
            [_mean([known[i] for i in average.of], average.weights) for average in self._averages]
        )

    def _answer(self, index: int, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._averaged:
            return self._members[index].run(inputs)
        average = self._averages[index]
        return _mean([self._members[i].run(inputs) for i in average.of], average.weights)

    def check(self, x: ArrayLike) -> NDArray[np.float32]:
        """`x` as float32 [n, *input_shape]; another shape, NaN or values outside the box are refused."""
        try:
            given = np.asarray(x)
        except (TypeError, ValueError):
            raise InputError(f"x is not an array; give numbers of shape {self._wanted}") from None
        if given.dtype.kind != "f":
            raise InputError(
                f"x has dtype {given.dtype}; inputs must be floating point, e.g. x / 255 for images in 0..255"
            )
        if given.shape[1:] != self._shape or given.ndim == 0:
            raise InputError(f"x has shape {list(given.shape)}; it must be {self._wanted}")
        # Of float32, also in the other byte order, `char` is "f"; comparing the types would take longer.
        if given.dtype.char == "f" and given.dtype.isnative and given.flags.c_contiguous:
            inputs = given
        else:
            with np.errstate(over="ignore"):
                inputs = np.ascontiguousarray(given, dtype=np.float32)
        if not inputs.size:
            return inputs
        # None: all dimensions. Reshaping first would take as long as the comparison.
        if self._highest is not None and _largest(inputs.view(np.uint32), None) <= self._highest:
            return inputs
        low, high = (
            float(np.minimum.reduce(inputs, None)),
            float(_largest(inputs, None)),
        )  # NaN if there is one
        if not (math.isfinite(low) and math.isfinite(high)):
            raise InputError("x holds NaN or infinite values; inputs must be finite")
        if self._bounds is not None and (low < self._bounds[0] or high > self._bounds[1]):
            raise InputError(
                f"x ranges over [{low:g}, {high:g}]; valid inputs lie in [{self._bounds[0]:g}, {self._bounds[1]:g}]"
            )
        return inputs

    @property
    def _wanted(self) -> str:
        return f"[n, {', '.join(map(str, self._shape))}]"


class _Session(Protocol):
    """A loaded member; `rest` is called when it was not drawn."""

    def __init__(self, bundle: Bundle, index: int, threads: int) -> None: ...

    def run(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]: ...

    def rest(self) -> None: ...


class _Loaded:
    """A member whose weights stay in memory, in the layout that is fastest on this machine."""

    def __init__(self, bundle: Bundle, index: int, threads: int) -> None:
        bundle.read(index)  # verifies it
        self._session = _session(bundle, index, _options(threads))
        self._names = _names(self._session)

    def run(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(inputs) > _CHUNK:
            return _in_chunks(self._session, *self._names, inputs)
        name, wanted = self._names
        answer: NDArray[np.float32] = self._session.run(wanted, {name: inputs})[0]
        return answer

    def rest(self) -> None:
        """Do nothing."""


class _Mapped:
    """A member whose large weights are pages of its file: read when it is drawn, dropped when it is not.

    ONNX Runtime copies weights when it reorders them, so such optimisations are switched off here.
    """

    def __init__(self, bundle: Bundle, index: int, threads: int) -> None:
        member = bundle.members[index]
        self._pages = _map(bundle, index)
        runtime = _runtime()
        options = _options(threads)
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_prepacking", "1")
        # ONNX Runtime does not own these arrays, so they must live as long as the session.
        self._weights = []
        for weight in member.weights:
            count = int(np.prod(weight.shape))
            view = np.frombuffer(self._pages, weight.dtype, count, weight.offset).reshape(weight.shape)
            value = runtime.OrtValue.ortvalue_from_numpy(view)
            options.add_initializer(weight.name, value)
            self._weights.append((view, value))
        self._session = _session(bundle, index, options)
        self._names = _names(self._session)
        self._resident = True
        self.rest()

    def run(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        self._resident = True
        return _in_chunks(self._session, *self._names, inputs)

    def rest(self) -> None:
        """Release the pages. If another thread uses them, they are read again."""
        if self._resident and hasattr(mmap, "MADV_DONTNEED"):
            self._resident = False
            self._pages.madvise(mmap.MADV_DONTNEED)


def _highest_bits(bounds: tuple[float, float] | None) -> int | None:
    """The largest float32 within bounds [0, high] as a whole number; None for other bounds.

    Non-negative numbers are ordered as their bits are, and those of negative numbers, infinity and NaN are larger. So
    one comparison checks for all of them.
    """
    if bounds is None or bounds[0] != 0 or not 0 < bounds[1] < np.finfo(np.float32).max:
        return None
    high = np.float32(bounds[1])
    if float(high) > bounds[1]:
        high = np.nextafter(high, np.float32(0))
    return int(high.view(np.uint32))


def _label_of_one(logits: NDArray[np.float32]) -> int:
    """The label of logits [1, C]; with numbers of Python, because arrays take longer for a few of them."""
    values = logits[0].tolist()
    if not math.isfinite(sum(values)):  # float64 sums of float32 numbers do not overflow
        _check_finite(logits)
    label: int = values.index(max(values))
    return label


def _check_finite(logits: NDArray[np.float32]) -> None:
    # If the sum is finite, all terms are finite; an infinite sum may be an overflow.
    if not math.isfinite(np.add.reduce(logits, axis=None)) and not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise ModelError(f"input {row} makes the classifier return NaN or infinite logits")


def _mean(outputs: Sequence[NDArray[np.float32]], weights: Sequence[float]) -> NDArray[np.float32]:
    """Return the weighted mean of logits [n, C]; a single one unchanged."""
    if len(outputs) == 1 and weights[0] == 1.0:
        return outputs[0]
    total = np.float32(weights[0]) * outputs[0]
    for weight, output in zip(weights[1:], outputs[1:], strict=True):
        total = total + np.float32(weight) * output
    return np.asarray(total, dtype=np.float32)


def _map(bundle: Bundle, index: int) -> mmap.mmap:
    file = bundle.path / bundle.members[index].file
    try:
        with file.open("rb") as opened:
            pages = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot map {file}: {error}") from error
    bundle.verify(index, pages)
    return pages


def _names(session: Any) -> tuple[str, list[str]]:
    """The names of the input and of the output."""
    return session.get_inputs()[0].name, [session.get_outputs()[0].name]


def _in_chunks(
    session: Any, name: str, wanted: list[str], inputs: NDArray[np.float32]
) -> NDArray[np.float32]:
    parts = [inputs[start : start + _CHUNK] for start in range(0, max(1, len(inputs)), _CHUNK)]
    return np.concatenate([session.run(wanted, {name: part})[0] for part in parts])


def _session(bundle: Bundle, index: int, options: Any) -> Any:
    file = bundle.path / bundle.members[index].file
    try:
        # By its path, because ONNX Runtime would keep a copy of a file given as bytes.
        session = _runtime().InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime's exceptions have no public base class.
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"{file} is not an ONNX file that ONNX Runtime can read ({reason})") from error
    found = [list(node.shape[1:]) for node in (session.get_inputs()[0], session.get_outputs()[0])]
    if found != [list(bundle.input_shape), [len(bundle.classes)]]:
        raise FileError(
            f"{file} maps inputs of shape {found[0]} to {found[1]} logits; "
            f"the manifest says {list(bundle.input_shape)} and {len(bundle.classes)} classes"
        )
    return session


def _options(threads: int) -> Any:
    options = _runtime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _runtime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise ModelError("a bundle needs ONNX Runtime; install it with `pip install onnxruntime`") from None
