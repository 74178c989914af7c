"""Optimal sampling probabilities of a profile, with proof, by cutting planes; Algorithm 1 (OSP) with Theorem 4's bound.

η is the largest of finitely many linear functions g·α. The linear program min s, s ≥ g·α for the g found so far, bounds
it from below; its multipliers average the attacks behind the cuts into the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from randens.core.errors import InputError, ModelError, typed, whole
from randens.core.files import plain
from randens.risk.profile import RiskProfile
from randens.risk.sets import Masks, as_attempts, as_number, as_probs, as_risks, as_vector, frozen, unpack

_TIGHT = 1e-10
_ROUNDING = 1e-12  # in a certificate
_TOLERANCES = ("primal_feasibility_tolerance", "dual_feasibility_tolerance")
# Cuts are taken between the best point so far and the program's optimum: either the optimum moves or the best
# point improves by this share of the gap, and far fewer cuts are needed than at the optimum itself.
_STEP = 0.3
# Below this gap, cutting at the program's own optimum ends the search at a vertex.
_LAST_STEPS = 1e-7
# A preferred minimizer may be worse by rounding only.
_EQUAL = 1e-12
# Factors by which the clean risk is added to the risk; the first is enough unless inputs weigh less than 1e-5.
_TILTS = (1e-5, 1e-7)
_MOST_REWEIGHTED = 100

Cutter = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Takes α and gives g [M] with g·α = f(α) and g·β ≤ f(β) for every β: a cut of the convex function f."""


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """The attacker's mixed strategy: at inputs of configuration k, fool the set u with mass q_{k,u} [r].

    With q ≥ 0 and Σ_u q_{k,u} = p_k, every α has η(α) = Σ_k p_k max_u u·α ≥ Σ q_{k,u} u·α ≥ min_i Σ q_{k,u} u_i,
    the bound: linear programming duality, checked by additions alone.

    members: M. configuration: k of each entry, as numbered in the profile. masks: its set u. mass: q.
    """

    members: int
    configuration: NDArray[np.int64]
    masks: Masks
    mass: NDArray[np.float64]
    bound: float

    @classmethod
    def from_rows(cls, profile: RiskProfile, mass: NDArray[np.float64]) -> Certificate:
        """From a mass for every row of the profile's masks; each configuration is scaled to sum to p_k."""
        at, lengths = profile.starts[:-1], np.diff(profile.starts)
        q = np.maximum(mass, 0.0)
        q = q * np.repeat(profile.weights / np.add.reduceat(q, at), lengths)
        rows = np.flatnonzero(q)
        masks, q = profile.masks[rows], q[rows]
        bound = float((q @ unpack(masks, profile.members)).min())
        return cls(profile.members, frozen(profile.owners[rows]), frozen(masks), frozen(q), bound)

    def verify(self, profile: RiskProfile) -> bool:
        """Whether this proves η(α) ≥ bound for every α of that profile, up to rounding (1e-12)."""
        if self.members != profile.members or not np.isfinite([self.bound, *self.mass]).all():
            return False
        if not len(self.configuration) == len(self.masks) == len(self.mass) > 0 or self.mass.min() < 0:
            return False
        held = set(zip(profile.owners.tolist(), profile.masks.tolist(), strict=True))
        if not held.issuperset(zip(self.configuration.tolist(), self.masks.tolist(), strict=True)):
            return False
        sums = np.bincount(self.configuration, weights=self.mass, minlength=len(profile.weights))
        if (np.abs(sums - profile.weights) > _ROUNDING * profile.weights).any():
            return False
        fooled = self.mass @ unpack(self.masks, self.members)
        return bool(fooled.min() >= self.bound - _ROUNDING)


