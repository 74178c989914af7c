"""How long the shell takes to answer: help, the import, and a first evaluation of small networks on digits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Row, Settings, in_turns
from randens import RandomizedEnsemble, Threat, models

ABOUT = (
    "Whole processes from the shell, started anew each time, with files that were read before; the evaluation is of "
    "four untrained networks by ARC-R on 100 digits."
)
PROGRAM = "from randens.cli.main import main; main()"


def digits_ensemble(folder: Path) -> Path:
    networks = [models.create("mlp", classes=10, input_shape=(1, 8, 8), width=32, seed=i) for i in range(4)]
    RandomizedEnsemble(networks, threat=Threat("linf", 0.1)).save(folder / "ensemble")
    return folder / "ensemble"


def process(*arguments: str) -> Callable[[int], None]:
    # Users have compiled modules beside the sources; without them most of the time is compiling.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run(_: int) -> None:
        command = [sys.executable, "-c", *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"{arguments[1:]}: exit code {done.returncode}: {done.stderr[-300:]}")

    return run


def rows(settings: Settings) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        model = str(digits_ensemble(Path(folder)))
        options = ("--data", "digits", "--attack", "arc-r", "--limit", "100")
        cases = {
            "randens --help": process(PROGRAM, "--help"),
            "import randens": process("import randens"),
            "randens evaluate, digits": process(PROGRAM, "evaluate", model, *options),
        }
        in_turns(cases, 1, time.perf_counter)  # reads the files
        measured = in_turns(cases, 1 if settings.quick else 7, time.perf_counter)
    for name, timed in measured.items():
        yield Row(name, timed.best, note="best time")
