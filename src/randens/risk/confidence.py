"""Choose sampling probabilities by an upper confidence bound of the true risk, not by the risk on these inputs.

With r_k(α) = max_{u ∈ U_k} u·α the risk at inputs of configuration k and p_k their frequency among n inputs, the
bound is the worst mean over all weights q of the inputs near p (distributionally robust, χ² ball):

    U(α) = max_q Σ_k q_k (r_k(α) − c_k),   q ≥ 0,  Σ q_k = 1,  Σ_k (q_k − p_k)²/p_k ≤ z²/(n − 1).

Where the worst q is positive, U is exactly mean + z·sd/√n of r − c over the inputs; elsewhere it is smaller. In this
form it is convex in α and grows with every r_k, so cutting planes minimise it and prove the minimum: a cut is a weight
q of the ball together with one fooled set per configuration, and mixtures of cuts are of the same kind.

c = 0 bounds the risk itself. The bound is smaller for mixtures of members, whose risk varies less over the inputs.
c_k = r_k(β) bounds the excess of the risk over that of a reference β, for example uniform. The difference is paired
over the inputs, so that variation common to all α does not count as noise. U(β) is then 0, and the chosen α
differs from β only if the inputs show, at the given confidence, that it is better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, ModelError
from randens.core.files import picked
from randens.risk.certificate import Certificate, Sampling
from randens.risk.checks import as_count, as_positive, as_probs, as_share, frozen
from randens.risk.lp import CutProgram
from randens.risk.profile import RiskProfile
from randens.risk.sets import unpack

__all__ = [
    "ConfidenceCertificate",
    "ConfidentSampling",
    "confident_sampling",
    "upper_bound",
    "worst_weights",
]

_STEP = 0.3
_FEASIBLE = 1e-9
_TINY = 1e-4


@dataclass(frozen=True, eq=False, repr=False)
class ConfidenceCertificate(Certificate):
    """The attacker's mixed strategy with weights of the inputs chosen in the χ² ball around p.

    With q_k = Σ_u mass_{k,u} in the ball, every α has U(α) ≥ Σ mass_{k,u} u·α − Σ q_k c_k ≥ bound. radius: that of the
    ball, z²/(n − 1). reference: β [M], or None for c = 0.
    """

    radius: float = 0.0
    reference: NDArray[np.float64] | None = None

    def verify(self, profile: RiskProfile) -> bool:
        """Whether this proves U(α) ≥ bound for every α of that profile, up to rounding: sums, no solver."""
        q = self._played(profile)
        if q is None:
            return False
        away = float((((q - profile.weights) ** 2) / profile.weights).sum())
        if abs(float(q.sum()) - 1.0) > _FEASIBLE or away > self.radius * (1 + _FEASIBLE) + _FEASIBLE:
            return False
        fooled = self.mass @ unpack(self.masks, self.members)
        return bool(fooled.min() - float(q @ _offsets(profile, self.reference)) >= self.bound - _FEASIBLE)

    def to_json(self) -> dict[str, Any]:
        """As the certificate of the risk, with the ball's radius and the reference."""
        extra = {"format": "randens.confidence-certificate", **picked(self, "radius reference")}
        return {**super().to_json(), **extra}


@dataclass(frozen=True, eq=False)
class ConfidentSampling(Sampling):
    """Probabilities with the smallest upper confidence bound.

    upper: the bound of the true risk η(α), one-sided at `confidence`. It treats the probabilities as if they
    had been fixed before (see `cross_fit` for the risk including the choice). objective: what was minimised,
    U(α) with the reference's c; lower_bound: no probabilities have a smaller objective.
    """

    upper: float = field(default=math.nan, kw_only=True)
    objective: float = field(default=math.nan, kw_only=True)
    confidence: float = field(default=0.95, kw_only=True)

    @property
    def gap(self) -> float:
        """objective − lower_bound, never below 0."""
        return max(0.0, self.objective - self.lower_bound)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {**super().to_json(), **picked(self, "upper objective confidence")}


