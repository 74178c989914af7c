"""Strength of attacks where the optimum is known: linear members in conflict, share of inputs solved exactly.

M = 5, d = 20, ensembles of twenty inputs per norm, from the generators that the tests use: with equal probabilities,
and (`unequal`) with α from a Dirichlet distribution and every member foolable alone. The figure is the share of inputs
on which the attack reaches the exact optimum; seconds are ours against the exact solver's.

    python -m benchmarks.strength                    # two ensembles of each kind, the attacks as they come
    python -m benchmarks.strength --ensembles 10     # the tables of docs/attacks.md
    python -m benchmarks.strength --ensembles 10 --kind unequal
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tests.attacks.planted import Planted, planted, share_solved, truth, unequal

from benchmarks import harness
from benchmarks.harness import Goal, Row, Settings, Side, Timing
from randens import attacks

INPUTS = 20
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pgd", {}),
    ("adaptive-pgd-s", {}),
    ("arc", {}),
    ("arc-r", {}),
    ("arc-r", {"restarts": 5}),
    ("lattice", {}),
    ("lattice", {"orders": 5}),
    ("saddle", {}),
    ("saddle", {"orders": 5}),
    ("suite", {"preset": "fast"}),
    ("suite", {"preset": "standard"}),
)
UNEQUAL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("arc-r", {}),
    ("lattice", {}),
    ("saddle", {}),
    ("suite", {"preset": "fast"}),
    ("suite", {"preset": "standard"}),
)
QUICK: tuple[tuple[str, dict[str, Any]], ...] = (("saddle", {}), ("suite", {"preset": "fast"}))
GOALS = {
    ("equal", "suite preset=standard", "l2"): Goal(at_least=0.95),
    ("equal", "suite preset=standard", "linf"): Goal(at_least=0.90),
    ("unequal", "lattice", "linf"): Goal(at_least=0.80),
    ("unequal", "saddle", "l2"): Goal(at_least=0.97),
    ("unequal", "saddle", "linf"): Goal(at_least=0.97),
    ("unequal", "suite preset=standard", "l2"): Goal(at_least=1.0),
    ("unequal", "suite preset=standard", "linf"): Goal(at_least=1.0),
}
KINDS: dict[str, Callable[..., Planted]] = {"equal": planted, "unequal": unequal}


def rows(settings: Settings, ensembles: int | None = None, kind: str | None = None) -> Iterator[Row]:
    """With a number of `ensembles`, repeated climbs and restarts are measured, too; they take minutes."""
    torch.set_num_threads(1)  # Networks this small lose time to a second thread.
    usual = QUICK if settings.quick else CASES if ensembles else [case for case in CASES if _usual(case[1])]
    ensembles = ensembles or (1 if settings.quick else 2)
    for each in KINDS if kind is None else (kind,):
        asked = UNEQUAL if each == "unequal" and not settings.quick else usual
        for norm in ("l2", "linf"):
            cases = [KINDS[each](norm, n=INPUTS, seed=seed) for seed in range(ensembles)]
            yield from _measured(each, norm, cases, asked)


def _measured(
    kind: str, norm: str, cases: Sequence[Planted], asked: Sequence[tuple[str, dict[str, Any]]]
) -> Iterator[Row]:
    start = time.perf_counter()
    optima = [truth(case) for case in cases]
    proven = time.perf_counter() - start
    count = INPUTS * len(cases)
    best = Side("exact optimum", Timing(proven, proven, 1), 1 - float(np.mean(np.concatenate(optima))))
    for name, options in asked:
        start = time.perf_counter()
        found = [attacks.create(name, c.threat, **options)(c.rec, c.x, c.y) for c in cases]
        seconds = time.perf_counter() - start
        shares = [share_solved(f.risk, optimum) for f, optimum in zip(found, optima, strict=True)]
        forwards, backwards = (sum(getattr(f.cost, k) for f in found) for k in ("forwards", "backwards"))
        label = " ".join([name, *(f"{k}={v}" for k, v in options.items())])
        ours = Side(
            label,
            Timing(seconds, seconds, 1),
            1 - float(np.mean([float(f.risk.mean()) for f in found])),
            f"{forwards / count:.0f} f {backwards / count:.0f} b",
        )
        described = label if kind == "equal" else f"{label} ({kind} α)"
        facts: dict[str, harness.Fact] = {"norm": norm, "attack": described}
        yield Row(
            f"{described}, {norm}",
            ours,
            best,
            float(np.mean(shares)),
            "of inputs solved",
            goal=GOALS.get((kind, label, norm)),
            facts=facts,
        )


def _usual(options: dict[str, Any]) -> bool:
    return not {"restarts", "orders"} & options.keys()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ensembles", type=int)
    parser.add_argument("--kind", choices=list(KINDS))
    own, rest = parser.parse_known_args()
    raise SystemExit(harness.main(partial(rows, ensembles=own.ensembles, kind=own.kind), __doc__, rest))
