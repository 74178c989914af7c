"""Ensembles on disk: a safetensors file per network and ensemble.json, which names them with their checksums."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors.torch
from pydantic import AfterValidator, Field
from safetensors import SafetensorError
from torch import nn

from randens.core.errors import FileError
from randens.core.files import AnyPath, atomic_folder, read_file, read_json, sha256, write_atomic, write_json
from randens.core.runs import Digest, Document, Probabilities, ThreatDocument

_LARGEST_WEIGHTS = 1 << 36
_MOST = 1000  # networks


def _distinct(numbers: list[int]) -> list[int]:
    if len(set(numbers)) < len(numbers):
        raise ValueError("a network is named twice")
    return numbers


Numbers = Annotated[
    list[Annotated[int, Field(ge=0, lt=_MOST)]], Field(min_length=1), AfterValidator(_distinct)
]


class Network(Document):
    """One network; `architecture` is None of networks that are not ours."""

    file: Annotated[str, Field(pattern=r"^member-[0-9]{2,6}\.safetensors$")]
    sha256: Digest
    architecture: dict[str, Any] | None


class Average(Document):
    """A member that averages the networks `of`, by number; without weights it is the one network it names."""

    of: Numbers
    weights: list[float] | None


class Manifest(Document):
    """ensemble.json; `averages` says what the members are, the networks themselves if it is not there."""

    format: Literal["randens-ensemble-1"]
    probs: Probabilities
    classes: list[str] | None
    threat: ThreatDocument | None
    members: Annotated[list[Network], Field(min_length=1, max_length=_MOST)]
    averages: Annotated[list[Average], Field(max_length=_MOST)] | None = None


def write(path: AnyPath, networks: Sequence[nn.Module], overwrite: bool, **about: Any) -> Path:
    """Write the folder of an ensemble, completely or not at all."""
    entries = []
    with atomic_folder(path, overwrite=overwrite) as folder:
        for index, network in enumerate(networks):
            state = {k: v.detach().cpu().contiguous().clone() for k, v in network.state_dict().items()}
            name, content = f"member-{index:02d}.safetensors", safetensors.torch.save(state)
            write_atomic(folder / name, content)
            architecture = getattr(network, "architecture", None)
            entries.append({"file": name, "sha256": sha256(content), "architecture": architecture})
        write_json(folder / "ensemble.json", {"format": "randens-ensemble-1", "members": entries, **about})
    return Path(path)


def read(path: AnyPath) -> Manifest:
    """The manifest of a folder."""
    source = Path(path) / "ensemble.json"
    if not os.path.isfile(source):  # noqa: PTH113 - Path.is_file raises for names that are too long
        raise FileError(f"{path!s:.200} holds no ensemble.json; give a saved ensemble, e.g. RUN/ensemble")
    return Manifest.parse(read_json(source), source)


def fill(module: nn.Module, path: Path, expected: str) -> None:
    """Load the weights in the file `path`, whose checksum is verified first."""
    content = read_file(path, _LARGEST_WEIGHTS)
    if sha256(content) != expected:
        raise FileError(f"{path} does not match its checksum; it is truncated or was altered")
    try:
        # safetensors files hold numbers and names and no code.
        module.load_state_dict(safetensors.torch.load(content))
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"{path} does not fit a {type(module).__name__}: {reason}") from error
