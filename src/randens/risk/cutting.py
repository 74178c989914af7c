"""Optimal sampling probabilities when η is only known where it has been attacked.

Witnesses are real perturbations, so the risk over a pool of them is never above the true one: minimising it
gives a lower bound, whatever the attack. Attacking at the minimiser finds what the pool still lacks there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.errors import InputError
from randens.progress import Progress, silent
from randens.risk.checks import as_count, as_probs, frozen
from randens.risk.confidence import ConfidentSampling, confident_sampling, upper_bound
from randens.risk.exact import exact_sampling
from randens.risk.profile import RiskProfile
from randens.risk.result import Sampling

__all__ = ["Oracle", "Watch", "cutting_planes"]

Oracle = Callable[[NDArray[np.float64]], RiskProfile]
"""Attacks every input at the given probabilities, keeps what it finds in a pool, and returns the pool's
profile.

The pool must only grow, and the same inputs must be attacked every time.
"""

Watch = Callable[[NDArray[np.float64], float, float, float], None]
"""Called as watch(probs attacked, their risk, the best risk so far, lower bound) after every sweep."""


def cutting_planes(
    oracle: Oracle,
    start: ArrayLike,
    *,
    tol: float = 1e-3,
    max_sweeps: int = 20,
    clean_risks: ArrayLike | None = None,
    confidence: float | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Sampling:
    """Alternate between attacking at α and minimising the risk over everything found, until they agree.

    The result's risk is the lowest that the final pool gives to any α that was attacked; its lower bound and
    certificate refer to the same pool. With an exact oracle the gap is a true optimality gap; with an attack
    it says "optimal against every witness found". With `confidence` the upper confidence bound of
    `confident_sampling` is minimised in place of the risk. `watch` is told of every
    sweep. Stops when the gap is at most `tol`, when a sweep at the
    pool's own minimiser finds nothing new, or after `max_sweeps` sweeps over the inputs.
    """
    alpha = as_probs(start, name="start")
    if not 0 <= tol < np.inf:
        raise InputError(f"tol must be a number of at least 0, got {tol!r}")
    limit = as_count("max_sweeps", max_sweeps)
    report = progress or silent
    attacked: list[NDArray[np.float64]] = []
    iterations = 0
    while True:
        profile = oracle(alpha)
        if profile.members != len(alpha):
            raise InputError(
                f"start has {len(alpha)} values where the oracle attacks {profile.members} members"
            )
        attacked.append(alpha)
        report("sampling", len(attacked), limit)
        lowest = _lowest(profile, clean_risks, confidence)
        iterations += lowest.iterations
        # The pool has grown since the earlier points were attacked, and may now hold worse witnesses for
        # them.
        risks = [_objective(profile, point, confidence) for point in attacked]
        best = int(np.argmin(risks))
        if watch is not None:
            watch(alpha, risks[-1], risks[best], lowest.lower_bound)
        settled = any(np.array_equal(lowest.probs, point) for point in attacked)
        if risks[best] - lowest.lower_bound <= tol or settled or len(attacked) == limit:
            break
        alpha = lowest.probs
    report("sampling", limit, limit)
    probs = attacked[best]
    same = np.array_equal(probs, lowest.probs)
    if isinstance(lowest, ConfidentSampling) and confidence is not None:
        lowest = replace(lowest, objective=risks[best], upper=upper_bound(profile, probs, confidence))
    return replace(
        lowest,
        probs=frozen(probs.copy()),
        risk=profile.risk(probs),
        lower_bound=min(lowest.lower_bound, risks[best]),
        method="cutting-planes",
        iterations=iterations,
        exact_probs=lowest.exact_probs if same else None,
        sweeps=len(attacked),
    )


def _lowest(profile: RiskProfile, clean_risks: ArrayLike | None, confidence: float | None) -> Sampling:
    if confidence is None:
        return exact_sampling(profile, clean_risks=clean_risks)
    return confident_sampling(profile, confidence)


def _objective(profile: RiskProfile, probs: NDArray[np.float64], confidence: float | None) -> float:
    """What `_lowest` minimises."""
    if confidence is None:
        return profile.risk(probs)
    return upper_bound(profile, probs, confidence, reference="uniform")
