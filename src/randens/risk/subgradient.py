"""Algorithm 1 (OSP) on a profile: the projected subgradient method, and the bound of Theorem 4."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, whole
from randens.risk.certificate import Certificate, Sampling
from randens.risk.checks import as_number, as_probs, as_vector, frozen
from randens.risk.optimal import tidy
from randens.risk.profile import RiskProfile


def project_simplex(vector: ArrayLike) -> NDArray[np.float64]:
    """The point of the simplex nearest to `vector` [M] in the Euclidean norm, Π_Δ of Algorithm 1, line 15.

    The projection is max(v − θ, 0), and θ follows from sorting v once.
    """
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
