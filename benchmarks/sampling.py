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
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from randens.files import write_json
from randens.risk import RiskProfile, exact_sampling, subgradient_sampling

T = TypeVar("T")

SWEEPS = (10, 100)


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
    assert best.certificate is not None
    proven, verify = timed(lambda: best.certificate is not None and best.certificate.verify(profile))
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
    for sweeps in SWEEPS:
        found, taken = timed(lambda sweeps=sweeps: subgradient_sampling(profile, iterations=sweeps))  # type: ignore[misc]
        row[f"subgradient_{sweeps}_excess"] = found.risk - best.risk
        row[f"subgradient_{sweeps}_ratio"] = found.risk / best.risk if best.risk else 1.0
        row[f"subgradient_{sweeps}_seconds"] = taken
        row[f"subgradient_{sweeps}_theorem4"] = found.theorem4_bound or 0.0
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
    head = f"{'M':>3} {'inputs':>7} {'groups':>6} {'build s':>8} {'exact s':>8} {'cuts':>4} {'risk':>7} {'gap':>7}"
    print(head + "".join(f" {f'T={t} above':>12} {'ratio':>7} {'s':>7}" for t in SWEEPS))
    rows = []
    for members in options.members:
        for n in options.inputs:
            row = measure(n, members, options.seed)
            rows.append(row)
            print(
                f"{members:3d} {n:7d} {row['configurations']:6.0f} {row['build_seconds']:8.3f} "
                f"{row['exact_seconds']:8.3f} {row['exact_iterations']:4.0f} {row['risk']:7.4f} {row['gap']:7.0e}"
                + "".join(
                    f" {row[f'subgradient_{t}_excess']:12.5f} {row[f'subgradient_{t}_ratio']:7.4f} "
                    f"{row[f'subgradient_{t}_seconds']:7.3f}"
                    for t in SWEEPS
                ),
                flush=True,
            )
    if options.json:
        write_json(options.json, {"seed": options.seed, "rows": rows})


if __name__ == "__main__":
    main()
