"""The adversarial risk of a randomized ensemble as data: configurations and how often they occur."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, expect, typed, unknown, whole
from randens.risk.sets import (
    Masks,
    as_attempts,
    as_number,
    as_probs,
    as_vector,
    coverage,
    from_words,
    frozen,
    group,
    maximal,
    pack,
    segment_argmax,
    to_words,
    unpack,
    weigh,
)

_FORMAT = "randens.risk-profile"
_VERSION = 1
_ROUNDING = 1e-11  # sums this close to 1 are not rescaled


@dataclass(frozen=True, eq=False)
class RiskProfile:
    """η(α) = Σ_k p_k max_{u ∈ U_k} u·α: convex and piecewise linear in the probabilities (Proposition 1).

    A configuration U_k holds the sets of members that one perturbation can fool together at an input; p_k is
    how often inputs have that configuration. Only maximal sets are kept and equal configurations are merged,
    so the profile stays small for any number of inputs.

    members: M. weights: p [K], summing to 1. masks: all sets, as bits, configuration after configuration.
    starts: [K+1], where each configuration begins in `masks`. size: the number of inputs described, if known.
    """

    members: int
    weights: NDArray[np.float64]
    masks: Masks
    starts: NDArray[np.int64]
    size: int | None = None

    @classmethod
    @typed(sets=Iterable)
    def from_configurations(
        cls,
        sets: Iterable[ArrayLike],
        weights: ArrayLike | None = None,
        *,
        members: int | None = None,
        size: int | None = None,
    ) -> RiskProfile:
        """A profile from explicit configurations.

        sets: for each configuration its fooled sets, rows of M zeros and ones; an empty configuration is an
        input at which no member can be fooled. weights: p [K], summing to 1; by default every configuration is
        one input and all count alike. members: M, needed only if every configuration is empty.

        >>> RiskProfile.from_configurations([[(1, 0), (0, 1)], [(1, 1)]], [0.6, 0.4]).risk([0.5, 0.5])
        0.7
        """
        rows = [_binary(f"sets[{k}]", configuration) for k, configuration in enumerate(sets)]
        if not rows:
            raise InputError("sets is empty; a profile needs at least one configuration")
        widths = [row.shape[1] for row in rows if row.size]
        if members is None and not widths:
            raise InputError("sets holds only empty configurations; give the number of members=")
        width = widths[0] if members is None else whole("members", members)
        for k, row in enumerate(rows):
            if row.size and row.shape[1] != width:
                raise InputError(f"sets[{k}] has rows of {row.shape[1]} values; there are {width} members")
        count = len(rows)
        points = np.repeat(np.arange(count), [len(row) if row.size else 0 for row in rows])
        fooled = np.concatenate([np.zeros((0, width), dtype=np.bool_), *(row for row in rows if row.size)])
        if weights is None:
            return cls._build(points, pack(fooled), np.ones(count), width, size or count)
        return cls._build(
            points, pack(fooled), as_probs(weights, count, "weights", "configuration"), width, size
        )

    @classmethod
    def from_witnesses(cls, points: ArrayLike, fooled: ArrayLike, n: int) -> RiskProfile:
        """A profile of n inputs of equal weight: at input points[j], witness j fools the M members' set fooled[j].

        With one perturbation per input, ``from_witnesses(range(n), errors, n)`` takes their errors [n, M].

        >>> RiskProfile.from_witnesses(range(2), [[1, 0], [1, 1]], 2).member_risks
        array([1. , 0.5])
        """
        n = whole("n", n)
        where, rows = np.asarray(points), _binary("fooled", fooled)
        if rows.ndim != 2 or rows.shape[1] == 0:
            raise InputError(f"fooled must have shape [witnesses, members], got {list(rows.shape)}")
        if where.shape != (len(rows),):
            raise InputError(f"points has shape {list(where.shape)}; expected [{len(rows)}], one per witness")
        if len(where) and (where.dtype.kind not in "iu" or where.min() < 0 or where.max() >= n):
            raise InputError(f"points must be whole numbers from 0 to {n - 1}, got {where!r:.60}")
        return cls._build(where.astype(np.int64), pack(rows), np.ones(n), rows.shape[1], n)

    @classmethod
    def _build(
        cls,
        points: NDArray[np.int64],
        masks: Masks,
        weights: NDArray[np.float64],
        members: int,
        size: int | None,
    ) -> RiskProfile:
        """`weights` may be counts: they are scaled to sum to 1 only after they have added up exactly."""
        n = len(weights)
        if not weights.all():
            present = np.flatnonzero(weights)
            renumbered = np.full(n, -1, dtype=np.int64)
            renumbered[present] = np.arange(len(present))
            keep = renumbered[points] >= 0
            points, masks, weights, n = renumbered[points[keep]], masks[keep], weights[present], len(present)
        points, masks = maximal(points, masks, n)
        sets, starts, summed = group(points, masks, weights)
        total = math.fsum(weights.tolist())
        if abs(total - 1.0) > _ROUNDING:
            summed = summed / total
        return cls(members, frozen(summed), frozen(sets), frozen(starts), size)

    @property
    def configurations(self) -> tuple[NDArray[np.bool_], ...]:
        """U_k as boolean matrices [sets, M], one each; a row of zeros where no member can be fooled."""
        return tuple(np.split(unpack(self.masks, self.members), self.starts[1:-1]))

    @property
    def owners(self) -> NDArray[np.int64]:
        """Which configuration each row of `masks` belongs to."""
        return np.repeat(np.arange(len(self.weights)), np.diff(self.starts))

    @cached_property
    def member_risks(self) -> NDArray[np.float64]:
        """η_i = η(e_i) [M]: how often each member can be fooled alone."""
        anyone = unpack(np.bitwise_or.reduceat(self.masks, self.starts[:-1]), self.members)
        return frozen(np.clip(self.weights @ anyone, 0.0, 1.0))

    @typed(draw=str)
    def configuration_risks(
        self, probs: ArrayLike, attempts: int | float = 1, draw: str = "query"
    ) -> NDArray[np.float64]:
        """r_k = max_{u ∈ U_k} u·α for every configuration [K]; with more attempts as in `risk`."""
        alpha, tries = as_probs(probs, self.members), as_attempts(attempts)
        if draw == "client":
            return coverage(self.masks, self.starts, alpha, tries)
        if draw != "query":
            unknown("draw", draw, ("query", "client"))
        values = np.maximum.reduceat(weigh(self.masks, alpha), self.starts[:-1])
        if tries == math.inf:
            return (values > 0).astype(np.float64)
        return values if tries == 1 else 1.0 - (1.0 - np.minimum(values, 1.0)) ** tries

    def risk(self, probs: ArrayLike, attempts: int | float = 1, draw: str = "query") -> float:
        """η(α), Eq. (4), or the risk against an attacker who may try `attempts` times, or inf; one error is enough.

        draw: with "query" a member is sampled for every query, so q attempts succeed with probability 1 − (1 − r)^q.
        With "client" it is sampled once, so they succeed if one of q perturbations fools that member: the risk is the
        largest probability that q known sets cover together, and for q = inf that of their union.

        >>> profile = RiskProfile.from_configurations([[(1, 0), (0, 1)], []])
        >>> [profile.risk([0.5, 0.5], q, draw) for q in (1, 2) for draw in ("query", "client")]
        [0.25, 0.25, 0.375, 0.5]
        """
        return self._frequency(self.configuration_risks(probs, attempts, draw))

    def best_rows(self, probs: ArrayLike) -> NDArray[np.int64]:
        """For every configuration, the row of `masks` that fools the most at these probabilities [K]."""
        return segment_argmax(weigh(self.masks, as_probs(probs, self.members)), self.starts)

    def subgradient(self, probs: ArrayLike) -> NDArray[np.float64]:
        """g = Σ_k p_k u_k (Algorithm 1, line 12), u_k the worst set at α: η(β) ≥ g·β for all β, and η(α) = g·α."""
        chosen = unpack(self.masks[self.best_rows(probs)], self.members)
        return np.asarray(self.weights @ chosen, dtype=np.float64)

    def gain(self, probs: ArrayLike) -> float:
        """Σ_i α_i η_i − η(α) ≥ 0, the gain of a secret draw: the mean matching penny gap (Gnecco-Heredia 2023)."""
        alpha = as_probs(probs, self.members)
        return max(0.0, float(alpha @ self.member_risks) - self.risk(alpha))

    def jointly(self, i: int, j: int) -> float:
        """P(R₂): how often one perturbation fools members i and j together."""
        return self._frequency(self._foolable(i, j))

    def conflict(self, i: int, j: int) -> float:
        """P(R₁) of Theorem 1: how often i and j can each be fooled, but never by the same perturbation."""
        return self._frequency(self._foolable(i) & self._foolable(j) & ~self._foolable(i, j))

    def _frequency(self, values: NDArray[Any]) -> float:
        """The mean over the inputs of a value in [0, 1] for each configuration."""
        return min(1.0, max(0.0, float(self.weights @ values)))

    def _foolable(self, *members: int) -> NDArray[np.bool_]:
        """The configurations in which one perturbation fools all of these members [K]."""
        wanted = np.uint64(sum({1 << whole("member", i, 0, self.members - 1) for i in members}))
        return np.logical_or.reduceat((self.masks & wanted) == wanted, self.starts[:-1])

    @typed(members=Sequence)
    def restrict(self, members: Sequence[int]) -> RiskProfile:
        """The profile of the ensemble made of these members only, in this order."""
        chosen = [whole("members", i, 0, self.members - 1) for i in members]
        if not chosen:
            raise InputError("members is empty; keep at least one")
        table = unpack(self.masks, self.members)[:, chosen]
        return self._build(self.owners, pack(table), self.weights, len(chosen), self.size)

    def reweighted(self, weights: NDArray[np.float64]) -> RiskProfile:
        """The same configurations with other weights [K], which need not sum to 1."""
        new = as_vector("weights", weights, len(self.weights), "configuration")
        return self._build(self.owners, self.masks, new / new.sum(), self.members, None)

    def merge(self, other: RiskProfile, share: float | None = None) -> RiskProfile:
        """The profile of both sets of inputs, all different; `share` is this one's, by default by numbers of inputs."""
        expect("other", other, RiskProfile)
        if other.members != self.members:
            raise InputError(f"other has {other.members} members where {self.members} are expected")
        size = None if self.size is None or other.size is None else self.size + other.size
        if share is None and (size is None or self.size is None):
            raise InputError("share is None; profiles of unknown size need share= to be merged")
        own = (self.size or 0) / (size or 1) if share is None else as_number("share", share, high=1.0)
        points = np.concatenate([self.owners, len(self.weights) + other.owners])
        weights = np.concatenate([own * self.weights, (1 - own) * other.weights])
        return self._build(points, np.concatenate([self.masks, other.masks]), weights, self.members, size)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON; every set is a string of zeros and ones, member 0 first."""
        names = to_words(unpack(self.masks, self.members))
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "members": self.members,
            "size": self.size,
            "weights": self.weights.tolist(),
            "configurations": [names[a:b] for a, b in pairwise(self.starts.tolist())],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RiskProfile:
        """The inverse of `to_json`."""
        try:
            if (document["format"], document["version"]) != (_FORMAT, _VERSION):
                raise InputError(f"the profile is not a {_FORMAT} document of version {_VERSION}")
            members, sets = whole("the profile's members", document["members"]), document["configurations"]
            size = None if document["size"] is None else whole("the profile's size", document["size"])
            masks = pack(from_words("the profile", [word for c in sets for word in c], members))
            points = np.repeat(np.arange(len(sets)), [len(c) for c in sets])
            weights = as_probs(document["weights"], len(sets), "weights", "configuration")
            return cls._build(points, masks, weights, members, size)
        except (KeyError, TypeError, IndexError, RuntimeError) as error:
            raise InputError(f"the profile is not a {_FORMAT} document ({error!r})") from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RiskProfile):
            return NotImplemented
        parts = ("members", "starts", "masks", "weights")
        return all(np.array_equal(getattr(self, part), getattr(other, part)) for part in parts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        size = "" if self.size is None else f", size={self.size}"
        return f"RiskProfile(members={self.members}, configurations={len(self.weights)}{size})"


def _binary(name: str, value: ArrayLike) -> NDArray[np.bool_]:
    try:
        matrix = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name} is ragged; every row must have one value per member") from error
    if matrix.size == 0:
        return np.zeros((0, matrix.shape[1] if matrix.ndim == 2 else 0), dtype=np.bool_)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf" or not ((matrix == 0) | (matrix == 1)).all():
        raise InputError(f"{name} must be a list of rows of zeros and ones, got {value!r:.60}")
    return matrix.astype(np.bool_)