def confident_sampling(
    profile: RiskProfile,
    confidence: float = 0.95,
    *,
    reference: ArrayLike | str | None = None,
    tol: float = 1e-6,
    max_iterations: int = 2000,
) -> ConfidentSampling:
    """α with the smallest upper confidence bound of the true risk, and a proof that no other has a smaller one.

    Parameters
    ----------
    profile : RiskProfile
        η on n inputs; its `size` must be known.
    confidence : float
        One-sided, between ½ and 1; a larger confidence favours mixtures.
    reference : array [M], str or None
        None: bound the risk itself. β [M] or "uniform": bound the excess over the risk of β, so that α
        differs from β only if the inputs give enough evidence.
    tol : float
        The gap at which to stop. If the reference is within `tol` of the best, it is returned.
    max_iterations : int
        The largest number of cutting planes.

    Returns
    -------
    ConfidentSampling
        `.probs`, `.risk` on these inputs, `.upper`, `.lower_bound` with `.certificate`.

    Examples
    --------
    >>> one = RiskProfile.from_configurations([[(1, 0)]] * 3 + [[(0, 1)]] * 2 + [[]] * 15)
    >>> confident_sampling(one, reference="uniform").probs.tolist()   # one input more is no reason to prefer a member
    [0.5, 0.5]
    """
    share, radius = as_confidence(confidence), ball(profile, confidence)
    tol, limit = as_positive("tol", tol), as_count("max_iterations", max_iterations)
    members = profile.members
    beta = _reference(reference, members)
    offsets = _offsets(profile, beta)
    start = np.full(members, 1.0 / members) if beta is None else beta

    point, best, value = start, start, np.inf
    program, rows, weights = CutProgram(members), [], []
    for _ in range(limit):
        chosen = profile.best_rows(point)
        fooled = unpack(profile.masks[chosen], members)
        q = worst_weights(profile.weights, fooled @ point - offsets, radius)
        # The probabilities sum to 1, so a constant added to all coefficients keeps a cut linear in α.
        cut = q @ fooled - float(q @ offsets)
        rows.append(chosen)
        weights.append(q)
        program.add(cut)
        if float(cut @ point) < value:
            value, best = float(cut @ point), point
        target, multipliers = program.lowest()
        gap = value - float((multipliers @ program.cuts).min())
        if gap <= tol:
            break
        point = (1.0 - _STEP) * best + _STEP * target
    else:
        raise ModelError(
            f"cutting planes left a gap of {gap:.3g} after {limit} iterations; raise max_iterations or tol"
        )
    first = float(program.cuts[0] @ start)
    if first <= value + tol:
        best, value = start, first
    # Tiny values of the solver are set to 0 if the bound does not grow.
    clean = np.where(best < _TINY, 0.0, best)
    clean /= clean.sum()
    rounded = _bound(profile, clean, offsets, radius)
    if rounded <= value + tol:
        best, value = clean, rounded
    mass = np.zeros(len(profile.masks))
    for chosen, q, multiplier in zip(rows, weights, multipliers.tolist(), strict=True):
        mass[chosen] += multiplier * q
    certificate = _certificate(profile, mass, radius, beta)
    return ConfidentSampling(
        probs=frozen(best.copy()),
        risk=profile.risk(best),
        lower_bound=min(certificate.bound, value),
        method="confidence",
        iterations=len(rows),
        certificate=certificate,
        upper=upper_bound(profile, best, confidence),
        objective=value,
        confidence=share,
    )


