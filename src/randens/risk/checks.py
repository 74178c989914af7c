"""Checks of arguments: each error names the argument, its value and what is valid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, unknown

SUM_TOLERANCE = 1e-6
"""Probabilities typed by hand or stored as float32 rarely sum to exactly 1."""

ROUNDING = 1e-9
"""Sums of shares end at 1 + 2e-16 now and then."""

DRAWS = ("query", "client")
"""A member is drawn for every query, or once for every client."""


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Make the array read-only and return it, because value objects must not change."""
    array.setflags(write=False)
    return array


def as_vector(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """A fresh one-dimensional, non-empty float vector."""
    try:
        vector = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be a list of numbers, got {_short(value)}") from error
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(f"{name} must be a non-empty list of numbers, got {_short(value)}")
    return vector


def as_risks(name: str, value: ArrayLike, members: int | None = None) -> NDArray[np.float64]:
    """Risks, one per member, each in [0, 1]; values outside by less than 1e-9 (rounding) are clipped."""
    risks = as_vector(name, value)
    for i, risk in enumerate(risks):
        if not -ROUNDING <= risk <= 1.0 + ROUNDING:
            raise InputError(f"{name}[{i}] is {risk:.12g}; a risk must lie in [0, 1]")
    return _as_many(name, risks.clip(0.0, 1.0), members)


def as_probs(value: ArrayLike, members: int | None = None, name: str = "probs") -> NDArray[np.float64]:
    """A point of the simplex: non-negative, summing to 1 within 1e-6, then scaled to sum to 1."""
    probs = _as_many(name, as_vector(name, value), members)
    for i, p in enumerate(probs):
        if not np.isfinite(p) or p < 0:
            raise InputError(f"{name}[{i}] is {p:g}; a probability must lie in [0, 1]")
    total = float(probs.sum())
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise InputError(f"{name} sums to {total:.9g}; probabilities must sum to 1")
    return probs / total


def _as_many(name: str, values: NDArray[np.float64], members: int | None) -> NDArray[np.float64]:
    if members is not None and len(values) != members:
        raise InputError(f"{name} has {len(values)} values; expected one for each of the {members} members")
    return values


def as_count(name: str, value: object, minimum: int = 1) -> int:
    """A whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise InputError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(value)


def as_attempts(value: object) -> int | float:
    """How often an attacker may try: a whole number of at least 1, or inf."""
    if isinstance(value, float) and value == math.inf:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"attempts must be a whole number of at least 1, or inf, got {value!r}")
    return int(value)


def as_draw(value: object) -> str:
    """One of `DRAWS`."""
    if value not in DRAWS:
        unknown("draw", value, DRAWS)
    return str(value)


def as_member(name: str, value: object, members: int) -> int:
    """The index of a member."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < members:
        raise InputError(f"{name} must be a member's index from 0 to {members - 1}, got {value!r}")
    return int(value)


def as_positive(name: str, value: object) -> float:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < np.inf:
        raise InputError(f"{name} must be a number above 0, got {value!r}")
    return float(value)


def as_share(name: str, value: object) -> float:
    """A number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < 1:
        raise InputError(f"{name} must be a number between 0 and 1, got {value!r}")
    return float(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
