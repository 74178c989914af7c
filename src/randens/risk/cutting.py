"""Optimal sampling probabilities when η is known only at attacked α.

Witnesses are real perturbations, so the risk over a pool is never above the true one, and its minimum over α is never
above the true minimum. An attack at the minimizer finds the witnesses that the pool still lacks there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, whole
from randens.risk.certificate import Sampling
from randens.risk.checks import as_probs, frozen
from randens.risk.confidence import confident_sampling, upper_bound
from randens.risk.optimal import retried_sampling
from randens.risk.profile import RiskProfile

Oracle = Callable[[NDArray[np.float64]], RiskProfile]
"""Attacks every input at the given probabilities; returns the profile of the pool of everything found.

The pool must only grow, and the same inputs must be attacked every time.
"""


def cutting_planes(
    oracle: Oracle,
    start: ArrayLike,
    *,
    tol: float = 1e-3,
    max_sweeps: int = 20,
    clean_risks: ArrayLike | None = None,
    confidence: float | None = None,
    attempts: int | float = 1,
    tried: Sequence[ArrayLike] = (),
) -> Sampling:
    """Alternate between attacking at α and minimizing the risk over everything found, until they agree.

    The risk is the lowest that the final pool gives to an attacked α; lower bound and certificate refer to that pool:
    with an exact oracle the gap is true, with an attack it says "against the perturbations found". Stops when the gap
    is at most `tol`, when the pool's own minimizer has been attacked, or after `max_sweeps` sweeps over the inputs.

    start: the probabilities attacked first. clean_risks: decide between equally good probabilities. confidence:
    minimize the bound of the risk's excess over that of uniform probabilities (`confident_sampling`). attempts:
    minimize the risk after so many attempts. tried: probabilities that the oracle attacked before this call, whose
    witnesses are in its pool.

    >>> profile = RiskProfile.from_configurations([[(1, 0), (0, 1)]])       # either member, never both
    >>> cutting_planes(lambda probs: profile, [1.0, 0.0]).probs.tolist()
    [0.5, 0.5]
    """
    alpha = as_probs(start, name="start")
    if not 0 <= tol < np.inf:
        raise InputError(f"tol must be a number of at least 0, got {tol!r}")
    limit = whole("max_sweeps", max_sweeps)
    clean = np.zeros(len(alpha)) if clean_risks is None else np.asarray(clean_risks, dtype=np.float64)
    attacked = [as_probs(point, len(alpha), name="tried") for point in tried]

    def value(profile: RiskProfile, probs: NDArray[np.float64]) -> float:
        if confidence is not None:
            return upper_bound(profile, probs, confidence, reference="uniform")
        return profile.risk(probs, attempts)

    iterations = 0
    while True:
        profile = oracle(alpha)
        if profile.members != len(alpha):
            raise InputError(f"start has {len(alpha)} values; the oracle attacks {profile.members} members")
        attacked.append(alpha)
        if confidence is not None:
            lowest = confident_sampling(profile, confidence, reference="uniform")
        else:
            lowest = retried_sampling(profile, attempts, clean_risks=clean_risks)
        iterations += lowest.iterations
        # The pool has grown since earlier points were attacked, and may hold worse witnesses for them.
        values = [value(profile, point) for point in attacked]
        best = min(range(len(values)), key=lambda k: (values[k], float(attacked[k] @ clean)))
        settled = any(np.allclose(lowest.probs, point, rtol=0, atol=1e-9) for point in attacked)
        if values[best] - lowest.lower_bound <= tol or settled or len(attacked) >= limit:
            break
        alpha = lowest.probs
    probs = attacked[best]
    if confidence is not None:
        lowest = replace(lowest, objective=values[best], upper=upper_bound(profile, probs, confidence))
    return replace(
        lowest,
        probs=frozen(probs.copy()),
        risk=profile.risk(probs, attempts),
        lower_bound=min(lowest.lower_bound, values[best]),
        method="cutting-planes",
        iterations=iterations,
        sweeps=len(attacked),
    )
