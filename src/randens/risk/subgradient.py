"""Algorithm 1 (OSP) on a profile: the projected subgradient method, and the bound of Theorem 4."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.risk.certificate import Certificate, Sampling
from randens.risk.checks import as_count, as_positive, as_probs, frozen
from randens.risk.profile import RiskProfile
from randens.risk.simplex import project_simplex

__all__ = ["best_step", "subgradient_sampling", "theorem4_bound"]


def theorem4_bound(start: ArrayLike, step: float, iterations: int, optimum: ArrayLike | None = None) -> float:
    """(‖α⁽¹⁾ − α*‖² + M a² Σ t⁻²) / (2a Σ t⁻¹): how far above the optimum OSP can end (Theorem 4).

    Parameters
    ----------
    start : array
        α⁽¹⁾ [M].
    step : float
        a, the first step.
    iterations : int
        T.
    optimum : array, optional
        α*; by default the corner farthest from the start, so that the bound holds for every optimum.

    Returns
    -------
    float
        The largest excess risk.

    Examples
    --------
    >>> theorem4_bound([0.5, 0.5], 1.0, 100) > 0
    True
    """
    first = as_probs(start, name="start")
    a = as_positive("step", step)
    squares, total = _sums(as_count("iterations", iterations))
    distance = (
        _farthest(first) if optimum is None else float(((first - as_probs(optimum, len(first))) ** 2).sum())
    )
    return (distance + len(first) * a * a * squares) / (2.0 * a * total)


def best_step(start: ArrayLike, iterations: int) -> float:
    """The initial step a that makes Theorem 4's bound smallest when the optimum is unknown.

    Parameters
    ----------
    start, iterations
        As for `theorem4_bound`.

    Returns
    -------
    float
        The step with the smallest bound.

    Examples
    --------
    >>> best_step([0.5, 0.5], 10) > 0
    True
    """
    first = as_probs(start, name="start")
    squares, _ = _sums(as_count("iterations", iterations))
    return float(np.sqrt(_farthest(first) / (len(first) * squares))) or 1.0


def subgradient_sampling(
    profile: RiskProfile,
    *,
    iterations: int = 100,
    step: float = 1.0,
    start: ArrayLike | None = None,
) -> Sampling:
    """The best of T projected subgradient steps with step sizes a/t (Algorithm 1, without the attacks).

    The lower bound's certificate is the average of the attacks at all steps, weighted by their step sizes.

    Parameters
    ----------
    profile : RiskProfile
        What attacks have found.
    iterations : int
        T.
    step : float
        a of a_t = a / t. `best_step` minimises the bound of Theorem 4, but larger steps work better in practice.
    start : array, optional
        α⁽¹⁾, uniform by default.

    Returns
    -------
    Sampling
        Probabilities, risk, lower bound and certificate.

    Examples
    --------
    >>> profile = RiskProfile.from_configurations([[(1, 0), (0, 1)], [(1, 1)]], [0.6, 0.4])
    >>> subgradient_sampling(profile, iterations=50).risk >= 0.7 - 1e-9
    True
    """
    rounds = as_count("iterations", iterations)
    members = profile.members
    first = np.full(members, 1.0 / members) if start is None else as_probs(start, members, "start")
    a = as_positive("step", step)
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
    t = np.arange(1.0, iterations + 1.0)
    return float((t**-2).sum()), float((1.0 / t).sum())


def _farthest(start: NDArray[np.float64]) -> float:
    """max_i ‖start − e_i‖², which is the largest squared distance to any point of the simplex."""
    return float((start @ start - 2.0 * start + 1.0).max())
