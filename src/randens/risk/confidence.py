"""Choose sampling probabilities by an upper confidence bound of the risk, not by the risk on these inputs.

With r_k(α) = max_{u ∈ U_k} u·α the risk at inputs of configuration k and p_k their frequency among n inputs, the
bound is the worst mean over all weights q of the inputs near p:

    U(α) = max_q Σ_k q_k (r_k(α) − c_k),   q ≥ 0,  Σ q_k = 1,  Σ_k (q_k − p_k)²/p_k ≤ z²/(n − 1).

Where the worst q is positive, U is mean + z·sd/√n of r − c over the inputs; elsewhere it is smaller. It is convex in α,
so cutting planes minimize it and prove the minimum.

c = 0 bounds the risk itself for all α at once, so that the bound holds for the α chosen: z is the quantile of
sup_α (η − η̂)/sd by a multiplier bootstrap, and one input at which all members are fooled is added, because few inputs
say little about rare errors. c_k = r_k(β) bounds the excess over the risk of a reference β: the chosen α differs from β
only if the inputs speak for it; here z is the normal quantile, a rule to choose by. Both are about the perturbations
found: a stronger attack can raise the risk beyond them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from randens.core.errors import InputError, shown, typed
from randens.risk.optimal import Sampling, minimize_by_cuts
from randens.risk.profile import RiskProfile
from randens.risk.sets import as_number, as_probs, frozen, unpack

_FEASIBLE = 1e-9
_TINY = 1e-4
_REPLICATES = 500
_CLIMBS = 4


@dataclass(frozen=True, eq=False)
class _Ball:
    """All weights q near those of `profile`, by χ² distance at most `radius`, and the offsets c [K] of its risks."""

    profile: RiskProfile
    offsets: NDArray[np.float64]
    radius: float

    @classmethod
    def of(cls, profile: RiskProfile, confidence: float, reference: NDArray[np.float64] | None) -> _Ball:
        """The ball whose worst mean is U at this confidence."""
        share = as_number("confidence", confidence, 0.5, 1.0)
        if profile.size is None or profile.size < 2:
            raise InputError(f"the profile's size is {profile.size}; a confidence needs at least 2 inputs")
        if reference is not None:
            counted, offsets = profile, profile.configuration_risks(reference)
        else:
            counted = profile.merge(RiskProfile.from_configurations([np.ones((1, profile.members))]))
            offsets = np.zeros(len(counted.weights))
        z = NormalDist().inv_cdf(share) if reference is not None else simultaneous_quantile(counted, share)
        return cls(counted, offsets, z * z / (profile.size - 1))

    def cut(self, probs: NDArray[np.float64]) -> NDArray[np.float64]:
        """g [M] with g·α = U(α) here, and never above U elsewhere."""
        sets = unpack(self.profile.masks[self.profile.best_rows(probs)], self.profile.members)
        q = worst_weights(self.profile.weights, sets @ probs - self.offsets, self.radius)
        # Probabilities sum to 1, so a constant added to all coefficients keeps a cut linear in α.
        return q @ sets - float(q @ self.offsets)

    def bound(self, probs: NDArray[np.float64]) -> float:
        """U(α)."""
        return float(self.cut(probs) @ probs)


@typed(profile=RiskProfile)
def confident_sampling(
    profile: RiskProfile,
    confidence: float = 0.95,
    *,
    reference: ArrayLike | str | None = None,
    tol: float = 1e-6,
    max_iterations: int = 2000,
) -> Sampling:
    """α with the smallest upper confidence bound; no other has one below `lower_bound`.

    profile: its `size` must be known. confidence: one-sided, between ½ and 1. reference: None bounds the risk itself;
    β [M] or "uniform" the excess over the risk of β. tol: the gap at which to stop; if the reference is within `tol`
    of the best, it is returned.

    >>> one = RiskProfile.from_configurations([[(1, 0)]] * 3 + [[(0, 1)]] * 2 + [[]] * 15)
    >>> confident_sampling(one, reference="uniform").probs.tolist()   # one input more is no reason to prefer a member
    [0.5, 0.5]
    """
    beta, tol = _reference(reference, profile.members), as_number("tol", tol)
    ball = _Ball.of(profile, confidence, beta)
    start = np.full(profile.members, 1.0 / profile.members) if beta is None else beta
    found = minimize_by_cuts(ball.cut, start, tol, max_iterations)
    best, value = found.probs, found.value
    # Tiny values of the solver are set to 0, and the start is preferred, if the bound does not grow.
    tidied = np.where(best < _TINY, 0.0, best)
    for point in (tidied / tidied.sum(), start):
        if (there := ball.bound(point)) <= found.value + tol:
            best, value = point, there
    return Sampling(
        probs=frozen(best.copy()),
        risk=profile.risk(best),
        lower_bound=min(found.lower_bound, value),
        method="confidence",
        iterations=len(found.points),
        upper=value if beta is None else upper_bound(profile, best, confidence),
        objective=value,
        confidence=float(confidence),
    )


@typed(profile=RiskProfile)
def upper_bound(
    profile: RiskProfile, probs: ArrayLike, confidence: float = 0.95, reference: ArrayLike | str | None = None
) -> float:
    """U(α): an upper bound of the risk over the distribution, for all α at once; or of the excess over a reference."""
    alpha = as_probs(probs, profile.members)
    return _Ball.of(profile, confidence, _reference(reference, profile.members)).bound(alpha)


def worst_weights(
    weights: NDArray[np.float64], values: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """q [K] maximizing q·values over q ≥ 0, Σ q = 1, Σ (q − p)²/p ≤ radius; p are `weights`, all positive.

    The optimum is q_k ∝ p_k max(0, values_k − η). With the t largest distinct values above η, P their frequency, m
    and v mean and variance over them, η = m − √(v / ((1 + radius)·P − 1)), between the least of them and the next.
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


