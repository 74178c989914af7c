"""The theory's examples and benchmark run unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
    )


def test_the_tour_shows_the_theorems() -> None:
    finished = run(str(ROOT / "examples" / "theory_tour.py"))
    assert finished.returncode == 0, finished.stderr
    assert "(0.5, 0.25, 0.25): risk 0.375" in finished.stdout
    assert "proof checked without a solver: True" in finished.stdout


def test_averaging_is_worse_than_both_members_and_drawing_is_not() -> None:
    finished = run(str(ROOT / "examples" / "worst_case_deterministic.py"), "--p", "0.3", "--eps", "0.5")
    assert finished.returncode == 0, finished.stderr
    numbers = {line[:26].strip(): line[26:].split() for line in finished.stdout.splitlines()}
    assert numbers["member risks"][:3] == ["0.700", "and", "0.300"]
    assert numbers["deterministic average"][0] == "1.000"
    assert numbers["sampling half and half"][0] == "0.500"
    assert numbers["sampling at its best"][0] == "0.300"