@dataclass(frozen=True, eq=False)
class Sampling:
    """Sampling probabilities, with a bound on their distance from the optimum.

    probs: α [M]. risk: η(α). lower_bound: no probabilities reach less than this on the same profile. method: "exact",
    "subgradient", "candidates", "confidence" or "cutting-planes". iterations: how often η was evaluated. certificate:
    the proof of the lower bound, where the method gives one. theorem4_bound: what Theorem 4 promises about risk −
    optimum. sweeps: how often all inputs were attacked. attempts: how often the attacker of `risk` may try. If chosen
    by a `confidence`: upper bounds the risk over the distribution of the inputs against the perturbations found; it
    holds for all α at once, and so for the α chosen. objective: what was minimized instead of the risk, and what
    `lower_bound` refers to: `upper`, or the bound of the excess over the reference.
    """

    probs: NDArray[np.float64]
    risk: float
    lower_bound: float
    method: str
    iterations: int
    certificate: Certificate | None = None
    theorem4_bound: float | None = None
    sweeps: int = 0
    attempts: int | float = 1
    upper: float | None = None
    objective: float | None = None
    confidence: float | None = None

    @property
    def gap(self) -> float:
        """How much better other probabilities could still be, in what was minimized; never below 0."""
        return max(0.0, (self.risk if self.objective is None else self.objective) - self.lower_bound)

    @property
    def support(self) -> tuple[int, ...]:
        """The members with positive probability; the others can be dropped."""
        return tuple(int(i) for i in np.flatnonzero(self.probs))

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON, without the certificate, which is large."""
        names = "method probs risk lower_bound gap support iterations sweeps theorem4_bound upper objective confidence"
        # JSON has no infinite numbers.
        attempts = None if self.attempts == math.inf else self.attempts
        return {**{name: plain(getattr(self, name)) for name in names.split()}, "attempts": attempts}


class CutProgram:
    """min s + tilt·α over (α, s) with α in the simplex of M members and s ≥ g·α for every row g of `cuts`, by HiGHS."""

    def __init__(self, members: int) -> None:
        self.cuts: NDArray[np.float64] = np.empty((0, members))
        self.tilt: NDArray[np.float64] = np.zeros(members)

    def lowest(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A vertex [M] of the minimizers of max_c g_c·α + tilt·α over the simplex, and the cuts' multipliers λ [c]."""
        count, members = self.cuts.shape
        found = optimize.linprog(
            np.append(self.tilt, 1.0),
            A_ub=np.column_stack([self.cuts, -np.ones(count)]),
            b_ub=np.zeros(count),
            A_eq=[[1.0] * members + [0.0]],
            b_eq=[1.0],
            bounds=[(0.0, None)] * members + [(None, None)],
            method="highs-ds",
            options=dict.fromkeys(_TOLERANCES, _TIGHT),
        )
        if found.status != 0:
            raise ModelError(f"the linear program of {members} members, {count} cuts failed: {found.message}")
        return tidy(found.x[:-1]), tidy(-found.ineqlin.marginals)


