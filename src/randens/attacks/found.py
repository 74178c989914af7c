"""The result of an attack: one type for a batch, a data set, and the parts of several processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens.ensemble import RandomizedEnsemble
from randens.witness import WitnessPool

__all__ = ["Cost", "Found", "join", "pooled"]


@dataclass
class Cost:
    """The number of member passes, counted per input: a cost that does not depend on the machine.

    Attributes
    ----------
    forwards : int
        Passes of one input through one member.
    backwards : int
        Gradients of one member at one input.

    Examples
    --------
    >>> Cost(forwards=10) + Cost(forwards=5, backwards=2)
    Cost(forwards=15, backwards=2)
    """

    forwards: int = 0
    backwards: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forwards + other.forwards, self.backwards + other.backwards)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.forwards - other.forwards, self.backwards - other.backwards)

    @property
    def passes(self) -> int:
        """Forward and backward passes together."""
        return self.forwards + self.backwards


@dataclass(frozen=True)
class Found:
    """The result of an attack on n inputs.

    Attributes
    ----------
    x_adv : Tensor [n, ...]
        The worst perturbed inputs; empty if they were not kept in memory.
    errors : bool Tensor [n, M]
        Their verdicts, exactly what ``rec.errors(x_adv, y)`` gives.
    risk : float64 Tensor [n]
        errors·α.
    clean_errors : bool Tensor [n, M]
        Verdicts on the unperturbed inputs.
    pool : WitnessPool
        Every maximal fooled set that was found.
    cost, reused : Cost
        The member passes behind the result, and those of them that an earlier call made.
    sources : tuple of str
        The attack that found each worst case.
    flags : dict
        Per member, the shares of inputs with unusable gradients, or whose verdict changed when computed
        again.
    seconds : float
        The time of the attack.
    """

    x_adv: Tensor
    errors: Tensor
    risk: Tensor
    clean_errors: Tensor
    pool: WitnessPool
    cost: Cost
    sources: tuple[str, ...]
    flags: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    reused: Cost = field(default_factory=Cost)

    def __len__(self) -> int:
        return len(self.risk)

    @property
    def robust_accuracy(self) -> float:
        """1 − mean risk."""
        return 1.0 - float(self.risk.mean()) if len(self.risk) else 1.0

    def lean(self) -> Found:
        """Without the perturbed inputs: a few bytes per input."""
        return replace(self, x_adv=self.x_adv[:0].clone(), pool=self.pool.without_inputs())

    def shown_to(self, audience: Sequence[nn.Module], y: Tensor) -> Found:
        """Return the result with the verdicts of further members on every witness, as further columns of the
        pool.
        """
        if not audience:
            return self
        pool, others = self.pool, RandomizedEnsemble(list(audience))
        verdicts = np.zeros((len(pool), len(audience)), dtype=bool)
        if len(pool):
            assert pool.x_adv is not None
            labels = y.cpu()[torch.from_numpy(pool.points)].to(others.device)
            verdicts = others.errors(torch.from_numpy(pool.x_adv).to(others.device), labels).cpu().numpy()
        passes = sum(int(getattr(m, "passes", 1)) for m in audience)
        wider = pool.replace(
            members=pool.members + len(audience), fooled=np.concatenate([pool.fooled, verdicts], axis=1)
        )
        return replace(self, pool=wider, cost=self.cost + Cost(forwards=len(pool) * passes))

    def beside(self, rows: NDArray[np.int64], other: Found | None, others: NDArray[np.int64]) -> Found:
        """Combine this result on `rows` of a batch with `other` on the remaining rows."""
        whole = self if other is None else join([self, other])
        return whole.ordered(np.argsort(np.concatenate([rows, others]), kind="stable"))

    def ordered(self, order: NDArray[np.int64]) -> Found:
        """The same inputs in another order."""
        chosen = torch.from_numpy(order)
        return replace(
            self,
            x_adv=self.x_adv[chosen] if len(self.x_adv) else self.x_adv,
            errors=self.errors[chosen],
            risk=self.risk[chosen],
            clean_errors=self.clean_errors[chosen],
            pool=self.pool.take(order),
            sources=tuple(self.sources[j] for j in order.tolist()),
        )

    def pack(self) -> bytes:
        """As safetensors, for another process."""
        pool = self.pool
        tensors = {
            "x_adv": self.x_adv,
            "errors": self.errors,
            "risk": self.risk,
            "clean_errors": self.clean_errors,
            "points": torch.from_numpy(pool.points),
            "fooled": torch.from_numpy(pool.fooled),
            "checked": torch.from_numpy(pool.checked),
        }
        if pool.x_adv is not None:
            tensors["pool"] = torch.from_numpy(np.ascontiguousarray(pool.x_adv))
        about = {
            "members": pool.members,
            "sources": [self.sources, pool.sources],
            "cost": [vars(self.cost), vars(self.reused)],
            "seconds": self.seconds,
            "flags": self.flags,
        }
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        return safetensors.torch.save(tensors, {"about": json.dumps(about)})

    @staticmethod
    def unpack(content: bytes) -> Found:
        """The inverse of `pack`."""
        length = int.from_bytes(content[:8], "little")
        about: Mapping[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
        # safetensors holds numbers and names only: reading it runs nothing.
        tensors = safetensors.torch.load(content)
        (sources, found_by), (cost, reused) = about["sources"], about["cost"]
        pool = WitnessPool(
            len(tensors["risk"]),
            about["members"],
            tensors["points"].numpy(),
            tensors["fooled"].numpy(),
            x_adv=tensors["pool"].numpy() if "pool" in tensors else None,
            sources=found_by,
            checked=tensors["checked"].numpy(),
        )
        return Found(
            tensors["x_adv"],
            tensors["errors"],
            tensors["risk"],
            tensors["clean_errors"],
            pool,
            Cost(**cost),
            tuple(sources),
            about["flags"],
            about["seconds"],
            Cost(**reused),
        )


def join(parts: Sequence[Found]) -> Found:
    """Results of consecutive parts of the data as one."""
    if len(parts) == 1:
        return parts[0]
    return Found(
        torch.cat([f.x_adv for f in parts]),
        torch.cat([f.errors for f in parts]),
        torch.cat([f.risk for f in parts]),
        torch.cat([f.clean_errors for f in parts]),
        WitnessPool.concat([f.pool for f in parts]),
        sum((f.cost for f in parts), Cost()),
        tuple(s for f in parts for s in f.sources),
        _flags(parts),
        sum(f.seconds for f in parts),
        sum((f.reused for f in parts), Cost()),
    )


def pooled(parts: Sequence[Found]) -> Found:
    """Combine results on the same inputs, one per set of a union: the worst of each input, and all
    witnesses.
    """
    worst = torch.stack([f.risk for f in parts]).argmax(dim=0).tolist()
    pool = parts[0].pool
    for part in parts[1:]:
        pool = pool.merge(part.pool)
    return Found(
        torch.stack([parts[k].x_adv[row] for row, k in enumerate(worst)]),
        torch.stack([parts[k].errors[row] for row, k in enumerate(worst)]),
        torch.stack([parts[k].risk[row] for row, k in enumerate(worst)]),
        parts[0].clean_errors,
        pool,
        sum((f.cost for f in parts), Cost()),
        tuple(parts[k].sources[row] for row, k in enumerate(worst)),
        _flags(parts),
        sum(f.seconds for f in parts),
        sum((f.reused for f in parts), Cost()),
    )


def _flags(parts: Sequence[Found]) -> dict[str, Any]:
    """Shares per member, averaged over the parts by their number of inputs."""
    total = sum(len(f) for f in parts)
    return {
        key: np.sum([len(f) / total * np.asarray(f.flags[key]) for f in parts], axis=0).tolist()
        for key in parts[0].flags
    }
