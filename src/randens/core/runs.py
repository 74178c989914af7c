"""Documents on disk, validated before they are used, and run folders: all that repeats, continues or explains a run.

manifest.json      recipe, seed, versions, git commit, command
metrics.jsonl      one JSON object per line, appended during the run
ensemble/          the members (safetensors) and probabilities
witnesses.sqlite   what attacks found, which every command reads and extends
trained_on.json    keys of the training images, if they are one's own
evaluation.json    the evaluation; other commands write other *.json files

Types in documents are strict (no text for a number, no true for 1) and numbers finite. Unknown entries are ignored, so
that a file of a later version can be read.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Self

from randens import __version__
from randens.core.errors import FileError, PathLike, typed
from randens.core.files import AnyPath, encoded, file_errors, parse_json, read_file, read_json, write_json

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Probabilities = Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=100_000)]

LARGEST_METRICS = 1 << 30


class Document(BaseModel):
    """The base of everything read from disk."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return self.model_dump(mode="json")

    @classmethod
    def parse(cls, value: Any, source: AnyPath) -> Self:
        """Validate plain JSON values; `source` is named in the error."""
        try:
            return cls.model_validate(value)
        except (ValidationError, RecursionError) as error:
            raise FileError(f"{source} is damaged or of another version: {first_fault(error)}") from error


def first_fault(error: Exception) -> str:
    """The first error, as ``entry: reason``, without the values."""
    if not isinstance(error, ValidationError):
        return "it is nested too deep"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"]) or "the document"
    return f"{where}: {first['msg'].partition(', unable')[0][:200]}"


class ThreatDocument(Document):
    """A threat as `randens.Threat.to_dict` writes it."""

    norm: str
    eps: Annotated[float, Field(gt=0)]
    bounds: Annotated[list[float], Field(min_length=2, max_length=2)] | None


class _Manifest(Document):
    """The entries of manifest.json that are read; commands add their own."""

    format: Literal["randens-run-1"]
    created: str | None = None
    command: list[str] | None = None
    versions: dict[str, str] | None = None
    git_commit: str | None = None
    kind: str | None = None
    seed: int | None = None
    recipe: dict[str, Any] | None = None
    earlier_recipes: list[dict[str, Any]] | None = None
    chosen_on: dict[str, str] | None = None


@dataclass(frozen=True)
class Run:
    """An existing run folder and its manifest (recipe, seed, versions, command).

    >>> import randens
    >>> run = randens.Run.create("mine", seed=3)
    >>> randens.Run.open("mine").manifest["seed"]
    3
    """

    path: Path
    manifest: dict[str, Any]

    @staticmethod
    def create(path: AnyPath, **manifest: Any) -> Run:
        """Make a new folder (never an existing one) and write its manifest."""
        made = {"created": datetime.now(timezone.utc).isoformat(timespec="seconds"), "command": sys.argv[1:]}
        about = {"format": "randens-run-1", "versions": versions(), "git_commit": _git_commit()}
        run = Run(Path(path), {**about, **made, **manifest})
        with file_errors("create", path):
            if run.path.exists():
                raise FileError(f"{path} exists already; choose another folder or remove it first")
            run.path.mkdir(parents=True)
        run.write("manifest", run.manifest)
        return run

    @staticmethod
    @typed(path=PathLike)
    def open(path: AnyPath) -> Run:
        """Open a run folder; other folders are refused."""
        file = Path(path) / "manifest.json"
        if not os.path.isfile(file):  # noqa: PTH113 - Path.is_file raises for names that are too long
            raise FileError(
                f"{str(path)[:200]} is no run folder, which has a manifest.json; give one, e.g. runs/quickstart-1"
            )
        manifest = read_json(file)
        _Manifest.parse(manifest, file)
        return Run(file.parent, manifest)

    @property
    def ensemble(self) -> Path:
        """The folder of the ensemble, existing or not."""
        return self.path / "ensemble"

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl; it reaches the disk before this returns."""
        path = self.path / "metrics.jsonl"
        line = encoded(values, path)
        with file_errors("append to", path), path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        lines = read_file(path, LARGEST_METRICS).split(b"\n")[:-1] if path.exists() else []
        with file_errors("read", path):
            return [dict(parse_json(line)) for line in lines]

    def write(self, name: str, value: Any) -> Path:
        """Write `name`.json into the folder, atomically."""
        path = self.path / f"{name}.json"
        write_json(path, value)
        return path

    def read(self, name: str) -> Any:
        """Read `name`.json."""
        return read_json(self.path / f"{name}.json")


def versions() -> dict[str, str]:
    """The versions of the packages that influence the numbers."""
    found = {"randens": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scipy", "scikit-learn", "lightning-fabric", "safetensors"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _git_commit() -> str | None:
    """The commit checked out in the current folder, if it is a git work tree."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
