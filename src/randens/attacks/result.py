"""The result of an attack: one type for a batch and for a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from randens.witness import WitnessPool


@dataclass
class Cost:
    """Member passes: forwards of one input through one member, backwards to it; the same on every machine."""

    forwards: int = 0
    backwards: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forwards + other.forwards, self.backwards + other.backwards)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.forwards - other.forwards, self.backwards - other.backwards)

    def __str__(self) -> str:
        return f"{self.forwards:,} forward and {self.backwards:,} backward member passes"

    @property
    def passes(self) -> int:
        """Forward and backward passes together."""
        return self.forwards + self.backwards


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """What an attack found on n inputs.

    Attributes
    ----------
    x_adv : Tensor [n, ...]
        The worst perturbed inputs; empty if they were not kept.
    errors : bool Tensor [n, M]
        Their verdicts, exactly what ``rec.errors(x_adv, y)`` gives.
    risk : float64 Tensor [n]
        errors·α.
    clean_errors : bool Tensor [n, M]
        Verdicts on the unperturbed inputs.
    pool : WitnessPool
        Every maximal fooled set that was found; witnesses that were known before are not repeated.
    cost : Cost
        The member passes behind the result.
    sources : tuple of str
        The attack that found each worst case.
    flags : dict
        Per member, the share of inputs where its gradient was zero (``zero_gradient``) or NaN (``nan_gradient``), or
        where it was fooled and is not when scored once more (``unstable``).
    """

    x_adv: Tensor
    errors: Tensor
    risk: Tensor
    clean_errors: Tensor
    pool: WitnessPool
    cost: Cost
    sources: tuple[str, ...]
    flags: dict[str, list[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.risk)

    @property
    def robust_accuracy(self) -> float:
        """1 − mean risk."""
        return 1.0 - float(self.risk.mean()) if len(self.risk) else 1.0


def join(parts: Sequence[AttackResult]) -> AttackResult:
    """Results of consecutive parts of the data as one."""
    return AttackResult(
        x_adv=torch.cat([part.x_adv for part in parts]),
        errors=torch.cat([part.errors for part in parts]),
        risk=torch.cat([part.risk for part in parts]),
        clean_errors=torch.cat([part.clean_errors for part in parts]),
        pool=WitnessPool.concat([part.pool for part in parts]),
        cost=sum((part.cost for part in parts), Cost()),
        sources=tuple(source for part in parts for source in part.sources),
        flags={name: _mean([part.flags[name] for part in parts], parts) for name in parts[0].flags},
    )


def _mean(shares: list[list[float]], parts: Sequence[AttackResult]) -> list[float]:
    """Shares per member, averaged over the parts by their numbers of inputs."""
    sizes = np.array([len(part) for part in parts])
    mean: list[float] = (sizes @ np.array(shares) / max(1, sizes.sum())).tolist()
    return mean
