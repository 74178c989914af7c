"""Strength of attacks where the optimum is known: linear members in conflict, share of inputs solved exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from tests.attacks.planted import Planted, planted, share_solved, truth, unequal

from benchmarks.harness import Row, Settings
from randens import attacks

ABOUT = (
    "Inputs on which an attack reaches the exact optimum: five linear members in conflict, d = 20, with equal "
    "probabilities and with unequal ones (from a Dirichlet distribution, every member foolable alone); the least of "
    "the four shares."
)
ATTACKS = ("saddle", "standard", "lattice", "arc-r")
KINDS: dict[str, Callable[..., Planted]] = {"equal": planted, "unequal": unequal}
INPUTS = 20


def rows(settings: Settings) -> Iterator[Row]:
    ensembles = 1 if settings.quick else 3
    cases: dict[str, list[Planted]] = {
        f"{norm} {kind}": [KINDS[kind](norm, n=INPUTS, seed=seed) for seed in range(ensembles)]
        for kind in KINDS
        for norm in ("l2", "linf")
    }
    optima = {name: [truth(case) for case in planted_cases] for name, planted_cases in cases.items()}
    for name in ATTACKS:
        shares, forwards, backwards = {}, 0, 0
        for setting, members in cases.items():
            found = [attacks.create(name, case.threat)(case.rec, case.x, case.y) for case in members]
            solved = [share_solved(f.risk, best) for f, best in zip(found, optima[setting], strict=True)]
            shares[setting] = 100 * float(np.mean(solved))
            forwards += sum(f.cost.forwards for f in found)
            backwards += sum(f.cost.backwards for f in found)
        count = len(cases) * ensembles * INPUTS
        each = ", ".join(f"{setting} {share:.1f}" for setting, share in shares.items())
        note = f"{each}; {forwards / count:.0f} + {backwards / count:.0f} passes"
        yield Row(f"{name}, share solved", min(shares.values()), unit="%", note=note)
