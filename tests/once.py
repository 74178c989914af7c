"""Folders that take long to make are made once for all processes of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of this name that all processes of the tests share; the first that needs it calls `make` on it.

    `make` finds an empty folder, which has its final place already: environments do not move.
    """
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    folder, finished = shared / name, shared / f"{name}.finished"
    with filelock.FileLock(shared / f"{name}.lock"):
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


def quickstart_run(factory: pytest.TempPathFactory) -> Path:
    """The run folder of the quickstart's ensemble, really trained, in seconds instead of minutes, and evaluated."""
    return made_once(factory, "quickstart", _train) / "quickstart-1"


def _train(folder: Path) -> None:
    # Tests without torch import this file too.
    import randens
    from randens.quickstart import recipes
    from randens.training import train

    run = folder / "quickstart-1"
    rec = train(recipes()[1].with_settings(["epochs=60", "adversary.warmup=12"]), run)
    randens.evaluate(rec, "digits", "fast", limit=100).save(run / "evaluation.json")
