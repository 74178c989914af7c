"""Parts of the repository that are not in the installed package: benchmarks, the paper's tables, studies."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import randens
from randens.core.errors import InputError


def clone_of(start: Path, part: str) -> Path | None:
    """The clone of the repository that a folder is in: it holds the package's source and the file `part`."""
    for folder in (start, *start.parents):
        if (folder / part).is_file() and (folder / "src" / "randens").is_dir():
            return folder
    return None


def from_paper(module: str, what: str) -> Any:
    """A module of the clone's ``paper`` folder; only of the clone that this package itself was imported from."""
    clone = clone_of(Path(randens.__file__).resolve().parent, "paper/__init__.py")
    if clone is None:
        raise InputError(
            f"{what} is part of randens's repository and not of the installed package: run it in a clone of it, "
            "installed with `make`"
        )
    if str(clone) not in sys.path:
        sys.path.append(str(clone))
    return importlib.import_module(f"paper.{module}")
