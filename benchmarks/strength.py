"""Strength of attacks where the optimum is known: linear members in conflict, share of inputs solved exactly.

M = 5, d = 20, ten ensembles of twenty inputs per norm, from the generator that the tests use.

    python -m benchmarks.strength
    python -m benchmarks.strength --norm l2 --ensembles 2 --json strength.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.attacks.planted import planted, share_solved, truth

from randens import attacks
from randens.files import write_json

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pgd", {}),
    ("apgd-s", {}),
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--norm", choices=("l2", "linf"), nargs="*", default=["l2", "linf"])
    parser.add_argument("--ensembles", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for norm in options.norm:
        cases = [planted(norm, n=20, seed=seed) for seed in range(options.ensembles)]
        optima = [truth(case) for case in cases]
        for name, settings in CASES:
            start = time.perf_counter()
            shares, forwards, backwards = [], 0, 0
            for case, optimum in zip(cases, optima, strict=True):
                found = attacks.create(name, case.threat, **settings)(case.rec, case.x, case.y)
                shares.append(share_solved(found.risk, optimum))
                forwards += found.cost.forwards
                backwards += found.cost.backwards
            inputs = 20 * len(cases)
            row = {
                "norm": norm,
                "attack": name,
                "settings": settings,
                "share": float(np.mean(shares)),
                "forwards": forwards / inputs,
                "backwards": backwards / inputs,
                "seconds": time.perf_counter() - start,
            }
            rows.append(row)
            print(
                f"{norm:4} {name:8} {settings!s:24} solved {row['share']:6.1%}  passes per input "
                f"{row['forwards']:.0f} forward, {row['backwards']:.0f} backward"
            )
    if options.json:
        write_json(options.json, rows)


if __name__ == "__main__":
    main()
