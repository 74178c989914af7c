"""Run benchmarks one after the other, each in a process of its own, and keep what they gave after each.

A benchmark that fails, crashes or takes too long loses only the rows it had not reached. A run that was killed is
continued by the same command: benchmarks finished at the same commit are not run again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, table
from benchmarks.harness import Settings
from randens.core.errors import FileError, InputError, unknown
from randens.core.files import read_json, write_json

__all__ = ["BENCHMARKS", "ROOT", "Benchmark", "chosen", "failures", "run", "summary"]

ROOT = Path(__file__).resolve().parents[1]
_FORMAT = "randens-bench-1"
_OTHERS = 0.10
_GRACE = 3.0


@dataclass(frozen=True)
class Benchmark:
    """A module with `rows`, what it compares, and the seconds after which it is stopped: full and quick."""

    name: str
    title: str
    seconds: float = 600.0
    quick: float = 120.0
    needs_members: bool = False

    @property
    def module(self) -> str:
        return f"benchmarks.{self.name}"


BENCHMARKS = (
    Benchmark("strength", "share of inputs solved exactly, where the optimum is known", 480, 60),
    Benchmark("sampling", "exact probabilities against the subgradient method", 300, 60),
    Benchmark(
        "cutting_planes", "probabilities under real attack: cutting planes against Algorithm 1", 240, 90
    ),
    Benchmark(
        "training", "a training step against its bare passes; layouts, precisions, processes", 900, 120
    ),
    Benchmark("inference", "a prediction: torch, compiled, ONNX Runtime; one member, drawn, all", 420, 120),
    Benchmark("serving", "the server at its saturation load", 180, 60),
    Benchmark("startup", "help, the import and a first evaluation from the shell", 180, 60),
)


def chosen(names: Sequence[str], known: Sequence[Benchmark] = BENCHMARKS) -> tuple[Benchmark, ...]:
    """The benchmarks called `names`, all if none are named, in the order of `known`."""
    valid = {benchmark.name: benchmark for benchmark in known}
    for name in names:
        if name not in valid:
            unknown("benchmark", name, valid)
    return tuple(b for b in known if not names or b.name in names)


def run(
    benchmarks: Sequence[Benchmark],
    out: Path,
    settings: Settings,
    *,
    threads: int,
    everything: bool = True,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run `benchmarks`, write `out` after each of them and return what it holds.

    With `everything` the file begins anew, unless it is an unfinished one of this commit; else other benchmarks'
    results in it stay.
    """
    document = _begin(out, settings, everything)
    commit = machine.commit(ROOT)
    for benchmark in benchmarks:
        entry = document["benchmarks"].get(benchmark.name)
        if everything and entry is not None and entry["status"] == "ok":
            say(f"{benchmark.name}: kept from the run that was interrupted")
            continue
        say(f"{benchmark.name}: {benchmark.title}")
        entry = _one(benchmark, settings, threads) | {"commit": commit, "title": benchmark.title}
        document["benchmarks"][benchmark.name] = entry
        write_json(out, document)
        say(f"{benchmark.name}: {entry['status']}, {len(entry['rows'])} rows, {entry['seconds']:.0f} s")
    document["complete"] = True
    write_json(out, document)
    return document


def summary(document: dict[str, Any], known: Sequence[Benchmark] = BENCHMARKS) -> str:
    """The one table, what was left out or failed, and how busy the machine was."""
    entries = [(b.name, document["benchmarks"][b.name]) for b in known if b.name in document["benchmarks"]]
    lines = [
        (name if first else "", *table.cells(row))
        for name, entry in entries
        for first, row in zip([True] + [False] * len(entry["rows"]), entry["rows"], strict=False)
    ]
    parts = [table.aligned(lines, ("benchmark", *table.HEAD))] if lines else []
    parts += [
        f"{name}: {entry['status'].upper()}: {entry['error']}" for name, entry in entries if entry["error"]
    ]
    parts += [f"WARNING, {name}: {warning}" for name, entry in entries for warning in entry["warnings"]]
    goals = [row["goal"]["met"] for _, entry in entries for row in entry["rows"] if row["goal"] is not None]
    parts.append(
        f"{goals.count(True)} of {len(goals)} goals met, {goals.count(False)} missed, "
        f"{goals.count(None)} not measurable here."
    )
    return "\n".join(parts)


