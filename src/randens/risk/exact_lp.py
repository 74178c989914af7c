"""Optimal sampling probabilities of a profile, with proof: cutting planes in M + 1 variables.

η is the largest of finitely many linear functions g·α, and a subgradient at any point is one of them. So the
master program min s, s ≥ g·α for the g found so far, bounds η from below, does not grow with the number of
inputs, and becomes exact after a few dozen rounds. Its multipliers average the attacks behind the cuts
into the certificate.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr

from randens.core.errors import ModelError
from randens.risk.certificate import Certificate, Sampling
from randens.risk.checks import as_count, as_positive, as_risks, frozen
from randens.risk.lp import CutProgram
from randens.risk.profile import RiskProfile
from randens.risk.sets import segment_argmax, unpack, weigh
from randens.risk.simplex import dyadic
from randens.risk.ties import prefer

__all__ = ["exact_sampling"]

# Cuts are taken between the best point so far and the master's optimum: either the master moves or the best
# point improves by this share of the gap, and far fewer cuts are needed than at the optimum itself.
_STEP = 0.3
# Below this gap, cutting at the master's own optimum ends the search at a vertex of η.
_LAST_STEPS = 1e-7
# A preferred minimiser may be worse by rounding only.
_EQUAL = 1e-12
# Sets whose probabilities differ by less than this are taken to tie at the vertex; the proof follows.
_TIE = 1e-6


def exact_sampling(
    profile: RiskProfile,
    *,
    clean_risks: ArrayLike | None = None,
    tol: float = 1e-12,
    max_iterations: int = 10_000,
) -> Sampling:
    """α minimising η over the simplex, its value, and a certificate that nothing lower exists.

    Among equally good α, the one with the lowest clean risk is chosen, then the one with the fewest members. Where
    the optimum is a vertex with known rational coordinates that is provably as good, it is returned exactly.

    Parameters
    ----------
    profile : RiskProfile
        What attacks have found.
    clean_risks : array, optional
        Break ties between equally good probabilities.
    tol : float
        The gap at which to stop.
    max_iterations : int
        Of the cutting planes.

    Returns
    -------
    Sampling
        Probabilities, risk, lower bound and certificate.

    Examples
    --------
    >>> profile = RiskProfile.from_configurations([[(1, 0), (0, 1)], [(1, 1)]], [0.6, 0.4])
    >>> round(exact_sampling(profile).risk, 9)
    0.7
    """
    tol = as_positive("tol", tol)
    limit = as_count("max_iterations", max_iterations)
    members = profile.members
    clean = None if clean_risks is None else as_risks("clean_risks", clean_risks, members)

    point = best = lowest_point = np.full(members, 1.0 / members)
    risk = np.inf
    points: list[NDArray[np.float64]] = []
    program = CutProgram(members)
    for _ in range(limit):
        cut = profile.subgradient(point)
        if cut @ point < risk:
            risk, best = float(cut @ point), point
        points.append(point)
        program.add(cut)
        before = lowest_point
        lowest_point, multipliers = program.lowest()
        gap = risk - float((multipliers @ program.cuts).min())
        if gap <= tol or (np.array(points) == lowest_point).all(axis=1).any():
            # If the lowest point was cut before, it cannot move, and the remaining gap is rounding.
            break
        # If the lowest point did not move, it is probably the optimum.
        settled = gap <= _LAST_STEPS or np.array_equal(lowest_point, before)
        point = lowest_point if settled else (1.0 - _STEP) * best + _STEP * lowest_point
    else:
        raise ModelError(
            f"cutting planes left a gap of {gap:.3g} after {limit} iterations; raise max_iterations"
        )

    # Every cut is an attack on each configuration; mixing the cuts mixes the attacks.
    mass = np.zeros(len(profile.masks))
    for point, multiplier in zip(points, multipliers.tolist(), strict=True):
        if multiplier > 0:
            mass[profile.best_rows(point)] += multiplier * profile.weights
    certificate = Certificate.from_rows(profile, mass)
    probs, vertex = _finish(profile, prefer(profile, best, program, multipliers, clean))
    if profile.risk(probs) > risk + _EQUAL:
        probs, vertex = _finish(profile, best)
    risk = profile.risk(probs)
    return Sampling(
        probs=frozen(probs),
        risk=risk,
        lower_bound=min(certificate.bound, risk),
        method="exact",
        iterations=len(points),
        certificate=certificate,
        exact_probs=vertex,
    )


def _finish(
    profile: RiskProfile, probs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], tuple[Fraction, ...] | None]:
    """Return the exact vertex near the probabilities, if there is one, and the floats nearest to it."""
    vertex = _vertex(profile, probs)
    if vertex is None:
        return probs.copy(), None
    return np.array([float(p) for p in vertex]), vertex


def _vertex(profile: RiskProfile, probs: NDArray[np.float64]) -> tuple[Fraction, ...] | None:
    """The vertex of η near `probs` in rational numbers if it is at least as good, exactly; else None.

    A vertex is where the ties (u − v)·α = 0 between sets of the same configuration, together with Σα = 1 and
    the members left out, leave no freedom; the ties have coefficients −1, 0 and 1, so solving them is exact.
    """
    support = np.flatnonzero(probs > _TIE)
    ties = _ties(profile, probs)[:, support]
    solution = _null_vector(ties, len(support))
    if solution is None or min(solution) <= 0:
        return None
    total = sum(solution)
    vertex = [Fraction(0)] * profile.members
    for i, value in zip(support.tolist(), solution, strict=True):
        vertex[i] = value / total
    if max(abs(float(v) - p) for v, p in zip(vertex, probs.tolist(), strict=True)) > _TIE * profile.members:
        return None
    if profile.exact_risk(vertex) > profile.exact_risk(dyadic(probs)):
        return None
    return tuple(vertex)


def _ties(profile: RiskProfile, probs: NDArray[np.float64]) -> NDArray[np.int64]:
    """The distinct differences u − v [t, M] of sets that tie for the worst of their configuration."""
    values = weigh(profile.masks, probs)
    best, rows = segment_argmax(values, profile.starts)
    lengths = np.diff(profile.starts)
    tied = np.flatnonzero(values >= np.repeat(best, lengths) - _TIE)
    first = np.repeat(rows, lengths)[tied]
    ours, theirs = profile.masks[tied], profile.masks[first]
    used = np.bitwise_or.reduce(np.uint64(1) << np.flatnonzero(probs > _TIE).astype(np.uint64))
    pairs = np.unique(np.column_stack([ours & ~theirs & used, theirs & ~ours & used]), axis=0)
    pairs = pairs[(pairs != 0).any(axis=1)]
    m = profile.members
    return unpack(pairs[:, 0], m).astype(np.int64) - unpack(pairs[:, 1], m).astype(np.int64)


def _null_vector(ties: NDArray[np.int64], size: int) -> list[Fraction] | None:
    """The x with ties · x = 0, if it is unique up to scale, by elimination in whole numbers (Bareiss)."""
    if len(ties) < size - 1:
        return None
    # There can be thousands of ties; pivoting in floating point finds size − 1 that are independent.
    _, chosen = qr(ties.T.astype(np.float64), mode="r", pivoting=True) if size > 1 else (None, [])
    rows = [ties[t].tolist() for t in chosen[: size - 1]]
    columns: list[int] = []
    last = 1
    for k, row in enumerate(rows):
        lead = next((column for column, value in enumerate(row) if value), None)
        if lead is None:
            return None
        pivot = row[lead]
        for other, values in enumerate(rows):
            if other != k:
                # The division by the pivot before leaves no remainder, so numbers stay small.
                rows[other] = [
                    (pivot * a - values[lead] * b) // last for a, b in zip(values, row, strict=True)
                ]
        columns.append(lead)
        last = pivot
    # Every row now has the same number, the last pivot, in its own column.
    (free,) = set(range(size)) - set(columns)
    solution = [Fraction(1)] * size
    for column, row in zip(columns, rows, strict=True):
        solution[column] = Fraction(-row[free], last)
    return solution