def tidy(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities from nearly non-negative numbers nearly summing to 1, as a solver returns them."""
    clipped = np.maximum(probs, 0.0)
    return np.asarray(clipped / clipped.sum(), dtype=np.float64)


@dataclass(frozen=True)
class Minimum:
    """A minimum over the simplex; multipliers λ of the cuts at `points` prove lower_bound = min_i (Σ_c λ_c g_c)_i."""

    probs: NDArray[np.float64]
    value: float
    lower_bound: float
    points: list[NDArray[np.float64]]
    multipliers: NDArray[np.float64]
    program: CutProgram


def minimize_by_cuts(cut_at: Cutter, start: NDArray[np.float64], tol: float, max_iterations: int) -> Minimum:
    """Minimize the function of `cut_at` over the simplex, by Kelley's cutting planes with damped steps."""
    limit = whole("max_iterations", max_iterations)
    point = best = lowest = start
    value = np.inf
    points: list[NDArray[np.float64]] = []
    program = CutProgram(len(start))
    for _ in range(limit):
        cut = cut_at(point)
        if cut @ point < value:
            value, best = float(cut @ point), point
        points.append(point)
        program.cuts = np.vstack([program.cuts, cut])
        before = lowest
        lowest, multipliers = program.lowest()
        bound = float((multipliers @ program.cuts).min())
        gap = value - bound
        if gap <= tol or (np.array(points) == lowest).all(axis=1).any():
            # If the lowest point was cut before, it cannot move, and the remaining gap is rounding.
            return Minimum(best, value, bound, points, multipliers, program)
        # If the lowest point did not move, it is probably the optimum.
        settled = gap <= _LAST_STEPS or np.array_equal(lowest, before)
        point = lowest if settled else (1.0 - _STEP) * best + _STEP * lowest
    raise ModelError(f"cutting planes left a gap of {gap:.3g} after {limit} iterations; raise max_iterations")


@typed(profile=RiskProfile)
def exact_sampling(
    profile: RiskProfile,
    *,
    clean_risks: ArrayLike | None = None,
    tol: float = 1e-12,
    max_iterations: int = 10_000,
) -> Sampling:
    """α minimizing η, of several the one with the lowest clean risk, and a certificate that nothing lower exists."""
    members = profile.members
    clean = np.zeros(members) if clean_risks is None else as_risks("clean_risks", clean_risks, members)
    start = np.full(members, 1.0 / members)
    found = minimize_by_cuts(profile.subgradient, start, as_number("tol", tol), max_iterations)
    # Every cut is an attack on each configuration; mixing the cuts mixes the attacks.
    mass = np.zeros(len(profile.masks))
    for point, multiplier in zip(found.points, found.multipliers.tolist(), strict=True):
        mass[profile.best_rows(point)] += multiplier * profile.weights
    certificate = Certificate.from_rows(profile, mass)
    probs = _preferred(profile, found.program, found.probs, clean)
    risk = profile.risk(probs)
    return Sampling(
        probs=frozen(probs),
        risk=risk,
        lower_bound=min(certificate.bound, risk),
        method="exact",
        iterations=len(found.points),
        certificate=certificate,
    )


def _preferred(
    profile: RiskProfile, program: CutProgram, best: NDArray[np.float64], cost: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The minimizer of η with the lowest cost·α, a vertex: that of η plus a small multiple of the cost."""
    for factor in _TILTS if cost.any() else (0.0,):
        program.tilt = factor * cost
        while True:
            probs, _ = program.lowest()
            cut, cuts = profile.subgradient(probs), program.cuts
            # A cut that is there already is violated by no more than rounding.
            if cut @ probs <= (cuts @ probs).max() or (cuts == cut).all(axis=1).any():
                break
            program.cuts = np.vstack([program.cuts, cut])
        if profile.risk(probs) <= profile.risk(best) + _EQUAL:
            return probs
    return best.copy()


@typed(profile=RiskProfile)
def retried_sampling(
    profile: RiskProfile, attempts: int | float, *, clean_risks: ArrayLike | None = None
) -> Sampling:
    """α with a small risk after several attempts, with a fresh draw for each; never worse than the α for one attempt.

    1 − (1 − r)^q is concave in r, so its tangent is never below it, and minimizing Σ_k p_k q (1 − r_k)^(q−1) r_k(α), a
    linear program with other weights, never raises the risk. This is repeated from the optimum for one attempt,
    from uniform and from the best member. The result may be a local optimum: the lower bound is that of one
    attempt, with its certificate. For q = inf the best member alone is optimal.
    """
    tries = as_attempts(attempts)
    first = exact_sampling(profile, clean_risks=clean_risks)
    uniform = np.full(profile.members, 1.0 / profile.members)
    alone = np.eye(profile.members)[int(np.argmin(profile.member_risks))]
    found = [alone if tries == math.inf else first.probs]
    if 1 < tries < math.inf:
        found = [_reweighted(profile, start, tries) for start in (first.probs, uniform, alone)]
    probs = min(found, key=lambda point: profile.risk(point, tries))
    risk = profile.risk(probs, tries)
    return replace(first, probs=frozen(probs.copy()), risk=risk, attempts=tries)


def _reweighted(
    profile: RiskProfile, probs: NDArray[np.float64], attempts: int | float
) -> NDArray[np.float64]:
    for _ in range(_MOST_REWEIGHTED):
        right = 1.0 - profile.configuration_risks(probs).clip(0.0, 1.0)
        weights = profile.weights * right ** (attempts - 1)
        if not weights.any():
            break
        lower = exact_sampling(profile.reweighted(weights)).probs
        if profile.risk(lower, attempts) >= profile.risk(probs, attempts) - _EQUAL:
            break
        probs = lower
    return probs


def project_simplex(vector: ArrayLike) -> NDArray[np.float64]:
    """The point max(v − θ, 0) of the simplex nearest to `vector` [M]: Π_Δ of Algorithm 1, line 15."""
    v = as_vector("vector", vector)
    if not np.isfinite(v).all():
        raise InputError(f"vector is {v!r:.60}; only finite values can be projected")
    # Adding a constant to all entries does not change the projection, and avoids lost digits for huge inputs.
    v -= v.max()
    falling = np.sort(v)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(v) + 1)
    theta = excess[np.flatnonzero(falling > excess)[-1]]
    return tidy(v - theta)


def theorem4_bound(start: ArrayLike, step: float, iterations: int, optimum: ArrayLike | None = None) -> float:
    """(‖α⁽¹⁾ − α*‖² + M a² Σ t⁻²) / (2a Σ t⁻¹): how far above the optimum OSP can end after T steps (Theorem 4).

    start: α⁽¹⁾. step: a. optimum: α*; by default the corner farthest from the start, so that the bound holds for all.
    """
    first, a = as_probs(start, name="start"), as_number("step", step)
    squares, total = _sums(iterations)
    distance = _farthest(first)
    if optimum is not None:
        distance = float(((first - as_probs(optimum, len(first))) ** 2).sum())
    return (distance + len(first) * a * a * squares) / (2.0 * a * total)


def best_step(start: ArrayLike, iterations: int) -> float:
    """The first step a that makes Theorem 4's bound smallest when the optimum is unknown."""
    first = as_probs(start, name="start")
    squares, _ = _sums(iterations)
    return float(np.sqrt(_farthest(first) / (len(first) * squares))) or 1.0


@typed(profile=RiskProfile)
def subgradient_sampling(
    profile: RiskProfile, *, iterations: int = 100, step: float = 1.0, start: ArrayLike | None = None
) -> Sampling:
    """The best of T projected subgradient steps of size a/t (Algorithm 1, without the attacks).

    iterations: T. step: a; `best_step` minimizes the bound of Theorem 4, but larger steps work better in practice.
    start: α⁽¹⁾, uniform by default. The certificate is the average of the attacks at all steps, by step size.
    """
    rounds = whole("iterations", iterations)
    members = profile.members
    first = np.full(members, 1.0 / members) if start is None else as_probs(start, members, "start")
    a = as_number("step", step)
    alpha = best = first
    lowest = np.inf
    mass = np.zeros(len(profile.masks))
    for t in range(1, rounds + 1):
        gradient = profile.subgradient(alpha)
        mass[profile.best_rows(alpha)] += profile.weights / t
        risk = float(gradient @ alpha)
        if risk <= lowest:
            lowest, best = risk, alpha
        alpha = project_simplex(alpha - a / t * gradient)
    certificate = Certificate.from_rows(profile, mass)
    risk = profile.risk(best)
    return Sampling(
        probs=frozen(best.copy()),
        risk=risk,
        lower_bound=min(certificate.bound, risk),
        method="subgradient",
        iterations=rounds,
        certificate=certificate,
        theorem4_bound=theorem4_bound(first, a, rounds),
    )


def _sums(iterations: int) -> tuple[float, float]:
    t = np.arange(1.0, whole("iterations", iterations) + 1.0)
    return float((t**-2).sum()), float((1.0 / t).sum())


def _farthest(start: NDArray[np.float64]) -> float:
    """max_i ‖start − e_i‖², which is the largest squared distance to any point of the simplex."""
    return float((start @ start - 2.0 * start + 1.0).max())
