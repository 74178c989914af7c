"""A run folder: everything needed to repeat, continue or explain a run.

manifest.json      recipe, seed, versions, git commit, command
metrics.jsonl      one JSON object per line, appended during the run
ensemble/          the members (safetensors) and probabilities
witnesses.sqlite   what attacks found, which every command reads and extends
evaluation.json    the evaluation; other commands write other *.json files
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from randens._version import __version__
from randens.core.errors import FileError, InputError
from randens.core.files import check_seal, new_folder, parse_json, read_json, seal, write_json

__all__ = ["Run", "processor", "versions"]

_FORMAT = "randens-run-1"


class Run:
    """An existing run folder; create one with `Run.create`, open one with `Run.open`.

    Parameters
    ----------
    path : Path
        The folder.
    manifest : mapping
        The content of manifest.json: recipe, seed, versions, command.

    Examples
    --------
    >>> import randens
    >>> run = randens.Run.create("mine", seed=3)
    >>> randens.Run.open("mine").manifest["seed"]
    3
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = dict(manifest)

    @staticmethod
    def create(path: str | os.PathLike[str], **manifest: Any) -> Run:
        """Make a new folder (never an existing one) and write its manifest."""
        folder = new_folder(path)
        content = {
            "format": _FORMAT,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": sys.argv[1:],
            "versions": versions(),
            "git_commit": _git_commit(),
            **manifest,
        }
        write_json(folder / "manifest.json", seal(content))
        return Run(folder, content)

    @staticmethod
    def create_next(parent: str | os.PathLike[str], name: str, **manifest: Any) -> Run:
        """Make parent/name-1, or the first number that is free."""
        paths = (Path(parent) / f"{name}-{number}" for number in itertools.count(1))
        return Run.create(next(path for path in paths if not path.exists()), **manifest)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Run:
        """Open a run folder; other folders are refused."""
        folder = Path(path)
        if not folder.is_dir():
            raise FileError(f"{folder} is not a folder; give a run folder, e.g. runs/quickstart-1")
        path = folder / "manifest.json"
        if not path.is_file():
            raise FileError(f"{folder} is not a run folder: it has no manifest.json")
        manifest = read_json(path)
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise FileError(f"{path} is not a run of format {_FORMAT}")
        content = _unsealed(manifest, path)
        # Imported here, because `doctor` must work without its dependencies.
        from randens.core.documents import RunManifest, fitted

        fitted(RunManifest, content, path)
        return Run(folder, content)

    @property
    def ensemble(self) -> Path:
        """The folder of the ensemble, existing or not."""
        return self.path / "ensemble"

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl, with a checksum of it; it reaches the disk before this returns."""
        path = self.path / "metrics.jsonl"
        try:
            line = json.dumps(seal(values), allow_nan=False, ensure_ascii=False) + "\n"
        except (TypeError, ValueError, InputError) as error:
            raise InputError(f"cannot append to {path}: {values!r} is not JSON ({error})") from error
        try:
            with path.open("a+b") as file:
                _cut_partial_line(file)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"cannot append to {path}: {error.strerror or error}") from error

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line cut off by a crash is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return
        *lines, partial = path.read_bytes().split(b"\n")
        del partial
        for number, line in enumerate(lines, start=1):
            try:
                found = parse_json(line)
            except ValueError as error:
                raise FileError(f"{path} line {number} is not valid JSON; it was altered") from error
            if not isinstance(found, dict):
                raise FileError(f"{path} line {number} is not an object; it was altered")
            yield _unsealed(found, f"{path} line {number}")

    def write(self, name: str, value: Any) -> Path:
        """Write `name`.json into the folder, atomically, an object with its checksum."""
        path = self.path / f"{name}.json"
        write_json(path, seal(value) if isinstance(value, Mapping) else value)
        return path

    def read(self, name: str) -> Any:
        """Read `name`.json; an object that does not match its checksum is refused."""
        return _unsealed(read_json(self.path / f"{name}.json"), self.path / f"{name}.json")


def _unsealed(document: Any, source: str | os.PathLike[str]) -> Any:
    """What was read, its checksum verified and taken out."""
    check_seal(document, source)
    if isinstance(document, dict):
        document.pop("checksum", None)
    return document


def versions() -> dict[str, str]:
    """Return the versions of the packages that influence the numbers."""
    found = {"randens": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scipy", "scikit-learn", "lightning-fabric", "safetensors"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cut_partial_line(file: BinaryIO) -> None:
    """Remove an incomplete last line that a crash left, so that the next line does not continue it."""
    kept, last = file.seek(0, os.SEEK_END), -1
    while kept > 0 and last < 0:
        start = max(0, kept - 4096)
        file.seek(start)
        last = file.read(kept - start).rfind(b"\n")
        kept = start + last + 1
    file.truncate(kept)


def _git_commit() -> str | None:
    """The commit checked out in the current folder, if it is a git work tree."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
