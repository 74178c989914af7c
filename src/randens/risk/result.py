"""The result of choosing sampling probabilities, for all methods."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens.core.files import picked
from randens.risk.certificate import Certificate

__all__ = ["Sampling"]


@dataclass(frozen=True, eq=False)
class Sampling:
    """Sampling probabilities, with a bound on their distance from the optimum.

    probs: α [M]. risk: η(α). lower_bound: no probabilities reach less than this on the same profile.
    certificate: the proof of the lower bound, where the method gives one. method: "exact", "subgradient",
    "candidates" or "cutting-planes". iterations: how often η was evaluated. sweeps: how often all inputs were
    attacked for it. exact_probs: the same probabilities as fractions, where they are known exactly.
    theorem4_bound: what Theorem 4 promises about risk − optimum, for the subgradient method.
    """

    probs: NDArray[np.float64]
    risk: float
    lower_bound: float
    method: str
    iterations: int
    certificate: Certificate | None = None
    exact_probs: tuple[Fraction, ...] | None = None
    theorem4_bound: float | None = None
    sweeps: int = 0

    @property
    def gap(self) -> float:
        """risk − lower_bound, never below 0: the most that better probabilities could still gain."""
        return max(0.0, self.risk - self.lower_bound)

    @property
    def support(self) -> tuple[int, ...]:
        """The members with positive probability; the others can be dropped."""
        return tuple(int(i) for i in np.flatnonzero(self.probs))

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON, without the certificate, which is large and has its own `to_json`."""
        names = "method probs risk lower_bound gap support iterations sweeps theorem4_bound"
        exact = None if self.exact_probs is None else [str(p) for p in self.exact_probs]
        return {**picked(self, names), "exact_probs": exact}
