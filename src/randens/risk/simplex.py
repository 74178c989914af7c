"""The probability simplex: projection onto it, and probabilities as exact binary fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError
from randens.risk.checks import as_vector

__all__ = ["dyadic", "project_simplex", "tidy"]

_BITS = 52


def project_simplex(vector: ArrayLike) -> NDArray[np.float64]:
    """The point of the simplex nearest to `vector` in the Euclidean norm, Π_Δ of Algorithm 1, line 15.

    Exact: the projection is max(v − θ, 0), and θ follows from sorting v once.

    Parameters
    ----------
    vector : array
        [M].

    Returns
    -------
    array
        The nearest probabilities.

    Examples
    --------
    >>> project_simplex([0.5, 0.5, 2.0]).tolist()
    [0.0, 0.0, 1.0]
    """
    v = as_vector("vector", vector)
    for i, value in enumerate(v):
        if not np.isfinite(value):
            raise InputError(f"vector[{i}] is {value:g}; only finite values can be projected")
    # Adding a constant to all entries does not change the projection, and avoids lost digits for huge inputs.
    v -= v.max()
    falling = np.sort(v)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(v) + 1)
    theta = excess[np.flatnonzero(falling > excess)[-1]]
    return tidy(v - theta)


def tidy(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities from nearly non-negative numbers nearly summing to 1, as a solver returns them."""
    clipped = np.maximum(probs, 0.0)
    return np.asarray(clipped / clipped.sum(), dtype=np.float64)


def dyadic(probs: NDArray[np.float64]) -> tuple[Fraction, ...]:
    """Probabilities rounded to multiples of 2^-52 that sum to exactly 1; each is a float as well."""
    whole = [round(float(p) * 2**_BITS) for p in probs]
    whole[int(np.argmax(probs))] += 2**_BITS - sum(whole)
    return tuple(Fraction(w, 2**_BITS) for w in whole)
