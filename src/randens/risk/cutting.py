"""Optimal sampling probabilities when η is known only at attacked α.

Witnesses are real perturbations, so the risk over a pool is never above the true one, and its minimum is a
lower bound for every attack. An attack at the minimiser finds the witnesses that the pool still lacks there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError
from randens.core.progress import Progress, silent
from randens.risk.certificate import Sampling
from randens.risk.checks import as_count, as_probs, frozen
from randens.risk.confidence import ConfidentSampling, confident_sampling, upper_bound
from randens.risk.exact_lp import exact_sampling
from randens.risk.profile import RiskProfile

__all__ = ["Oracle", "Solver", "AfterSweep", "cutting_planes"]

Oracle = Callable[[NDArray[np.float64]], RiskProfile]
"""Attacks every input at the given probabilities; returns the profile of the pool of everything found.

The pool must only grow, and the same inputs must be attacked every time.
"""

AfterSweep = Callable[[NDArray[np.float64], float, float, float], None]
"""Called as watch(probs attacked, their risk, the best risk so far, lower bound) after every sweep."""


Solver = Callable[[RiskProfile], Sampling]
"""Probabilities that are good against a profile, with a lower bound on the risk of any others."""


def cutting_planes(
    oracle: Oracle,
    start: ArrayLike,
    *,
    tol: float = 1e-3,
    max_sweeps: int = 20,
    clean_risks: ArrayLike | None = None,
    confidence: float | None = None,
    progress: Progress | None = None,
    watch: AfterSweep | None = None,
    solver: Solver | None = None,
    tried: Sequence[ArrayLike] = (),
    profile: RiskProfile | None = None,
) -> Sampling:
    """Alternate between attacking at α and minimising the risk over everything found, until they agree.

    The result's risk is the lowest that the final pool gives to any α that was attacked; its lower bound and
    certificate refer to the same pool. With an exact oracle the gap is a true optimality gap; with an attack
    it says "optimal against every witness found". Stops when the gap is at most `tol`, when the pool's own minimiser
    has been attacked, or after `max_sweeps` sweeps over the inputs.

    Parameters
    ----------
    oracle : callable
        Attacks every input at α and returns the profile of everything found so far.
    start : array [M]
        The probabilities attacked first.
    tol : float
        The gap at which to stop.
    max_sweeps : int
        The largest number of calls of the oracle.
    clean_risks : array [M], optional
        Of equally good probabilities, those with the lower clean risk are chosen.
    confidence : float
        Minimise the upper confidence bound of the risk's excess over that of uniform probabilities instead
        (`confident_sampling`).
    progress : callable, optional
        Called as progress(task, done, total).
    watch : callable
        Called after every sweep.
    solver : callable
        Minimises the risk over the pool. The default is exact; only an exact solver proves a lower bound.
    tried, profile : sequence of probabilities, RiskProfile
        Probabilities attacked before, and the profile of the resulting pool. With them the first sweep, if
        one is needed, is at the pool's minimiser and not at `start`.

    Returns
    -------
    Sampling
        `.probs`, `.risk`, `.lower_bound`, `.sweeps`.

    Examples
    --------
    >>> profile = RiskProfile.from_configurations([[(1, 0), (0, 1)]])       # either member, never both
    >>> cutting_planes(lambda probs: profile, [1.0, 0.0]).probs.tolist()
    [0.5, 0.5]
    """
    alpha = as_probs(start, name="start")
    if not 0 <= tol < np.inf:
        raise InputError(f"tol must be a number of at least 0, got {tol!r}")
    limit = as_count("max_sweeps", max_sweeps)
    report = progress or silent
    solve = solver or (lambda pool: _lowest(pool, clean_risks, confidence))
    attacked = [as_probs(point, name="tried") for point in tried] if profile is not None else []
    sweeps = iterations = 0
    while True:
        if profile is None or sweeps or not attacked:
            profile = oracle(alpha)
            if profile.members != len(alpha):
                raise InputError(
                    f"start has {len(alpha)} values where the oracle attacks {profile.members} members"
                )
            attacked.append(alpha)
            sweeps += 1
            report("sampling", sweeps, limit)
        lowest = solve(profile)
        iterations += lowest.iterations
        # The pool has grown since earlier points were attacked, and may hold worse witnesses for them.
        risks = [_objective(profile, point, confidence) for point in attacked]
        clean = np.zeros(len(alpha)) if clean_risks is None else np.asarray(clean_risks, dtype=np.float64)
        best = min(range(len(risks)), key=lambda k: (risks[k], float(attacked[k] @ clean)))
        if watch is not None:
            watch(attacked[-1], risks[-1], risks[best], lowest.lower_bound)
        settled = any(np.allclose(lowest.probs, point, rtol=0, atol=1e-9) for point in attacked)
        if risks[best] - lowest.lower_bound <= tol or settled or sweeps >= limit:
            break
        alpha = lowest.probs
        profile = profile if sweeps else None
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
    return confident_sampling(profile, confidence, reference="uniform")


def _objective(profile: RiskProfile, probs: NDArray[np.float64], confidence: float | None) -> float:
    """What `_lowest` minimises."""
    if confidence is None:
        return profile.risk(probs)
    return upper_bound(profile, probs, confidence, reference="uniform")
