"""How sure a mean over n inputs is."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from randens.errors import InputError

__all__ = ["Estimate", "difference", "estimate"]


class Estimate(float):
    """A mean over inputs, and an interval that covers the mean over the distribution they come from.

    It is the number itself, so that it can be compared, formatted and computed with; `low` and `high` come along.
    The interval speaks of the choice of inputs only; that a stronger attack might find more, it cannot know.

    Parameters
    ----------
    value : float
        The mean.
    low, high : float
        The ends of the interval.

    Examples
    --------
    >>> found = Estimate(0.5, 0.4, 0.6)
    >>> float(found), found.low, found.high, f"{found:.1%}"
    (0.5, 0.4, 0.6, '50.0%')
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Estimate:
        made = super().__new__(cls, value)
        made.low, made.high = float(low), float(high)
        return made

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high

    def __repr__(self) -> str:
        return f"Estimate({float(self):.6g}, low={self.low:.6g}, high={self.high:.6g})"

    __str__ = float.__repr__

    @property
    def value(self) -> float:
        """The mean as a plain number."""
        return float(self)

    def to_json(self) -> dict[str, float]:
        """A plain dictionary for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


def estimate(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Mean of values in [0, 1] with Wilson's score interval.

    Wilson's interval is made for zeros and ones. Expected accuracies lie between them and vary less, at most
    p(1 − p), so for those it is on the careful side.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise InputError(f"values has shape {sample.shape}; give a list of numbers, at least one")
    if not np.isfinite(sample).all() or sample.min() < -1e-9 or sample.max() > 1 + 1e-9:
        raise InputError(f"values range over [{sample.min():g}, {sample.max():g}]; they must lie in [0, 1]")
    n, mean = len(sample), min(1.0, max(0.0, math.fsum(sample.tolist()) / len(sample)))
    z = _quantile(confidence)
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return Estimate(mean, max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half)))


def difference(first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Mean of first − second over the same inputs, with the normal interval of the paired differences."""
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape or one.ndim != 1 or not len(one):
        raise InputError(
            f"first and second have shapes {one.shape} and {two.shape}; they must agree, [n] with n ≥ 1"
        )
    paired = one - two
    mean = math.fsum(paired.tolist()) / len(paired)
    spread = float(paired.std(ddof=1)) if len(paired) > 1 else 1.0
    half = _quantile(confidence) * spread / math.sqrt(len(paired))
    return Estimate(mean, mean - half, mean + half)


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence!r}; it must lie between 0 and 1, e.g. 0.95")
    return NormalDist().inv_cdf(0.5 + confidence / 2)
