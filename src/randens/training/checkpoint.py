"""Checkpoints: one safetensors file each, written completely or not at all; the previous one is kept.

A file's metadata holds the position as JSON and a SHA-256 over the position and every tensor, so each file
can be checked without any other file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from randens.core.errors import FileError
from randens.core.files import write_atomic

__all__ = ["Checkpoint", "Checkpoints"]

_FORMAT = "randens-checkpoint-1"
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and the position: plain JSON values."""

    tensors: Mapping[str, Tensor]
    position: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def files(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("[0-9]*.safetensors"), reverse=True)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a new file, then remove all but the newest two."""
        existing = self.files()
        number = int(existing[0].stem) + 1 if existing else 1
        tensors = {k: t.detach().cpu().contiguous() for k, t in sorted(checkpoint.tensors.items())}
        position = json.dumps(checkpoint.position, sort_keys=True, allow_nan=False)
        metadata = {"format": _FORMAT, "position": position, "sha256": _digest(position, tensors)}
        path = self.folder / f"{number:08d}.safetensors"
        write_atomic(path, safetensors.torch.save(tensors, metadata))
        for old in existing[_KEPT - 1 :]:
            with contextlib.suppress(OSError):
                old.unlink()
        return path

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest undamaged file, and one sentence for each damaged one.

        A folder without files gives None. A folder in which every file is damaged is an error, because a new
        start would silently discard work.
        """
        faults: list[str] = []
        files = self.files()
        for path in files:
            try:
                return read(path), faults
            except FileError as error:
                faults.append(f"{error}; the checkpoint before it is used")
        if files:
            raise FileError(
                f"every checkpoint in {self.folder} is damaged; remove that folder to train from the beginning"
            )
        return None, faults


def read(path: Path) -> Checkpoint:
    """One file, verified."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise FileError(f"the checkpoint {path} cannot be read ({' '.join(str(error).split())})") from error
    if metadata.get("format") != _FORMAT:
        raise FileError(f"{path} is not a checkpoint of format {_FORMAT}")
    if metadata.get("sha256") != _digest(metadata.get("position", ""), tensors):
        raise FileError(f"the checkpoint {path} does not match its checksum")
    return Checkpoint(tensors, json.loads(metadata["position"]))


def _digest(position: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(position.encode())
    for key in sorted(tensors):
        tensor = tensors[key]
        digest.update(f"{key}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
