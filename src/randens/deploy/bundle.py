"""A bundle: a folder of ONNX files and a manifest with their checksums. Read without torch.

bundle.json      probabilities, classes, input shape, threat, checksums, and the comparison made at export
network-00.onnx  logits [n, C] of inputs [n, ...]; normalization inside, any batch size

The manifest's own checksum covers everything (the files through their checksums). So one number, printed at
export, identifies a bundle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, Strict, model_validator

from randens.core.errors import FileError
from randens.core.files import read_file, read_json, sha256, write_json
from randens.core.runs import Digest, Document, ThreatDocument

__all__ = ["MANIFEST", "Bundle", "Member", "NetworkFile"]

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
    def open(path: str | os.PathLike[str]) -> Bundle:
        """Read and check the manifest of a folder."""
        folder = Path(path)
        if not folder.is_dir():
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