def upper_bound(
    profile: RiskProfile,
    probs: ArrayLike,
    confidence: float = 0.95,
    reference: ArrayLike | str | None = None,
) -> float:
    """U(α): a one-sided upper confidence bound of the true risk at α, or of its excess over the reference's.

    Parameters
    ----------
    profile, confidence, reference
        As for `confident_sampling`.
    probs : array [M]
        α.

    Returns
    -------
    float
        The bound.

    Examples
    --------
    >>> profile = RiskProfile.from_configurations([[(1, 0)]] * 30 + [[]] * 70)
    >>> profile.risk([1, 0]) < upper_bound(profile, [1, 0]) < upper_bound(profile, [1, 0], 0.99)
    True
    """
    offsets = _offsets(profile, _reference(reference, profile.members))
    return _bound(profile, as_probs(probs, profile.members), offsets, ball(profile, confidence))


def _bound(
    profile: RiskProfile, probs: NDArray[np.float64], offsets: NDArray[np.float64], radius: float
) -> float:
    values = profile.configuration_risks(probs) - offsets
    return float(worst_weights(profile.weights, values, radius) @ values)


def worst_weights(
    weights: NDArray[np.float64], values: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """q [K] maximising q·values over q ≥ 0, Σ q = 1, Σ (q − p)²/p ≤ radius; p are `weights`, all positive.

    The optimum is q_k ∝ p_k max(0, values_k − η). With the t largest distinct values above η, P their frequency, m
    and v mean and variance over them, η = m − √(v / ((1 + radius)·P − 1)); the right t has η between its least value
    and the next one.
    """
    levels, group = np.unique(-values, return_inverse=True)
    p = np.bincount(group, weights=weights)
    above = -levels
    total = np.cumsum(p)
    mean = np.cumsum(p * above) / total
    spread = np.maximum(np.cumsum(p * above**2) / total - mean**2, 0.0)
    room = (1.0 + radius) * total - 1.0
    threshold = -np.inf
    for t in range(len(above)):
        if room[t] <= 0:
            continue
        threshold = float(mean[t] - math.sqrt(spread[t] / room[t]))
        if t + 1 == len(above) or threshold >= above[t + 1]:
            break
    lifted = weights * np.maximum(0.0, values - threshold)
    if not lifted.any():
        # The ball contains the q with all weight on the largest value.
        lifted = np.where(values == above[0], weights, 0.0)
    return np.asarray(lifted / lifted.sum(), dtype=np.float64)


def as_confidence(value: object) -> float:
    """A confidence above ½."""
    share = as_share("confidence", value)
    if share <= 0.5:
        raise InputError(f"confidence is {share:g}; it must lie above 0.5 and below 1, e.g. 0.95")
    return share


def ball(profile: RiskProfile, confidence: float) -> float:
    """The radius z²/(n − 1) of the χ² ball."""
    if profile.size is None:
        raise InputError("the profile's size is unknown; a confidence needs the number of inputs behind it")
    if profile.size < 2:
        raise InputError(f"the profile's size is {profile.size}; a confidence needs at least 2 inputs")
    return NormalDist().inv_cdf(as_confidence(confidence)) ** 2 / (profile.size - 1)


def _reference(reference: ArrayLike | str | None, members: int) -> NDArray[np.float64] | None:
    if reference is None:
        return None
    if isinstance(reference, str):
        if reference != "uniform":
            raise InputError(f"reference is {reference!r}; give 'uniform', probabilities or None")
        return np.full(members, 1.0 / members)
    return as_probs(reference, members, "reference")


def _offsets(profile: RiskProfile, reference: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """c [K]."""
    return np.zeros(len(profile.weights)) if reference is None else profile.configuration_risks(reference)


def _certificate(
    profile: RiskProfile, mass: NDArray[np.float64], radius: float, reference: NDArray[np.float64] | None
) -> ConfidenceCertificate:
    rows = np.flatnonzero(mass)
    mass, where, masks = mass[rows] / mass.sum(), profile.owners[rows], profile.masks[rows]
    lowest = float((mass @ unpack(masks, profile.members)).min())
    bound = lowest - float(mass @ _offsets(profile, reference)[where])
    return ConfidenceCertificate(
        profile.members, frozen(where), frozen(masks), frozen(mass), bound, radius, reference
    )
