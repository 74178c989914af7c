"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands import shell
from tests.evaluation.trained import ensemble as trained

from randens import RandomizedEnsemble, Threat
from randens.core.runs import Run

__all__ = ["run_folder", "shell"]


@pytest.fixture(scope="session")
def ensemble() -> RandomizedEnsemble:
    """Three linear classifiers of digits."""
    members = list(trained("linear", "linear", "linear").members)
    return RandomizedEnsemble(
        members, classes=[str(digit) for digit in range(10)], threat=Threat("linf", 0.06)
    )


@pytest.fixture
def run_folder(tmp_path: Path, ensemble: RandomizedEnsemble) -> Path:
    """A run folder as training leaves it."""
    run = Run.create(
        tmp_path / "run",
        recipe={"method": "iat", "data": {"name": "digits"}},
        seed=0,
        chosen_on={"checkpoints": "validation"},
    )
    ensemble.save(run.ensemble)
    return run.path
