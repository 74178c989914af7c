"""Fixtures of the walks: an empty folder to work in, and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands import shell

__all__ = ["desk", "shell"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the working directory, and a terminal of 100 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path
