"""What every benchmark shares: timing in turns, result rows, running one benchmark by itself.

A benchmark is a module of this folder with a function ``rows(settings)`` that yields a `Row` as soon as it has one;
what was yielded is kept even if the rest fails. Its last lines are

    if __name__ == "__main__":
        raise SystemExit(harness.main(rows, __doc__))
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from benchmarks import table
from randens.core.errors import InputError, RandensError
from randens.core.files import write_json

__all__ = [
    "NOISE",
    "Goal",
    "Row",
    "Settings",
    "Side",
    "Timed",
    "Timing",
    "as_fast",
    "interleaved",
    "left_out",
    "main",
    "of_cost",
    "slope",
]

T = TypeVar("T")
Fact = float | str | list[float]

NOISE = 0.15
"""A median this much above the best time means that other processes used the machine."""


@dataclass(frozen=True)
class Settings:
    """What a benchmark is told: whether to be quick, an ensemble folder instead of its own members, how many images."""

    quick: bool = False
    ensemble: Path | None = None
    images: int | None = None

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise InputError(f"images is {self.images}; it must be a whole number ≥ 1")


Rows = Callable[[Settings], Iterator["Row"]]


@dataclass(frozen=True)
class Timing:
    """Seconds of one case: the best and the median of its repeats."""

    best: float
    median: float
    repeats: int

    @property
    def spread(self) -> float:
        """How far the median lies above the best; 0 for a single repeat, which cannot tell."""
        return self.median / self.best - 1.0 if self.best > 0 else 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        return cls(min(seconds), statistics.median(seconds), len(seconds))


@dataclass(frozen=True)
class Timed(Generic[T]):
    """A case's timing and the value of its last call."""

    timing: Timing
    value: T


def interleaved(
    cases: Mapping[str, Callable[[], T]],
    repeats: int,
    *,
    warm_up: int = 0,
    calls: int | Mapping[str, int] = 1,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timed[T]]:
    """Time all cases in turns, so that whatever else the machine does hits all of them alike.

    A repeat is the mean of `calls` calls; a mapping says how many of which case, and others are called once. After
    two rounds no further one begins that would end later than `seconds` after the first began. With `clock`
    time.process_time only this process's own work counts.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    values: dict[str, T] = {}
    for _ in range(warm_up):
        for call in cases.values():
            call()
    begun = time.perf_counter()
    for done in range(repeats):
        spent = time.perf_counter() - begun
        if done >= 2 and spent * (done + 1) / done > seconds:
            break
        for name, call in cases.items():
            count = calls if isinstance(calls, int) else calls.get(name, 1)
            start = clock()
            for _ in range(count):
                values[name] = call()
            times[name].append((clock() - start) / count)
    return {name: Timed(Timing.of(times[name]), values[name]) for name in cases}


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its name, its time, its robust accuracy, its passes per input (or sweeps)."""

    name: str
    timing: Timing | None = None
    accuracy: float | None = None
    passes: str = ""


@dataclass(frozen=True)
class Goal:
    """A bound on a row's figure; `accuracy_not_higher` asks that our side's robust accuracy be no higher, too."""

    at_least: float | None = None
    at_most: float | None = None
    accuracy_not_higher: bool = False

    def __str__(self) -> str:
        bound = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        return f"{bound}, accuracy no higher" if self.accuracy_not_higher else bound

    def met(self, row: Row) -> bool:
        if row.figure is None:
            return False
        if self.at_least is not None and row.figure < self.at_least:
            return False
        if self.at_most is not None and row.figure > self.at_most:
            return False
        if self.accuracy_not_higher:
            ours, theirs = row.ours.accuracy, row.theirs.accuracy
            return ours is not None and theirs is not None and ours <= theirs + 1e-9
        return True


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `figure` comes from best times, `figure_of_medians` from medians; `unit` says what it counts. A row without
    a figure was not measured, and `note` says why. `facts` is what plots need beyond the table.
    """

    what: str
    ours: Side
    theirs: Side
    figure: float | None
    unit: str
    figure_of_medians: float | None = None
    goal: Goal | None = None
    note: str = ""
    facts: dict[str, Fact] = field(default_factory=dict)

    @property
    def spread(self) -> float:
        """The larger spread of both sides."""
        return max((s.timing.spread for s in (self.ours, self.theirs) if s.timing is not None), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, with the verdict on the goal and on the noise."""
        met = None if self.goal is None or self.figure is None else self.goal.met(self)
        content: dict[str, Any] = dataclasses.asdict(self)
        content["goal"] = None
        if self.goal is not None:
            bound = self.goal.at_most if self.goal.at_least is None else self.goal.at_least
            content["goal"] = {"text": str(self.goal), "bound": bound, "met": met}
        content["noisy"] = self.spread > NOISE
        content["spread"] = self.spread
        return content


def as_fast(
    what: str,
    ours: Side,
    theirs: Side,
    goal: Goal | None = None,
    note: str = "",
    facts: dict[str, Fact] | None = None,
) -> Row:
    """Their seconds over ours: how many times as fast we are."""
    a, b = _timings(ours, theirs)
    return Row(what, ours, theirs, b.best / a.best, "× as fast", b.median / a.median, goal, note, facts or {})


def of_cost(
    what: str,
    ours: Side,
    theirs: Side,
    goal: Goal | None = None,
    note: str = "",
    facts: dict[str, Fact] | None = None,
) -> Row:
    """Our seconds over theirs: what we cost in units of the limit."""
    a, b = _timings(ours, theirs)
    return Row(
        what, ours, theirs, a.best / b.best, "× the cost", a.median / b.median, goal, note, facts or {}
    )


def left_out(what: str, theirs: str, why: str, goal: Goal | None = None) -> Row:
    """A comparison that was not possible here."""
    return Row(what, Side(what), Side(theirs), None, "", goal=goal, note=why)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent b of y ≈ a·x^b, by least squares on logarithms."""
    logs = [math.log(v) for v in x], [math.log(v) for v in y]
    return statistics.linear_regression(*logs).slope


def main(rows: Rows, description: str | None, arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark by itself: 0, 1 if it failed, 2 for bad input. JSON grows with every row."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    parser.add_argument(
        "--ensemble", type=Path, help="an ensemble folder to attack instead of its own members"
    )
    parser.add_argument("--images", type=int, help="attack that many images")
    parser.add_argument("--json", type=Path, help="write the rows there")
    asked = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    error, code = "", 0
    try:
        for row in rows(Settings(asked.quick, asked.ensemble, asked.images)):
            found.append(row.to_json())
            if asked.json is not None:
                write_json(asked.json, {"rows": found, "error": "unfinished"})
    except RandensError as refused:
        error, code = " ".join(str(refused).split()), 2
        print(f"randens: {error}", file=sys.stderr)
    except Exception as broken:
        error, code = f"{type(broken).__name__}: {' '.join(str(broken).split())}", 1
        traceback.print_exc()
    if asked.json is not None:
        write_json(asked.json, {"rows": found, "error": error})
    print(table.text(found))
    return code


def _timings(ours: Side, theirs: Side) -> tuple[Timing, Timing]:
    if ours.timing is None or theirs.timing is None:
        raise ValueError(f"{ours.name} and {theirs.name} must both be timed to be compared")
    return ours.timing, theirs.timing
