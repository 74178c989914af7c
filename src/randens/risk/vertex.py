"""From floating-point probabilities to the exact vertex of η that they approximate."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from randens.risk.profile import RiskProfile
from randens.risk.sets import segment_argmax, unpack, weigh
from randens.risk.simplex import dyadic

__all__ = ["snap"]

# Sets whose probabilities differ by less than this are taken to tie at the vertex; the proof follows.
_TIE = 1e-6


def snap(profile: RiskProfile, probs: NDArray[np.float64]) -> tuple[Fraction, ...] | None:
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
