"""Exact sampling probabilities against the subgradient method, over ensemble sizes and numbers of inputs.

For every case: seconds to build the profile, seconds and gap of the exact method, and how far above the optimum
Algorithm 1 ends after 10 and 100 sweeps over the inputs. Here a sweep is a look-up in the profile; with real
attacks a sweep attacks every input once, so the iterations are what costs.

    python benchmarks/sampling.py
    python benchmarks/sampling.py --members 5 16 --inputs 10000 --json sampling.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from randens.files import write_json
from randens.risk import RiskProfile, best_step, exact_sampling, subgradient_sampling

T = TypeVar("T")

SWEEPS = (10, 100)
STEPS = ("a*", "a=1", "a=3")


def witnesses(n: int, members: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Up to twelve witnesses for each of n inputs of differing difficulty; members of differing robustness."""
    rng = np.random.default_rng(seed)
    points = np.repeat(np.arange(n), rng.integers(0, 13, n))
    hardness = rng.beta(0.8, 0.8, n)[points, None] * 1.2
    return points, rng.random((len(points), members)) < np.linspace(0.15, 0.5, members) * hardness


def timed(call: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    value = call()
    return value, time.perf_counter() - start


def measure(n: int, members: int, seed: int) -> dict[str, float]:
    points, fooled = witnesses(n, members, seed)
    profile, build = timed(lambda: RiskProfile.from_witnesses(points, fooled, n))
    best, seconds = timed(lambda: exact_sampling(profile))
    certificate = best.certificate
    if certificate is None:
        raise SystemExit(f"no certificate for M = {members}, n = {n}")
    proven, verify = timed(partial(certificate.verify, profile))
    if not proven:
        raise SystemExit(f"the certificate for M = {members}, n = {n} does not verify")
    row: dict[str, float] = {
        "members": members,
        "inputs": n,
        "configurations": len(profile.weights),
        "build_seconds": build,
        "risk": best.risk,
        "gap": best.gap,
        "exact_seconds": seconds,
        "exact_iterations": best.iterations,
        "verify_seconds": verify,
    }
    start = np.full(members, 1.0 / members)
    for sweeps in SWEEPS:
        for name, step in zip(STEPS, (best_step(start, sweeps), 1.0, 3.0), strict=True):
            call = partial(subgradient_sampling, profile, iterations=sweeps, step=step)
            found, taken = timed(call)
            row[f"T={sweeps} {name} excess"] = found.risk - best.risk
            row[f"T={sweeps} {name} ratio"] = found.risk / best.risk if best.risk else 1.0
            row[f"T={sweeps} {name} theorem4"] = found.theorem4_bound or 0.0
            row[f"T={sweeps} seconds"] = taken
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, nargs="+", default=[2, 3, 5, 8, 12, 16], metavar="M")
    parser.add_argument("--inputs", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000], metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="also write the table to this file")
    options = parser.parse_args()

    # The first call loads the solver; nobody should pay for that in the first row.
    measure(100, 2, options.seed)
    head = f"{'M':>3} {'inputs':>7} {'groups':>6} {'build s':>8} {'exact s':>8} {'cuts':>4} {'risk':>7} {'gap':>6}"
    runs = [f"T={t} {name}" for t in SWEEPS for name in STEPS]
    print(
        "subgradient columns: risk / optimum, with the step a* that is best for Theorem 4, with 1 and with 3"
    )
    print(head + "".join(f" {run:>9}" for run in runs) + f" {f'T={SWEEPS[-1]} s':>8}")
    rows = []
    for members in options.members:
        for n in options.inputs:
            row = measure(n, members, options.seed)
            rows.append(row)
            print(
                f"{members:3d} {n:7d} {row['configurations']:6.0f} {row['build_seconds']:8.3f} "
                f"{row['exact_seconds']:8.3f} {row['exact_iterations']:4.0f} {row['risk']:7.4f} {row['gap']:6.0e}"
                + "".join(f" {row[f'{run} ratio']:9.5f}" for run in runs)
                + f" {row[f'T={SWEEPS[-1]} seconds']:8.3f}",
                flush=True,
            )
    if options.json:
        write_json(options.json, {"seed": options.seed, "rows": rows})


if __name__ == "__main__":
    main()
