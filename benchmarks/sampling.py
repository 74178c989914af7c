"""Exact sampling probabilities against the subgradient method (Algorithm 1), on planted witnesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row, Settings, in_turns
from randens.risk import RiskProfile, Sampling, best_step, exact_sampling, subgradient_sampling

ABOUT = (
    "α with a verified certificate of optimality, against 100 sweeps of the subgradient method (Algorithm 1) with "
    "the step that is best for Theorem 4; planted witnesses of 10,000 inputs."
)
INPUTS = 10_000


def witnesses(n: int, members: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Up to twelve witnesses for each of n inputs of differing difficulty; members of differing robustness."""
    rng = np.random.default_rng(seed)
    points = np.repeat(np.arange(n), rng.integers(0, 13, n))
    hardness = rng.beta(0.8, 0.8, n)[points, None] * 1.2
    return points, rng.random((len(points), members)) < np.linspace(0.15, 0.5, members) * hardness


def measure(members: int, n: int, rounds: int) -> Row:
    """One ensemble size."""
    profile = RiskProfile.from_witnesses(*witnesses(n, members, seed=0), n)
    start = np.full(members, 1.0 / members)

    def subgradient(sweeps: int) -> Sampling:
        return subgradient_sampling(profile, iterations=sweeps, step=best_step(start, sweeps))

    cases: dict[str, Callable[[int], Sampling]] = {
        "exact": lambda _: exact_sampling(profile),
        "subgradient": lambda _: subgradient(100),
    }
    measured = in_turns(cases, rounds)
    best, many = (measured[name].values[-1] for name in cases)
    if best.certificate is None or not best.certificate.verify(profile):
        raise ArithmeticError(f"M = {members}: the certificate of the exact method does not verify")
    ours, theirs = measured["exact"].best, measured["subgradient"].best
    note = (
        f"{best.iterations} sweeps; risk of the other above the optimum: {subgradient(10).risk - best.risk:.1e} "
        f"after 10 sweeps, {many.risk - best.risk:.1e} after 100"
    )
    return Row(f"optimal α, M = {members}", ours, theirs, "s", theirs / ours, "× as fast", note)


def rows(settings: Settings) -> Iterator[Row]:
    measure(2, 100, 1)  # loads the solver, which must not count in the first row
    for members in (3, 8, 16):
        yield measure(members, 1_000 if settings.quick else INPUTS, 2 if settings.quick else 5)
