"""Trained ensembles that come with randens, each an ordinary run folder with a card."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from randens import ensemble
from randens.core.errors import FileError, PathLike, typed, unknown
from randens.core.files import file_errors
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble

__all__ = ["card", "copy", "load", "names", "path"]


def _root() -> Path:
    """The zoo's folder: beside this module in an installed package, `zoo/` in a clone of the repository."""
    here = Path(__file__).parent
    for folder in (here / "zoo_runs", here.parents[1] / "zoo"):
        if folder.is_dir():
            return folder
    raise FileError("this installation has no zoo; it comes with the wheel and a clone of the repository")


def names() -> tuple[str, ...]:
    """The names that `load` knows, sorted."""
    return tuple(sorted(manifest.parent.name for manifest in _root().glob("*/manifest.json")))


@typed(name=str)
def path(name: str) -> Path:
    """The run folder of an entry; its results are in it, and every command that takes a run folder takes it."""
    known = names()
    if name.lower() not in known:
        unknown("zoo entry", name, known)
    return _root() / name.lower()


def load(name: str) -> RandomizedEnsemble:
    """Load one of `names()`, ready to attack, sample from or export, in eval mode; its checksums are verified.

    >>> from randens import zoo
    >>> len(zoo.load("cifar10-resnet20-at"))
    1
    """
    folder = path(name) / "ensemble"
    if not folder.is_dir():
        raise FileError(f"{name} is in the zoo without its members; its card says how to train them")
    return ensemble.load(folder)


def card(name: str) -> str:
    """The card of an entry in Markdown: how it was made, its numbers, its limits and its files."""
    try:
        return (path(name) / "CARD.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the card of {name}: {error}") from error


@typed(folder=PathLike)
def copy(name: str, folder: str | os.PathLike[str]) -> Run:
    """Copy the entry `name` to the new run folder `folder`, for commands that write their results there."""
    load(name)
    target = Path(folder)
    if target.exists():
        raise FileError(f"{target} exists already; name a folder that does not")
    try:
        with file_errors("write", target):
            shutil.copytree(path(name), target, ignore=shutil.ignore_patterns("CARD.md"))
    except FileError:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return Run.open(target)
