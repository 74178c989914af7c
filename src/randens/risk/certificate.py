"""Chosen probabilities, and the proof that no others have a lower risk, which can be checked without a solver."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens.core.files import plain
from randens.risk.profile import RiskProfile
from randens.risk.sets import Masks, frozen, unpack

_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """The attacker's mixed strategy: at inputs of configuration k, fool the set u with mass q_{k,u} [r].

    With q ≥ 0 and Σ_u q_{k,u} = p_k, every α has η(α) = Σ_k p_k max_u u·α ≥ Σ q_{k,u} u·α ≥ min_i Σ q_{k,u} u_i,
    the bound: linear programming duality, checked by additions alone.

    members: M. configuration: k of each entry, as numbered in the profile. masks: its set u. mass: q.
    """

    members: int
    configuration: NDArray[np.int64]
    masks: Masks
    mass: NDArray[np.float64]
    bound: float

    @classmethod
    def from_rows(cls, profile: RiskProfile, mass: NDArray[np.float64]) -> Certificate:
        """From a mass for every row of the profile's masks; each configuration is scaled to sum to p_k."""
        at, lengths = profile.starts[:-1], np.diff(profile.starts)
        q = np.maximum(mass, 0.0)
        q = q * np.repeat(profile.weights / np.add.reduceat(q, at), lengths)
        rows = np.flatnonzero(q)
        masks, q = profile.masks[rows], q[rows]
        bound = float((q @ unpack(masks, profile.members)).min())
        return cls(profile.members, frozen(profile.owners[rows]), frozen(masks), frozen(q), bound)

    def verify(self, profile: RiskProfile) -> bool:
        """Whether this proves η(α) ≥ bound for every α of that profile, up to rounding (1e-12)."""
        if self.members != profile.members or not np.isfinite([self.bound, *self.mass]).all():
            return False
        if not len(self.configuration) == len(self.masks) == len(self.mass) > 0 or self.mass.min() < 0:
            return False
        held = set(zip(profile.owners.tolist(), profile.masks.tolist(), strict=True))
        if not held.issuperset(zip(self.configuration.tolist(), self.masks.tolist(), strict=True)):
            return False
        sums = np.bincount(self.configuration, weights=self.mass, minlength=len(profile.weights))
        if (np.abs(sums - profile.weights) > _TOLERANCE * profile.weights).any():
            return False
        fooled = self.mass @ unpack(self.masks, self.members)
        return bool(fooled.min() >= self.bound - _TOLERANCE)


@dataclass(frozen=True, eq=False)
class Sampling:
    """Sampling probabilities, with a bound on their distance from the optimum.

    probs: α [M]. risk: η(α). lower_bound: no probabilities reach less than this on the same profile. method: "exact",
    "subgradient", "candidates", "confidence" or "cutting-planes". iterations: how often η was evaluated. certificate:
    the proof of the lower bound, where the method gives one. theorem4_bound: what Theorem 4 promises about risk −
    optimum. sweeps: how often all inputs were attacked. attempts: how often the attacker of `risk` may try. If chosen
    by a `confidence`: upper bounds the risk over the distribution of the inputs against the perturbations found; it
    holds for all α at once, and so for the α chosen. objective: what was minimized instead of the risk, and what
    `lower_bound` refers to: `upper`, or the bound of the excess over the reference.
    """

    probs: NDArray[np.float64]
    risk: float
    lower_bound: float
    method: str
    iterations: int
    certificate: Certificate | None = None
    theorem4_bound: float | None = None
    sweeps: int = 0
    attempts: int | float = 1
    upper: float | None = None
    objective: float | None = None
    confidence: float | None = None

    @property
    def gap(self) -> float:
        """How much better other probabilities could still be, in what was minimized; never below 0."""
        return max(0.0, (self.risk if self.objective is None else self.objective) - self.lower_bound)

    @property
    def support(self) -> tuple[int, ...]:
        """The members with positive probability; the others can be dropped."""
        return tuple(int(i) for i in np.flatnonzero(self.probs))

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON, without the certificate, which is large."""
        names = "method probs risk lower_bound gap support iterations sweeps theorem4_bound upper objective confidence"
        # JSON has no infinite numbers.
        attempts = None if self.attempts == math.inf else self.attempts
        return {**{name: plain(getattr(self, name)) for name in names.split()}, "attempts": attempts}
