"""Confidence intervals of means over inputs, and over draws of a random classifier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betaincinv, stdtrit, xlogy

from randens.core.errors import InputError, whole
from randens.risk.sets import as_number


class Estimate(float):
    """A mean over inputs, a float with `low` and `high`: its interval over the choice of inputs, not over attacks."""

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
        return {"value": float(self), "low": self.low, "high": self.high}


def estimate(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Mean of values in [0, 1] with Wilson's score interval, conservative where values lie between zero and one."""
    sample, mean = _checked(values)
    n = len(sample)
    z = _quantile(confidence)
    center = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return Estimate(mean, max(0.0, min(mean, center - half)), min(1.0, max(mean, center + half)))


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


def joint(confidence: float, count: int) -> float:
    """The level of each of `count` intervals that hold together with `confidence`, whichever of them is shown."""
    return 1 - _error(confidence) / count


def two_way(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Mean of values [seeds, inputs], with an interval over both the choice of seeds and that of inputs.

    Each seed shifts all inputs, and each input all seeds. Their half-widths, by analysis of variance with Student's
    quantile, add up as squares. For comparisons give the differences of two trainings, seed by seed.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2 or not np.isfinite(table).all():
        raise InputError(
            f"values has shape {table.shape}; give finite numbers [seeds, inputs], two of each or more"
        )
    (seeds, inputs), mean = table.shape, float(table.mean())
    rows, columns = table.mean(axis=1), table.mean(axis=0)
    rest = table - rows[:, None] - columns + mean
    residual = float((rest**2).sum()) / ((seeds - 1) * (inputs - 1))
    # Mean squares over the number of values: variances of the mean. That of seeds holds the rest as well.
    by_seed = float(rows.var(ddof=1)) / seeds
    by_input = max(0.0, float(columns.var(ddof=1)) / inputs - residual / table.size)
    tail = 1 - _error(confidence) / 2
    half = math.hypot(
        stdtrit(seeds - 1, tail) * math.sqrt(by_seed), stdtrit(inputs - 1, tail) * math.sqrt(by_input)
    )
    return Estimate(mean, mean - half, mean + half)


def exact_binomial(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Share of successes in independent trials, with the exact interval of Clopper and Pearson."""
    tail = _error(confidence) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return Estimate(successes / trials, low, high)


def bounded_mean(values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Mean of independent values in [0, 1], with an interval that holds for every distribution and every n.

    The narrower, on each side, of two bounds that share the error probability equally: Hoeffding and Bentkus's
    (e times the binomial tail; Bentkus 2004), and the empirical Bernstein bound of Maurer and Pontil (2009).
    """
    sample, mean = _checked(values)
    n = len(sample)
    tail = _error(confidence) / 4
    low, high = 1 - _bentkus(1 - mean, n, tail), _bentkus(mean, n, tail)
    if n > 1:
        scale = math.log(2 / tail)
        half = math.sqrt(2 * float(sample.var(ddof=1)) * scale / n) + 7 * scale / (3 * (n - 1))
        low, high = max(low, mean - half), min(high, mean + half)
    return Estimate(mean, min(low, mean), max(high, mean))


@dataclass(frozen=True, eq=False)
class Scores:
    """Shares of correct answers on fresh draws, values [n, m]; inputs of one group [n] had their m draws in common.

    predicted [n, m]: the class that one draw of the whole model gives. y [n]: the labels.
    """

    values: NDArray[np.float64]
    predicted: NDArray[np.int64]
    y: NDArray[np.int64]
    group: NDArray[np.int64]

    @property
    def shared(self) -> int:
        """The largest number of inputs that shared a draw."""
        return int(np.bincount(self.group).max())

    def over_draws(self, confidence: float, *, exact: bool = False) -> Estimate:
        """Mean over these inputs, which are the population; where they share draws, only calls are independent."""
        mean = float(self.values.mean())
        if exact:
            return Estimate(mean, mean, mean)
        sums = np.zeros((int(self.group.max()) + 1, self.values.shape[1]))
        np.add.at(sums, self.group, self.values)
        # Groups differ in size by one at most; dividing by the largest keeps every call's value in [0, 1].
        scale = self.shared * len(sums) / len(self.values)
        interval = _independent if self.shared == 1 else bounded_mean
        calls = interval((sums / self.shared).ravel(), confidence)
        return Estimate(mean, min(mean, calls.low * scale), min(1.0, max(mean, calls.high * scale)))

    def over_inputs(self, confidence: float) -> Estimate:
        """Mean over the distribution of the inputs; where they share draws, that over draws widened for n inputs."""
        if self.shared > 1:  # the error probabilities of two intervals add up
            half, n = (1 + confidence) / 2, len(self.values)
            inner, tail = self.over_draws(half), _error(half) / 2
            low, high = 1 - _bentkus(1 - inner.low, n, tail), _bentkus(inner.high, n, tail)
            return Estimate(inner, min(low, inner.low), max(high, inner.high))
        means = self.values.mean(axis=1)
        return (_independent if self.values.shape[1] == 1 else bounded_mean)(means, confidence)

    def after(self, attempts: int, confidence: float) -> Estimate:
        """Chance to be right `attempts` times in a row, unbiased: the mean product over all sets of as many draws."""
        whole("attempts", attempts, 1, self.values.shape[1], ", the number of scoring draws")
        means = np.zeros((attempts + 1, len(self.values)))
        means[0] = 1.0
        for seen, column in enumerate(self.values.T, start=1):
            for k in range(min(attempts, seen), 0, -1):
                means[k] = (k * column * means[k - 1] + (seen - k) * means[k]) / seen
        return self._grouped(means[attempts], confidence)

    def votes(self, votes: int, confidence: float) -> Estimate:
        """Accuracy of the majority of `votes` draws, ties broken at random; every draw is used once."""
        draws, n = self.predicted.shape[1], np.arange(len(self.y))
        whole("votes", votes, 1, draws, ", the number of scoring draws")
        classes, found = np.arange(1 + max(self.predicted.max(), self.y.max())), []
        for first in range(0, draws - votes + 1, votes):
            counts = (self.predicted[:, first : first + votes, None] == classes).sum(axis=1)
            leading = counts == counts.max(axis=1, keepdims=True)
            found.append(leading[n, self.y] / leading.sum(axis=1))
        return self._grouped(np.mean(found, axis=0), confidence)

    def _grouped(self, values: NDArray[np.float64], confidence: float) -> Estimate:
        """Mean of values [n] in [0, 1]; inputs that shared draws count as one."""
        shared = np.bincount(self.group, values) / np.bincount(self.group)
        inside, mean = bounded_mean(np.clip(shared, 0, 1), confidence), float(values.mean())
        return Estimate(mean, min(mean, inside.low), max(mean, inside.high))


def _independent(values: NDArray[np.float64], confidence: float) -> Estimate:
    """Mean of independent values in [0, 1]: Clopper and Pearson's interval for zeros and ones."""
    if np.isin(values, (0.0, 1.0)).all():
        return exact_binomial(int(values.sum()), len(values), confidence)
    return bounded_mean(values, confidence)


def _checked(values: ArrayLike) -> tuple[NDArray[np.float64], float]:
    """Values in [0, 1] as an array [n], and their mean."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise InputError(f"values has shape {sample.shape}; give a list of numbers, at least one")
    if not np.isfinite(sample).all() or sample.min() < -1e-9 or sample.max() > 1 + 1e-9:
        raise InputError(f"values range over [{sample.min():g}, {sample.max():g}]; they must lie in [0, 1]")
    return sample, min(1.0, max(0.0, math.fsum(sample.tolist()) / len(sample)))


def _bentkus(mean: float, n: int, tail: float) -> float:
    """The largest p at which a mean of n values in [0, 1] as low as `mean` has a bound above `tail` on its chance."""

    def chance(p: float) -> float:
        # Both bounds hold for the same event, so the smaller one does.
        divergence = float(xlogy(mean, mean / p) + xlogy(1 - mean, (1 - mean) / (1 - p)))
        return min(math.exp(-n * divergence), math.e * float(bdtr(math.ceil(n * mean - 1e-9), n, p)))

    if mean >= 1:
        return 1.0
    low, high = mean, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if middle == 1:  # every p below has a bound above `tail`, as far as numbers can tell
            break
        low, high = (middle, high) if chance(middle) > tail else (low, middle)
    return high


def _error(confidence: float) -> float:
    return 1 - as_number("confidence", confidence, high=1.0)


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(1 - _error(confidence) / 2)
