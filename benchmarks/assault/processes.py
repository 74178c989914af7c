"""Two writers in one folder, and signals at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.assault.finding import Finding
from benchmarks.assault.readers import made
from randens.core.errors import RandensError
from randens.core.runs import Run

PROGRAM = "from randens.cli.main import main; main()"
RECIPE = """
method = "at"
epochs = 400
batch_size = 64
[model]
name = "mlp"
width = 8
[data]
name = "digits"
[threat]
eps = 0.1
[adversary]
steps = 1
[validation]
attack = "pgd"
steps = 1
every = 100
size = 32
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A command in a process of its own, in `folder`."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)},
    )


def ended(child: subprocess.Popen[str], timeout: float = 180.0) -> tuple[int, str]:
    """Exit code and what it said on stderr; a child that does not end is killed."""
    try:
        return child.wait(timeout), "" if child.stderr is None else child.stderr.read()
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return -9, "did not end"
    finally:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def begun(folder: Path, timeout: float = 120.0) -> None:
    """Wait until training in `folder` has written a line."""
    until = time.monotonic() + timeout
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.05)


def writers(folder: Path) -> Iterator[Finding]:
    """Point 5: two processes train in one folder; then the first is killed and the second goes on."""
    (folder / "recipe.toml").write_text(RECIPE)
    arguments = ("train", "recipe.toml", "--out", "run")
    first = start(folder, *arguments)
    begun(folder / "run")
    code, said = ended(start(folder, *arguments))
    named = code == 2 and f"process {first.pid} on" in said
    note = said.strip().splitlines()[-1][-120:] if said.strip() else ""
    yield Finding("lock", "a second writer is refused and told who writes", named, "", 1, True, note)
    first.kill()
    ended(first)
    third = start(folder, *arguments)
    time.sleep(1)
    third.send_signal(signal.SIGINT)
    code, said = ended(third)
    refused = "is being written" in said
    yield Finding("lock", "a lock that a killed process left is in the way", refused, "", 0)
    epochs = [
        (m.get("member"), m.get("epoch"))
        for m in Run.open(folder / "run").metrics()
        if m.get("event") == "epoch"
    ]
    doubled = sum(n - 1 for n in Counter(epochs).values())
    yield Finding("lock", "doubled lines in metrics.jsonl", doubled, "", 0, note=f"of {len(epochs)}")


def signals(folder: Path, moments: int, seed: int = 0) -> Iterator[Finding]:
    """Point 6: SIGINT and SIGTERM at random moments of several commands."""
    rng = random.Random(seed)
    (folder / "recipe.toml").write_text(RECIPE)
    if not (folder / "made").exists():
        made(folder / "made")
    commands: Sequence[tuple[str, ...]] = (
        ("train", "recipe.toml", "--out", "signalled"),
        ("evaluate", "made/run", "--limit", "500"),
        ("attack", "made/run", "--attack", "arc-r", "--set", "steps=500"),
        ("sample", "made/run", "--limit", "500"),
        ("certify", "made/run"),
        ("quickstart", "--runs", "quick"),
        ("serve", "made/bundle", "--port", "0"),
    )
    wrong, seen = [], Counter[int]()
    for index in range(moments):
        arguments = commands[index % len(commands)]
        number = (signal.SIGINT, signal.SIGTERM)[(index + index // len(commands)) % 2]
        child = start(folder, *arguments)
        # Not before Python itself has started: its own handlers print a traceback.
        time.sleep(1.0 + 4 * rng.random())
        child.send_signal(number)
        code, said = ended(child)
        seen[code] += 1
        finished = code == 0  # it was quicker than the signal
        lines = [
            line for line in said.splitlines() if "kept" in line or "again" in line or "continues" in line
        ]
        if not finished and (code != 128 + number or "Traceback" in said or len(lines) != 1):
            wrong.append(f"{arguments[0]} {number.name}: {code} {said[-200:]!r}")
    note = ", ".join(f"{n} × exit code {code}" for code, n in sorted(seen.items()))
    if wrong:
        note += f"; first: {wrong[0]}"
    yield Finding("signals", "commands without their exit code and one line", len(wrong), "", 0, note=note)
    if not (folder / "signalled").exists():
        return  # every signal to `train` came before it had begun
    try:
        Run.open(folder / "signalled")
        broken, note = 0, ""
    except RandensError as error:
        broken, note = 1, str(error)
    yield Finding("signals", "a run folder that cannot be read afterwards", broken, "", 0, note=note)