def failures(document: dict[str, Any], benchmarks: Sequence[Benchmark]) -> list[str]:
    """The names of those that did not finish."""
    return [b.name for b in benchmarks if document["benchmarks"][b.name]["status"] != "ok"]


def _begin(out: Path, settings: Settings, everything: bool) -> dict[str, Any]:
    fresh = {
        "format": _FORMAT,
        "complete": False,
        "quick": settings.quick,
        "machine": machine.facts(),
        "benchmarks": {},
    }
    if not out.exists():
        return fresh
    try:
        old = read_json(out)
        valid = old["format"] == _FORMAT and isinstance(old["benchmarks"], dict)
    except (FileError, KeyError, TypeError):
        valid = False
    if not valid:
        raise InputError(f"--out is {out}, which exists and holds no benchmark results; choose another file")
    comparable = all(old[key] == fresh[key] for key in ("quick", "machine"))
    if everything:
        now = machine.commit(ROOT)
        done = old["benchmarks"].values()
        # With uncommitted changes the commit does not say what was measured.
        same = not now.endswith("+") and all(entry["commit"] == now for entry in done)
        return old if comparable and same and not old["complete"] else fresh
    if not comparable:
        raise InputError(
            f"--out is {out}, whose results come from another machine, environment or mode; choose another file"
        )
    return {**old, "complete": False}


def _one(benchmark: Benchmark, settings: Settings, threads: int) -> dict[str, Any]:
    """Run one benchmark in a child process and say how it went."""
    limit = benchmark.quick if settings.quick else benchmark.seconds
    before, meter = machine.load(), machine.Meter.start()
    started, clock = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        target, log = Path(folder) / "rows.json", Path(folder) / "log"
        code = _child(_command(benchmark, settings, target), log, threads, limit)
        seconds = time.monotonic() - clock
        written: dict[str, Any] = {"rows": [], "error": "unfinished"}
        if target.exists():
            written = read_json(target)
        tail = log.read_text(errors="replace").strip().splitlines()[-1:] or [""]
    rows: list[dict[str, Any]] = written["rows"]
    error: str = written["error"]
    status = "ok" if code == 0 and not error else "failed"
    if code is None:
        error, status = f"stopped after {limit:.0f} s; rows that were ready are kept", "timed out"
    elif code < 0:
        error = f"ended by signal {-code}; rows that were ready are kept"
    elif code and error in ("", "unfinished"):
        error = f"exit code {code}: {tail[0]}"
    return {
        "status": status,
        "error": _without_paths(error),
        "started": started,
        "seconds": round(seconds, 1),
        "processor_seconds": meter.spent(),
        "threads": threads,
        "load_before": before,
        "load_after": machine.load(),
        "others": meter.others(),
        "warnings": _warnings(before, meter.others(), rows),
        "rows": rows,
    }


def _command(benchmark: Benchmark, settings: Settings, target: Path) -> list[str]:
    command = [sys.executable, "-m", benchmark.module, "--json", str(target)]
    command += ["--quick"] if settings.quick else []
    if settings.ensemble is not None and benchmark.needs_members:
        command += ["--ensemble", str(settings.ensemble)]
    if settings.images is not None and benchmark.needs_members:
        command += ["--images", str(settings.images)]
    return command


def _child(command: list[str], log: Path, threads: int, limit: float) -> int | None:
    """The exit code of a command in a session of its own, or None if it had to be stopped."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=file, env=environment, start_new_session=True
        )
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Whatever it started goes with it: a server, torchrun, which must be asked to stop its own workers.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGTERM)
                    time.sleep(_GRACE)
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _warnings(load: float, others: float | None, rows: list[dict[str, Any]]) -> list[str]:
    found = []
    if load > machine.cores():
        found.append(f"too noisy to tell: the load was {load:g} on {machine.cores()} cores before it began")
    if others is not None and others > _OTHERS:
        found.append(f"too noisy to tell: others used {others:.0%} of the machine meanwhile")
    if noisy := sum(row["noisy"] for row in rows):
        found.append(f"{noisy} of {len(rows)} rows are noisy")
    return found


def _without_paths(message: str) -> str:
    """Messages go into a file that travels: this machine's folders do not belong there."""
    for folder, name in ((str(ROOT), "."), (str(Path.home()), "~"), (tempfile.gettempdir(), "TMP")):
        message = message.replace(folder, name)
    return message
