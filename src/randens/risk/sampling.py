"""Choosing the sampling probabilities of a profile: one name for the three methods."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from randens.errors import InputError, unknown
from randens.risk.candidates import candidate_sampling
from randens.risk.exact import exact_sampling
from randens.risk.profile import RiskProfile
from randens.risk.result import Sampling
from randens.risk.subgradient import subgradient_sampling

__all__ = ["optimal_sampling"]

_OPTIONS = {
    "exact": ("tol", "max_iterations"),
    "subgradient": ("iterations", "step", "start"),
    "candidates": (),
}


def optimal_sampling(
    profile: RiskProfile,
    method: str = "exact",
    clean_risks: ArrayLike | None = None,
    **options: Any,
) -> Sampling:
    """Probabilities that make η(α) small, and how close to the smallest they are.

    method: "exact" (cutting planes with a certificate; any M), "subgradient" (Algorithm 1) or "candidates"
    (M ≤ 5, Theorem 2). clean_risks: [M], decides between equally good probabilities; the subgradient method
    has no use for it, as it returns the one point it found. options: those of `exact_sampling`,
    `subgradient_sampling` or `candidate_sampling`.
    """
    if not isinstance(profile, RiskProfile):
        raise InputError(f"profile must be a RiskProfile, got {type(profile).__name__}")
    if method not in _OPTIONS:
        unknown("sampling method", method, _OPTIONS)
    for name in options:
        if name not in _OPTIONS[method]:
            unknown(f"option of method={method!r}", name, _OPTIONS[method])
    if method == "exact":
        return exact_sampling(profile, clean_risks=clean_risks, **options)
    if method == "candidates":
        return candidate_sampling(profile, clean_risks=clean_risks)
    return subgradient_sampling(profile, **options)
