"""Ensembles on disk: a safetensors file per network and ensemble.json, which names them with their checksums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
from pydantic import Field
from safetensors import SafetensorError
from torch import nn

from randens import models
from randens.core.errors import FileError, InputError, RandensError
from randens.core.files import (
    AnyPath,
    atomic_folder,
    file_errors,
    read_file,
    read_json,
    sha256,
    write_atomic,
    write_json,
)
from randens.core.runs import Digest, Document, Probabilities, ThreatDocument

_FORMAT = "randens-ensemble-1"
_LARGEST_WEIGHTS = 1 << 36


class Network(Document):
    """One network; `architecture` is None of networks that are not ours."""

    file: Annotated[str, Field(pattern=r"^member-[0-9]{2,6}\.safetensors$")]
    sha256: Digest
    architecture: dict[str, Any] | None


class Average(Document):
    """A member that averages the networks `of`, by number; without weights it is the one network it names."""

    of: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    weights: list[float] | None


class Manifest(Document):
    """ensemble.json; `averages` says what the members are, the networks themselves if it is not there."""

    probs: Probabilities
    classes: list[str] | None
    threat: ThreatDocument | None
    members: Annotated[list[Network], Field(min_length=1)]
    averages: list[Average] | None = None


def write(path: AnyPath, networks: Sequence[nn.Module], overwrite: bool, **about: Any) -> None:
    """Write the folder of an ensemble, completely or not at all."""
    entries = []
    with atomic_folder(path, overwrite=overwrite) as folder:
        for index, network in enumerate(networks):
            state = {k: v.detach().cpu().contiguous().clone() for k, v in network.state_dict().items()}
            name, content = f"member-{index:02d}.safetensors", safetensors.torch.save(state)
            write_atomic(folder / name, content)
            architecture = getattr(network, "architecture", None)
            entries.append({"file": name, "sha256": sha256(content), "architecture": architecture})
        write_json(folder / "ensemble.json", {"format": _FORMAT, "members": entries, **about})


def read(path: AnyPath, members: Sequence[nn.Module] | None) -> tuple[Manifest, list[nn.Module]]:
    """The manifest of a folder and its networks in eval mode; `members` are filled, if given, or they are made."""
    folder, source = Path(path), Path(path) / "ensemble.json"
    with file_errors("read", folder):
        there = source.is_file()
    if not there:
        inner = folder / "ensemble"
        found = "holds no ensemble.json" if folder.is_dir() else "is no folder"
        hint = f"did you mean {inner}?" if inner.is_dir() else "give a folder made by RandomizedEnsemble.save"
        raise FileError(f"{folder} {found}; {hint}")
    content = read_json(source)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise FileError(f"{source} is not an ensemble of format {_FORMAT}")
    manifest = Manifest.parse(content, source)
    entries = manifest.members
    if members is not None and len(members) != len(entries):
        raise InputError(f"members has {len(members)} modules; {folder} holds {len(entries)} members")
    networks: list[nn.Module] = []
    for index, entry in enumerate(entries):
        if members is not None:
            network = members[index]
        elif entry.architecture is None:
            raise InputError(f"{folder} holds networks of your own; pass members=[...] to fill them")
        else:
            try:
                network = models.build(entry.architecture)
            except RandensError as error:
                raise FileError(f"{source}: member {index}: {error}") from error
        _fill(network, folder / entry.file, entry.sha256)
        networks.append(network.eval())
    return manifest, networks


def _fill(module: nn.Module, path: Path, expected: str) -> None:
    content = read_file(path, _LARGEST_WEIGHTS)
    if sha256(content) != expected:
        raise FileError(f"{path} does not match its checksum; it is truncated or was altered")
    try:
        # safetensors files hold numbers and names and no code.
        module.load_state_dict(safetensors.torch.load(content))
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{path} does not fit a {type(module).__name__}: {reason[:200]}") from error