def simultaneous_quantile(profile: RiskProfile, confidence: float) -> float:
    """z with P(η(α) ≤ η̂(α) + z·sd(α)/√n for all α) ≈ confidence, by a Gaussian multiplier bootstrap.

    Every replicate perturbs the inputs' weights and maximizes the studentized change over α: with the worst sets
    held fixed, g·α/√(αᵀCα) over α ≥ 0 is a non-negative least-squares problem; then the sets are chosen anew.
    """
    generator = np.random.default_rng(0)
    p, members = profile.weights, profile.members
    highest = []
    for _ in range(_REPLICATES):
        noise = np.sqrt(p) * generator.standard_normal(len(p))
        noise -= p * noise.sum()
        alpha, best = np.full(members, 1.0 / members), -np.inf
        for _ in range(_CLIMBS):
            sets = unpack(profile.masks[profile.best_rows(alpha)], members).astype(np.float64)
            mean = p @ sets
            covariance = (sets * p[:, None]).T @ sets - np.outer(mean, mean) + _FEASIBLE * np.eye(members)
            change = noise @ sets
            ratio = float(change @ alpha) / math.sqrt(float(alpha @ covariance @ alpha))
            if ratio <= best:
                break
            best = ratio
            root = np.linalg.cholesky(covariance)
            direction, _ = nnls(root.T, np.linalg.solve(root, change))
            if not direction.any():  # no α raises the risk in this replicate
                break
            alpha = direction / direction.sum()
        highest.append(best)
    return max(NormalDist().inv_cdf(confidence), float(np.quantile(highest, confidence)))


def _reference(reference: ArrayLike | str | None, members: int) -> NDArray[np.float64] | None:
    if isinstance(reference, str):
        if reference != "uniform":
            raise InputError(f"reference is {shown(reference)}; give 'uniform', probabilities or None")
        return np.full(members, 1.0 / members)
    return None if reference is None else as_probs(reference, members, "reference")
