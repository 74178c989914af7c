"""How long the shell takes to answer: help, the import, and a first evaluation of small networks on digits.

Whole processes by the wall clock, started anew each time, with files that were read before. The ensemble is four
untrained networks of the quickstart's size; ARC-R on 100 test images. The goals are 150 ms, 100 ms and 3 seconds.

    python -m benchmarks.startup
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Goal, Row, Settings, Side, interleaved
from randens import RandomizedEnsemble, Threat, models

PROGRAM = "from randens.cli.main import main; main()"
HELP, IMPORT, EVALUATE = "randens --help", "import randens", "randens evaluate, digits"
GOALS = {HELP: Goal(at_most=0.15), IMPORT: Goal(at_most=0.1), EVALUATE: Goal(at_most=3)}


def digits_ensemble(folder: Path) -> Path:
    networks = [models.create("mlp", classes=10, input_shape=(1, 8, 8), width=32, seed=i) for i in range(4)]
    RandomizedEnsemble(networks, threat=Threat("linf", 0.1)).save(folder / "ensemble")
    return folder / "ensemble"


def process(*arguments: str) -> Callable[[], None]:
    def run() -> None:
        # Users have compiled modules beside the sources; without them most of the time is compiling.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            [sys.executable, "-c", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise RuntimeError(f"{arguments[1:]}: exit code {done.returncode}: {done.stderr[-300:]}")

    return run


def rows(settings: Settings) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        model = str(digits_ensemble(Path(folder)))
        options = ("--data", "digits", "--attack", "arc-r", "--limit", "100")
        cases = {
            HELP: process(PROGRAM, "--help"),
            IMPORT: process("import randens"),
            EVALUATE: process(PROGRAM, "evaluate", "--model", model, *options),
        }
        measured = interleaved(cases, 2 if settings.quick else 7, warm_up=1)
    for name, timed in measured.items():
        ours = Side(name, timed.timing)
        yield Row(name, ours, Side("the goal"), timed.timing.best, "s", timed.timing.median, goal=GOALS[name])


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
