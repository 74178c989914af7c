"""Choose the sampling probabilities of a profile: one function for all methods."""

from __future__ import annotations

from typing import Any, overload

from numpy.typing import ArrayLike

from randens.core.errors import InputError, unknown
from randens.risk.candidate_sets import candidate_sampling
from randens.risk.certificate import Sampling
from randens.risk.confidence import ConfidentSampling, confident_sampling
from randens.risk.exact_lp import exact_sampling
from randens.risk.profile import RiskProfile
from randens.risk.subgradient import subgradient_sampling

__all__ = ["optimal_sampling"]

_OPTIONS = {
    "exact": ("tol", "max_iterations"),
    "subgradient": ("iterations", "step", "start"),
    "candidates": (),
    "confidence": ("reference", "tol", "max_iterations"),
}


@overload
def optimal_sampling(
    profile: RiskProfile, *, confidence: float, **options: Any
) -> ConfidentSampling: ...  # pragma: no cover


@overload
def optimal_sampling(
    profile: RiskProfile, method: str | None = None, clean_risks: ArrayLike | None = None, **options: Any
) -> Sampling: ...  # pragma: no cover


def optimal_sampling(
    profile: RiskProfile,
    method: str | None = None,
    clean_risks: ArrayLike | None = None,
    *,
    confidence: float | None = None,
    **options: Any,
) -> Sampling:
    """Minimise η(α); return the probabilities with a bound on their distance from the optimum.

    Parameters
    ----------
    profile : RiskProfile
        What attacks have found.
    method : str
        ``"exact"`` (cutting planes with a certificate; any M), ``"subgradient"`` (Algorithm 1), ``"candidates"``
        (M ≤ 5, Theorem 2) or ``"confidence"`` (the smallest upper confidence bound of the true risk). Default:
        ``"confidence"`` where a confidence is given, else ``"exact"``.
    clean_risks : array, optional
        [M], decides between equally good probabilities; the subgradient method ignores it, because it returns the
        one point it found. Between equal confidence bounds the reference (uniform) is chosen.
    confidence : float, optional
        Of the upper confidence bound, 0.95 by default.
    **options
        Of `exact_sampling`, `subgradient_sampling`, `candidate_sampling` or `confident_sampling`.

    Returns
    -------
    Sampling
        Probabilities, risk, lower bound and certificate.

    Examples
    --------
    >>> import randens
    >>> profile = randens.risk.RiskProfile.from_configurations([[(1, 0), (0, 1)], [(1, 1)]], [0.6, 0.4])
    >>> optimal_sampling(profile).risk
    0.7
    """
    if not isinstance(profile, RiskProfile):
        raise InputError(f"profile must be a RiskProfile, got {type(profile).__name__}")
    if method is None:
        method = "exact" if confidence is None else "confidence"
    if method not in _OPTIONS:
        unknown("sampling method", method, _OPTIONS)
    for name in options:
        if name not in _OPTIONS[method]:
            unknown(f"option of method={method!r}", name, _OPTIONS[method])
    if confidence is not None and method != "confidence":
        raise InputError(
            f"confidence is {confidence!r}, which method={method!r} does not take; drop one of them"
        )
    if method == "confidence":
        return confident_sampling(profile, 0.95 if confidence is None else confidence, **options)
    if method == "exact":
        return exact_sampling(profile, clean_risks=clean_risks, **options)
    if method == "candidates":
        return candidate_sampling(profile, clean_risks=clean_risks)
    return subgradient_sampling(profile, **options)
