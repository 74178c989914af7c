"""Checks of arguments: each error names the argument, its value and what is valid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, number, whole

_SUM_TOLERANCE = 1e-6  # probabilities typed by hand or stored as float32 rarely sum to exactly 1
_EXACT = 1e-11
_ROUNDING = 1e-9  # sums of shares end at 1 + 2e-16 at times


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Make the array read-only and return it, because value objects must not change."""
    array.setflags(write=False)
    return array


def as_vector(
    name: str, value: ArrayLike, length: int | None = None, of: str = "member"
) -> NDArray[np.float64]:
    """A fresh one-dimensional, non-empty float vector, with one value for each of `length` members."""
    try:
        vector = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be a list of numbers, got {value!r:.60}") from error
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(f"{name} must be a non-empty list of numbers, got {value!r:.60}")
    if length is not None and len(vector) != length:
        raise InputError(f"{name} has {len(vector)} values; expected one for each {of}, {length}")
    return vector


def as_risks(name: str, value: ArrayLike, members: int | None = None) -> NDArray[np.float64]:
    """Risks, one per member, each in [0, 1] up to rounding."""
    risks = as_vector(name, value, members)
    for i, risk in enumerate(risks):
        if not -_ROUNDING <= risk <= 1.0 + _ROUNDING:
            raise InputError(f"{name}[{i}] is {risk:.12g}; a risk must lie in [0, 1]")
    return risks.clip(0.0, 1.0)


def as_probs(
    value: ArrayLike, length: int | None = None, name: str = "probs", of: str = "member"
) -> NDArray[np.float64]:
    """A point of the simplex: non-negative, summing to 1 within 1e-6; sums off by more than rounding are scaled."""
    probs = as_vector(name, value, length, of)
    for i, p in enumerate(probs):
        if not np.isfinite(p) or p < 0:
            raise InputError(f"{name}[{i}] is {p:g}; it must lie in [0, 1]")
    total = math.fsum(probs.tolist())
    if abs(total - 1.0) > _SUM_TOLERANCE:
        raise InputError(f"{name} has the sum {total:.9g}; it must be 1")
    # Others are kept bit by bit, so that they survive a round trip through JSON.
    return probs / total if abs(total - 1.0) > _EXACT else probs


def as_attempts(value: Any) -> int | float:
    """How often an attacker may try: a whole number of at least 1, or inf."""
    if isinstance(value, float) and value == math.inf:
        return value
    return whole("attempts", value, why=", or inf")


def as_number(name: str, value: object, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number strictly between `low` and `high`."""
    found = number(name, value)
    if not low < found < high:
        limits = f"above {low:g}" + (f" and below {high:g}" if high < math.inf else "")
        raise InputError(f"{name} is {value!r}; it must be a number {limits}")
    return found
