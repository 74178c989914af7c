"""Choose the sampling probabilities of a profile, or of an ensemble under attack, and say what each member is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, shown, typed, unknown, whole
from randens.core.files import Plain
from randens.risk.confidence import confident_sampling, upper_bound
from randens.risk.optimal import Sampling, exact_sampling, retried_sampling, subgradient_sampling
from randens.risk.profile import RiskProfile
from randens.risk.sets import as_attempts, as_number, as_probs, as_risks, frozen
from randens.risk.theorems import candidate_sampling

_WORTHLESS = 1e-9  # what a member adds that is no more than rounding

_OPTIONS = {
    "exact": ("tol", "max_iterations"),
    "subgradient": ("iterations", "step", "start"),
    "candidates": (),
    "confidence": ("reference", "tol", "max_iterations"),
}


@typed(profile=RiskProfile, method=str | None)
def optimal_sampling(
    profile: RiskProfile,
    method: str | None = None,
    clean_risks: ArrayLike | None = None,
    *,
    confidence: float | None = None,
    attempts: int | float = 1,
    **options: Any,
) -> Sampling:
    """Minimize η(α); return the probabilities with a bound on their distance from the optimum.

    Parameters
    ----------
    profile : RiskProfile
        What attacks have found.
    method : str
        ``"exact"`` (cutting planes with a certificate; any M), ``"subgradient"`` (Algorithm 1), ``"candidates"``
        (M ≤ 3, Theorems 1 and 2) or ``"confidence"`` (the smallest upper confidence bound). Default:
        ``"confidence"`` where a confidence is given, else ``"exact"``.
    clean_risks : array, optional
        [M], decides between equally good probabilities, for the methods ``"exact"`` and ``"candidates"``.
    confidence : float, optional
        Level of the upper bound, 0.95 by default. `.upper` bounds the risk against the perturbations found for
        all α at once; with ``reference="uniform"`` α minimizes the bound of the excess over uniform instead.
    attempts : int or inf
        Minimize the risk after so many attempts, with a fresh draw for each (method ``"exact"``). That risk is not
        convex: the result is never worse than the probabilities for one attempt, and may be a local optimum.
    **options
        Of `exact_sampling`, `subgradient_sampling` or `confident_sampling`.

    Returns
    -------
    Sampling
        Probabilities, risk, lower bound and certificate.

    Examples
    --------
    >>> import randens
    >>> profile = randens.risk.RiskProfile.from_configurations([[(1, 0), (0, 1)], [(1, 1)]], [0.6, 0.4])
    >>> round(optimal_sampling(profile).risk, 9)
    0.7
    """
    if not isinstance(profile, RiskProfile):
        raise InputError(f"profile must be a RiskProfile, got {type(profile).__name__}")
    method = method or ("exact" if confidence is None else "confidence")
    if method not in _OPTIONS:
        unknown("sampling method", method, _OPTIONS)
    for name in options:
        if name not in _OPTIONS[method]:
            unknown(f"option of method={method!r}", name, _OPTIONS[method])
    if confidence is not None and method != "confidence":
        raise InputError(f"confidence is {shown(confidence)}, which method={method!r} does not take")
    if as_attempts(attempts) != 1:
        if method != "exact" or options:
            raise InputError(
                f"attempts is {shown(attempts)}, which only method='exact' takes, without options"
            )
        return retried_sampling(profile, attempts, clean_risks=clean_risks)
    if method == "confidence":
        return confident_sampling(profile, 0.95 if confidence is None else confidence, **options)
    if method == "exact":
        return exact_sampling(profile, clean_risks=clean_risks, **options)
    if method == "candidates":
        return candidate_sampling(profile, clean_risks=clean_risks)
    return subgradient_sampling(profile, **options)


@dataclass(frozen=True)
class Contribution(Plain):
    """One member: its probability, its risk alone, the best risk without it, and how much higher that is (worth)."""

    member: int
    prob: float
    risk_alone: float
    risk_without: float | None
    worth: float | None
    advice: str


def contributions(profile: RiskProfile, best: Sampling) -> tuple[Contribution, ...]:
    """What each member is good for at the probabilities `best`."""
    if profile.members == 1:
        return (Contribution(0, 1.0, float(profile.member_risks[0]), None, None, "the only member"),)
    found = []
    for i, (prob, alone) in enumerate(zip(best.probs.tolist(), profile.member_risks.tolist(), strict=True)):
        without = exact_sampling(profile.restrict([j for j in range(profile.members) if j != i])).risk
        worth = max(0.0, without - best.risk)
        if prob == 0:
            advice = f"drop member {i}: it is never sampled"
        elif worth <= _WORTHLESS:
            advice = f"member {i} could be replaced: other probabilities do as well without it"
        else:
            advice = f"keep member {i}: without it the risk would rise by {worth:.4f}"
        found.append(Contribution(i, prob, alone, without, worth, advice))
    return tuple(found)


Oracle = Callable[[NDArray[np.float64]], RiskProfile]
"""Attacks every input at the given probabilities; returns the profile of the pool of everything found.

The pool must only grow, and the same inputs must be attacked every time.
"""


@typed(oracle=Callable, tried=Sequence)
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

    Witnesses are real perturbations, so the risk over a pool is never above the true one, and its minimum over α is
    never above the true minimum. An attack at the minimizer finds the witnesses that the pool still lacks there.

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
    if isinstance(tol, bool) or not isinstance(tol, int | float) or not 0 <= tol < 1:
        raise InputError(f"tol is {shown(tol)}; it must be a number from 0 to 1, e.g. 1e-3")
    if confidence is not None:
        confidence = as_number("confidence", confidence, 0.5, 1.0)
    limit = whole("max_sweeps", max_sweeps)
    clean = np.zeros(len(alpha)) if clean_risks is None else as_risks("clean_risks", clean_risks, len(alpha))
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
