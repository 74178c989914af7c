"""A bundle: a folder of one ONNX file per member and a manifest that signs them off. Read without torch.

bundle.json      probabilities, classes, input shape, threat, opset, checksums, and what was measured at export
member-00.onnx   logits [n, C] of inputs [n, ...]; normalisation inside, any batch size

The manifest's own checksum covers everything (the members through their checksums). So one number, printed at
export, identifies a bundle.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, Strict

from randens.core.documents import Digest, Document, Probabilities, ThreatDocument, fitted
from randens.core.errors import FileError
from randens.core.files import document_checksum, picked, read_json, write_json
from randens.deploy.onnx_file import Content, initializers

__all__ = ["MANIFEST", "Average", "Bundle", "MemberFile", "Sample", "Weight"]

MANIFEST = "bundle.json"
_FORMAT = "randens-bundle-1"
_Count = Annotated[int, Field(ge=0, lt=1 << 48)]


_Counts = Annotated[tuple[_Count, ...], Strict(False)]  # JSON has lists only


class Weight(Document):
    """Where a large weight lies in its ONNX file: `shape` numbers of type `dtype` from byte `offset` on."""

    name: str
    offset: _Count
    dtype: Annotated[str, Field(pattern=r"^(bool|float(16|32|64)|u?int(8|16|32|64))$")]
    shape: Annotated[_Counts, Field(max_length=16)]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class MemberFile(Document):
    """One member on disk. `weights` lists the weights that can be mapped into memory instead of read."""

    file: Annotated[str, Field(pattern=r"^member-[0-9]{2,4}\.onnx$")]
    sha256: Digest
    size: _Count
    weights: Annotated[tuple[Weight, ...], Strict(False)]


class Average(Document):
    """A member that averages: the weighted mean of the logits of some files, by their numbers."""

    of: Annotated[_Counts, Field(min_length=1, max_length=10_000)]
    weights: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1)], ...],
        Strict(False),
        Field(min_length=1, max_length=10_000),
    ]


class Sample(Document):
    """A picture to try the bundle on, with its label: a PNG file in base64."""

    label: _Count
    png: Annotated[str, Field(pattern=r"^iVBORw0KGgo[A-Za-z0-9+/]*={0,2}$", max_length=1 << 20)]


class _BundleDocument(Document):
    """bundle.json."""

    probs: Probabilities
    classes: list[str]
    input_shape: Annotated[list[Annotated[int, Field(ge=1, lt=1 << 31)]], Field(max_length=8)]
    threat: ThreatDocument | None
    precision: Literal["float32", "int8"]
    opset: int
    members: list[MemberFile]
    ensemble: str
    sign_off: dict[str, Any]
    versions: dict[str, str]
    averages: Annotated[list[Average], Field(max_length=100_000)] = Field(default_factory=list)
    samples: Annotated[list[Sample], Field(max_length=64)] = Field(default_factory=list)


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk, in the folder `path`, with a checked manifest; `read` verifies the members.

    probs: α [M]. classes: the labels' names. input_shape: of one input. threat: norm, eps and bounds as
    `Threat.to_dict` gives them. precision: "float32" or "int8". opset: of the ONNX files. members: the files with
    their checksums. ensemble: the fingerprint of the ensemble that was exported. sign_off: what was compared and
    measured when the bundle was made. versions: of the packages that made it. averages: for k of M, the averages
    that are drawn; the files are then the averaged networks. Empty: the files themselves are drawn. samples:
    pictures for the server's page.
    """

    path: Path
    probs: tuple[float, ...]
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    threat: Mapping[str, Any] | None
    precision: str
    opset: int
    members: tuple[MemberFile, ...]
    ensemble: str
    sign_off: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    averages: tuple[Average, ...] = ()
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        for average in self.averages:
            if len(average.of) != len(average.weights) or max(average.of) >= len(self.members):
                raise FileError(
                    f"{self.path}: averages holds {average.of} with weights {average.weights}; both must be as long, "
                    f"and the first must be numbers of the {len(self.members)} files"
                )
        drawn, sums_to_one = self.averages or self.members, abs(sum(self.probs) - 1) <= 1e-6
        if not self.members or len(self.probs) != len(drawn) or min(self.probs) < 0 or not sums_to_one:
            raise FileError(
                f"{self.path}: probs is {list(self.probs)} for {len(drawn)} members; "
                "there must be one number ≥ 0 for each, with sum 1"
            )
        if len(self.classes) < 2 or not self.input_shape or min(self.input_shape) < 1:
            raise FileError(
                f"{self.path}: {len(self.classes)} classes and the input shape {self.input_shape} make no classifier"
            )
        if any(sample.label >= len(self.classes) for sample in self.samples):
            raise FileError(f"{self.path}: samples have labels beyond the {len(self.classes)} classes")
        for member in self.members:
            for weight in member.weights:
                if weight.offset + weight.size > member.size:
                    raise FileError(
                        f"{self.path / MANIFEST}: the weight {weight.name[:80]!r} lies outside its file {member.file}"
                    )

    @staticmethod
    def open(path: str | os.PathLike[str], expect: str | None = None) -> Bundle:
        """Read and check a manifest. With `expect`, a bundle with any other checksum is refused."""
        folder = Path(path)
        if not folder.is_dir():
            raise FileError(f"{folder} is not a folder; give a bundle made by `randens export`")
        manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise FileError(f"{folder / MANIFEST} is not a bundle of format {_FORMAT}")
        stated = manifest.get("checksum")
        if not isinstance(stated, str) or stated != document_checksum(manifest):
            raise FileError(f"{folder / MANIFEST} does not match its checksum; it was altered or damaged")
        if expect is not None and not hmac.compare_digest(stated.encode(), expect.strip().lower().encode()):
            raise FileError(f"{folder} has the checksum {stated}; expected is {expect.strip()}")
        read = dict(fitted(_BundleDocument, manifest, folder / MANIFEST))
        threat = read.pop("threat")
        entries: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in read.items()
        }
        return Bundle(path=folder, threat=threat and threat.plain(), **entries)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Smallest and largest valid input value; None without limits."""
        limits = None if self.threat is None else self.threat.get("bounds")
        return None if limits is None else (float(limits[0]), float(limits[1]))

    @property
    def checksum(self) -> str:
        """The number that pins this bundle."""
        return document_checksum(self.to_json())

    def read(self, index: int) -> bytes:
        """The content of a member's ONNX file, verified."""
        file = self.path / self.members[index].file
        try:
            content = file.read_bytes()
        except OSError as error:
            raise FileError(f"cannot read {file}: {error.strerror or error}") from error
        self.verify(index, content)
        return content

    def verify(self, index: int, content: Content) -> None:
        """Compare a member file's content with the manifest: its checksum, and where its weights lie.

        A file that keeps weights in other files is refused: the checksum would not cover them.
        """
        member = self.members[index]
        file = self.path / member.file
        if len(content) != member.size or hashlib.sha256(content).hexdigest() != member.sha256:
            raise FileError(f"{file} does not match its checksum; it is truncated or was altered")
        try:
            tensors = initializers(content)
        except FileError as error:
            raise FileError(f"{file} is not an ONNX file that can be used: {error}") from None
        for weight in member.weights:
            found = tensors.get(weight.name)
            stated = (weight.dtype, weight.shape, weight.offset, weight.size)
            if found is None or (found.dtype, found.shape, found.offset, found.size) != stated:
                raise FileError(
                    f"{file} does not hold the weight {weight.name[:80]!r} where the manifest says it does"
                )

    def write(self) -> None:
        """Write the manifest into the folder; the members must be there already."""
        manifest = self.to_json()
        write_json(self.path / MANIFEST, {**manifest, "checksum": document_checksum(manifest)})

    def to_json(self) -> dict[str, Any]:
        """The manifest without its checksum."""
        names = "probs classes input_shape threat precision opset members ensemble sign_off versions"
        optional = " ".join(name for name in ("averages", "samples") if getattr(self, name))
        return {"format": _FORMAT, **picked(self, f"{names} {optional}")}
