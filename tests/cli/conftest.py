"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands import shell
from tests.evaluation import trained

from randens import RandomizedEnsemble
from randens.core.runs import Run

__all__ = ["run_folder", "shell"]


@pytest.fixture(scope="session")
def ensemble() -> RandomizedEnsemble:
    """Three linear classifiers of digits."""
    return trained.ensemble("linear", "linear", "linear")


@pytest.fixture
def run_folder(tmp_path: Path, ensemble: RandomizedEnsemble) -> Path:
    """A run folder as training leaves it."""
    recipe = {"method": "iat", "data": {"name": "digits"}}
    run = Run.create(tmp_path / "run", recipe=recipe, seed=0, chosen_on={"checkpoints": "validation"})
    ensemble.save(run.ensemble)
    return run.path
