"""A bundle, a folder of ONNX files and a manifest with their checksums, and its predictions, without torch.

bundle.json      probabilities, classes, input shape, threat, checksums, and the comparison made at export
network-00.onnx  logits [n, C] of inputs [n, ...]; normalization inside, any batch size

The manifest's own checksum covers everything (the files through their checksums). So one number, printed at
export, identifies a bundle. Predicting needs NumPy and ONNX Runtime only, and one member's compute for every input.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, Strict, model_validator

from randens.core.errors import FileError, InputError, ModelError, PathLike, typed, whole
from randens.core.files import onnx_session, read_file, read_json, sha256, write_json
from randens.core.runs import Digest, Document, ThreatDocument

__all__ = ["MANIFEST", "Bundle", "Member", "NetworkFile", "Prediction", "Predictor"]

MANIFEST = "bundle.json"
_MOST = 100_000  # members, files or classes
_Item = TypeVar("_Item")
# JSON has lists only.
_Items = Annotated[tuple[_Item, ...], Strict(False), Field(min_length=1, max_length=_MOST)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, lt=1 << 40)]


class NetworkFile(Document):
    """One ONNX file."""

    name: Annotated[str, Field(pattern=r"^network-[0-9]{2,6}\.onnx$")]
    sha256: Digest
    size: _Count


class Member(Document):
    """What can be sampled: the mean of the logits of some files, by their numbers, with these weights."""

    files: _Items[_Count]
    weights: _Items[_Share]


class Bundle(Document):
    """A bundle in the folder `path`, with a checked manifest; `read` verifies the files.

    probs: α [M]. classes: the labels' names. input_shape: of one input. threat: norm, eps and bounds. files: the
    networks. members: what is sampled, one file or an average of several. ensemble: the fingerprint of the exported
    ensemble. parity: the comparison with torch. versions: of the packages that made the bundle.
    """

    path: Annotated[Path, Field(exclude=True, strict=False)]
    format: Literal["randens-bundle-2"] = "randens-bundle-2"
    probs: _Items[_Share]
    classes: Annotated[_Items[str], Field(min_length=2)]
    input_shape: Annotated[_Items[Annotated[int, Field(ge=1, lt=1 << 31)]], Field(max_length=8)]
    threat: ThreatDocument | None
    files: _Items[NetworkFile]
    members: _Items[Member]
    ensemble: str
    parity: dict[str, Any]
    versions: dict[str, str]

    @model_validator(mode="after")
    def _consistent(self) -> Bundle:
        if len(self.probs) != len(self.members) or abs(sum(self.probs) - 1) > 1e-6:
            raise ValueError(f"probs must be {len(self.members)} numbers with sum 1, one for every member")
        for member in self.members:
            if len(member.files) != len(member.weights) or max(member.files) >= len(self.files):
                raise ValueError(f"a member names the files {member.files}; there are {len(self.files)}")
        return self

    @staticmethod
    @typed(path=PathLike)
    def open(path: str | os.PathLike[str]) -> Bundle:
        """Read and check the manifest of a folder."""
        folder = Path(path)
        if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises for names that are too long
            raise FileError(f"{folder} is not a folder; give a bundle made by `randens export`")
        source = folder / MANIFEST
        if not source.exists():
            inside = folder / "bundle"
            hint = f"did you mean {inside}?" if inside.is_dir() else "`randens export RUN` makes one"
            raise FileError(f"{folder} is not a bundle: it has no {MANIFEST}; {hint}")
        manifest = read_json(source)
        if not isinstance(manifest, dict) or manifest.get("checksum") != manifest_checksum(manifest):
            raise FileError(f"{source} does not match its checksum; it was altered or damaged")
        return Bundle.parse({**manifest, "path": folder}, source)

    def write(self) -> None:
        """Write the manifest into the folder; the files must be there already."""
        manifest = self.to_json()
        write_json(self.path / MANIFEST, {**manifest, "checksum": manifest_checksum(manifest)})

    @property
    def checksum(self) -> str:
        """The number that identifies this bundle."""
        return manifest_checksum(self.to_json())

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Smallest and largest valid input value; None without limits."""
        limits = None if self.threat is None else self.threat.bounds
        return None if limits is None else (limits[0], limits[1])

    def read(self, index: int) -> bytes:
        """The content of an ONNX file, compared with its checksum."""
        entry = self.files[index]
        file = self.path / entry.name
        content = read_file(file, entry.size)
        if sha256(content) != entry.sha256:
            raise FileError(f"{file} does not match its checksum; it was altered or damaged")
        return content


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its own entry "checksum"."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode())


@dataclass(frozen=True, eq=False)
class Prediction:
    """Answers to n inputs: labels [n] and logits [n, C] of the members [n] sampled; logits, too, tell the member."""

    labels: NDArray[np.int64]
    logits: NDArray[np.float32]
    members: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


class Predictor:
    """Draws one member per input with the operating system's secure generator, and runs only that member.

    Every input is run on its own, so that the time of a call hardly tells which inputs shared a member. It may be
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
        whole("n", n, 0, 1 << 28)
        return self.members_at(np.frombuffer(os.urandom(8 * n), dtype=np.uint64))

    def predict(self, x: ArrayLike, member: int | None = None) -> Prediction:
        """Answers for inputs [n, *input_shape], each by a member sampled for it alone, or all by `member`."""
        inputs = self.check(x)
        if member is not None:
            whole("member", member, 0, len(self) - 1)
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
            raise InputError(f"x has dtype {given.dtype}; inputs must be floating point, e.g. x / 255")
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
    file = bundle.path / bundle.files[index].name
    # From the verified bytes: a file that is exchanged meanwhile, or weights in another file, are never read.
    session = onnx_session(bundle.read(index), file, threads)
    found = [
        [(node.name, list(node.shape[1:])) for node in nodes]
        for nodes in (session.get_inputs(), session.get_outputs())
    ]
    expected = [[("inputs", list(bundle.input_shape))], [("logits", [len(bundle.classes)])]]
    if found != expected:
        raise FileError(f"{file} maps {found[0]} to {found[1]}; the manifest: {expected[0]}, {expected[1]}")
    return session
