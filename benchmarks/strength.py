"""Strength of attacks where the optimum is known: linear members in conflict, share of inputs solved exactly.

M = 5, d = 20, ensembles of twenty inputs per norm, from the generator that the tests use. The figure is the share of
inputs on which the attack reaches the exact optimum; seconds are ours against the exact solver's.

    python -m benchmarks.strength                    # two ensembles, the attacks as they come
    python -m benchmarks.strength --ensembles 10     # the table of docs/attacks.md
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from tests.attacks.planted import planted, share_solved, truth

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
QUICK: tuple[tuple[str, dict[str, Any]], ...] = (("saddle", {}), ("suite", {"preset": "fast"}))
GOALS = {("standard", "l2"): Goal(at_least=0.95), ("standard", "linf"): Goal(at_least=0.90)}


def rows(settings: Settings, ensembles: int | None = None) -> Iterator[Row]:
    """With a number of `ensembles`, repeated climbs and restarts are measured, too; they take minutes."""
    torch.set_num_threads(1)  # Networks this small lose time to a second thread.
    asked = QUICK if settings.quick else CASES if ensembles else [case for case in CASES if _usual(case[1])]
    ensembles = ensembles or (1 if settings.quick else 2)
    for norm in ("l2", "linf"):
        cases = [planted(norm, n=INPUTS, seed=seed) for seed in range(ensembles)]
        start = time.perf_counter()
        optima = [truth(case) for case in cases]
        proven = time.perf_counter() - start
        count = INPUTS * ensembles
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
            goal = GOALS.get((str(options.get("preset")), norm))
            facts: dict[str, harness.Fact] = {"norm": norm, "attack": label}
            share = float(np.mean(shares))
            yield Row(f"{label}, {norm}", ours, best, share, "of inputs solved", goal=goal, facts=facts)


def _usual(options: dict[str, Any]) -> bool:
    return not {"restarts", "orders"} & options.keys()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ensembles", type=int)
    own, rest = parser.parse_known_args()
    raise SystemExit(harness.main(partial(rows, ensembles=own.ensembles), __doc__, rest))
