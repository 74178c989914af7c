"""Exact sampling probabilities against the subgradient method, over ensemble sizes and numbers of inputs.

For every case: seconds of the exact method, which ends with a verified certificate, against those of Algorithm 1 with
100 sweeps and the step that is best for Theorem 4; robust accuracies (1 − risk) reached by both. Here a sweep is a
look-up in the profile; with real attacks a sweep attacks every input once (cutting_planes.py), so the sweeps are what
costs, and the value reached by 10 sweeps is given, too. Seconds are processor time.

    python -m benchmarks.sampling
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import Fact, Goal, Row, Settings, Side, as_fast, interleaved
from randens.risk import RiskProfile, Sampling, best_step, exact_sampling, subgradient_sampling

SWEEPS = (10, 100)
MEMBERS = (2, 3, 5, 8, 12, 16)
INPUTS = (100, 1_000, 10_000, 100_000)
MOST, AS_FAST = 8, Goal(at_least=1.0)


def witnesses(n: int, members: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Up to twelve witnesses for each of n inputs of differing difficulty; members of differing robustness."""
    rng = np.random.default_rng(seed)
    points = np.repeat(np.arange(n), rng.integers(0, 13, n))
    hardness = rng.beta(0.8, 0.8, n)[points, None] * 1.2
    return points, rng.random((len(points), members)) < np.linspace(0.15, 0.5, members) * hardness


def measure(members: int, n: int, seed: int = 0) -> Row:
    """One ensemble size and number of inputs."""
    profile = RiskProfile.from_witnesses(*witnesses(n, members, seed), n)
    start = np.full(members, 1.0 / members)
    cases: dict[str, Callable[[], Sampling]] = {"exact": partial(exact_sampling, profile)}
    for sweeps in SWEEPS:
        step = best_step(start, sweeps)
        cases[str(sweeps)] = partial(subgradient_sampling, profile, iterations=sweeps, step=step)
    measured = interleaved(cases, repeats=5, seconds=4.0, clock=time.process_time)
    best = measured["exact"].value
    if best.certificate is None or not best.certificate.verify(profile):
        raise ArithmeticError(f"M = {members}, n = {n}: the certificate of the exact method does not verify")
    few, many = (measured[str(sweeps)].value for sweeps in SWEEPS)
    facts: dict[str, Fact] = {
        "members": float(members),
        "inputs": float(n),
        "configurations": float(len(profile.weights)),
        "gap": best.gap,
        "excess_10": few.risk - best.risk,
        "excess_100": many.risk - best.risk,
        "theorem4_100": many.theorem4_bound or 0.0,
    }
    return as_fast(
        f"exact, M = {members}, n = {n}",
        Side("exact", measured["exact"].timing, 1 - best.risk, f"{best.iterations} sweeps"),
        Side(
            f"subgradient, {SWEEPS[1]} sweeps",
            measured[str(SWEEPS[1])].timing,
            1 - many.risk,
            f"{SWEEPS[1]} sweeps",
        ),
        AS_FAST if members <= MOST else None,
        note=f"risk above the optimum: {few.risk - best.risk:.1e} after 10 sweeps, "
        f"{many.risk - best.risk:.1e} after 100; gap of exact {best.gap:.0e}",
        facts=facts,
    )


def rows(settings: Settings) -> Iterator[Row]:
    measure(2, 100)  # The first call loads the solver; it must not count in the first row.
    for members in (2, 8) if settings.quick else MEMBERS:
        for n in INPUTS[:3] if settings.quick else INPUTS:
            yield measure(members, n)


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
