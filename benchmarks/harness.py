"""What every benchmark shares: rows, timing in turns, the facts of a run, the file of results, the table.

A benchmark is a module of this folder with a sentence `ABOUT` and a function ``rows(settings)`` that yields rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from randens.core.files import read_json, write_json

__all__ = [
    "HEAD",
    "RESULTS",
    "ROOT",
    "Row",
    "Settings",
    "Timed",
    "cells",
    "commit",
    "facts",
    "in_turns",
    "installed",
    "merge",
]

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
HEAD = ("what", "ours", "theirs", "ratio", "note")
_PACKAGES = ("torch", "numpy", "scipy", "onnxruntime", "granian", "foolbox", "torchattacks", "pyautoattack")


@dataclass(frozen=True)
class Settings:
    """Whether to be quick; a checkout of an earlier commit, with its own `.venv`, to compare attacks with."""

    quick: bool = False
    old: Path | None = None


@dataclass(frozen=True)
class Row:
    """One line of the table: both sides in `unit`, and their ratio, which is `times` (e.g. "× as fast")."""

    name: str
    ours: float
    theirs: float | None = None
    unit: str = "s"
    ratio: float | None = None
    times: str = ""
    note: str = ""


@dataclass
class Timed(Generic[T]):
    """Seconds and values of a case's calls."""

    seconds: list[float] = field(default_factory=list)
    values: list[T] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def total(self) -> float:
        return sum(self.seconds)


def in_turns(
    cases: Mapping[str, Callable[[int], T]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, Timed[T]]:
    """Call all cases in turns with the number of the round, so that whatever else the machine does hits all alike.

    The clock counts this process's own work; processes that it starts need time.perf_counter.
    """
    found = {name: Timed[T]() for name in cases}
    for number in range(rounds):
        for name, call in cases.items():
            start = clock()
            value = call(number)
            found[name].seconds.append(clock() - start)
            found[name].values.append(value)
    return found


def facts(settings: Settings) -> dict[str, Any]:
    """What a benchmark is measured on, and how busy that is; no host names, no paths."""
    versions = [f"{name} {version}" for name in _PACKAGES if (version := installed(name))]
    return {
        "quick": settings.quick,
        "commit": commit(ROOT),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": round(os.getloadavg()[0], 1),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}; Python "
        f"{platform.python_version()}, {', '.join(versions)}",
    }


def installed(package: str) -> str | None:
    """The version of an installed distribution, or None."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def commit(folder: Path) -> str:
    """The short hash of a checkout's commit, with "+" where its source differs from it; "unknown" outside git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def merge(path: Path, name: str, entry: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Put a benchmark's rows into the file of results; those of other benchmarks stay."""
    document = read_json(path) if path.exists() else {}
    document[name] = {**entry, "rows": [dataclasses.asdict(row) for row in rows]}
    write_json(path, document)


def cells(row: Row) -> tuple[str, ...]:
    """One row as text, in the order of `HEAD`."""
    ratio = "" if row.ratio is None else f"{_number(row.ratio)}{row.times}"
    theirs = "" if row.theirs is None else _amount(row.theirs, row.unit)
    return (row.name, _amount(row.ours, row.unit), theirs, ratio, row.note)


def _amount(value: float, unit: str) -> str:
    return f"{_number(1000 * value)} ms" if unit == "s" and value < 1 else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
