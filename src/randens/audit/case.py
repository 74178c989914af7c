"""The common state of all checks: the ensemble under audit, its inputs, and a cache of attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from randens import attacks
from randens.attacks import Cost, Found
from randens.attacks.dataset import attack_data
from randens.core.progress import Progress, silent
from randens.ensemble import RandomizedEnsemble, evaluating, to_layout
from randens.threat import Threat
from randens.witness.store import WitnessStore

__all__ = ["ENSEMBLE", "LUCK", "Case", "Check", "Fooled", "Risks", "TOLERANCE", "logits", "named"]

Fooled = NDArray[np.bool_]
Risks = NDArray[np.float64]

ENSEMBLE = -1
"""Means the ensemble where a number means a member."""

TOLERANCE = 0.02
"""Share of the inputs on which the weaker of two attacks may be luckier than the stronger one."""

LUCK = 0.01
"""The weaker of two attacks is luckier, and no more, unless a sign test over the inputs rejects that at this level."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Check:
    """The result of one check: what was compared, whether it passed, and advice if it failed.

    Attributes
    ----------
    name : str
        Of the check.
    passed : bool
        Whether the check passed.
    finding : str
        One sentence with the numbers.
    evidence : mapping
        The numbers behind it, as plain values.
    advice : str
        What to do; empty if passed.
    """

    name: str
    passed: bool
    finding: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {**vars(self), "evidence": dict(self.evidence)}


@dataclass
class Case:
    """The ensemble on n inputs x [n, ...] with labels y [n]. Attacks are cached: no attack runs twice.

    store: attacks made before, on these members and inputs, are read there and new ones kept. cost: passes behind the
    attacks; now: those made in this call.
    """

    rec: RandomizedEnsemble
    x: Tensor
    y: Tensor
    threat: Threat
    seed: int = 0
    progress: Progress = silent
    cost: Cost = field(default_factory=Cost)
    store: WitnessStore | None = None
    now: Cost = field(default_factory=Cost)
    _known: dict[tuple[Any, ...], Found] = field(default_factory=dict, repr=False)

    @property
    def members(self) -> Sequence[nn.Module]:
        """The members, in order."""
        return list(self.rec.members)

    @property
    def n(self) -> int:
        """Number of inputs."""
        return len(self.y)

    @property
    def probs(self) -> NDArray[np.float64]:
        """α [M]."""
        probs: NDArray[np.float64] = self.rec.probs.cpu().numpy()
        return probs

    @property
    def allowed(self) -> float:
        """`TOLERANCE`, but never less than a single input."""
        return max(TOLERANCE, 1.0 / self.n)

    def beaten(self, stronger: Risks, weaker: Risks) -> bool:
        """Whether the attack that must be weaker finds more, per input [n]: more than `allowed` and more than
        chance.

        Two attacks of limited length differ on a few inputs, in both directions, depending on the last digits
        of the logits. With masked gradients the same attack is better on most of these inputs.
        """
        ahead, behind = int((weaker > stronger).sum()), int((weaker < stronger).sum())
        luck = float(stats.binom.sf(ahead - 1, ahead + behind, 0.5))
        return bool(weaker.mean() > stronger.mean() + self.allowed + _ROUNDING) and luck < LUCK

    def everyone(self) -> Iterator[int]:
        """Every member, and the ensemble if it has more than one."""
        yield from range(len(self.members))
        if len(self.members) > 1:
            yield ENSEMBLE

    def attack(self, who: int, name: str, scale: float = 1.0, **options: Any) -> Found:
        """Attack a member alone or the ensemble, with gradients in full precision, at `scale` times the radius."""
        key = (who, name, scale, *sorted(options.items()))
        if key not in self._known:
            target = self.rec if who == ENSEMBLE else RandomizedEnsemble([self.members[who]])
            threat = self.threat if scale == 1.0 else self.threat.scaled(scale)
            made = attacks.create(name, threat, seed=self.seed, precision="float32", **options)
            task = f"{name} on {named(who)}" + ("" if scale == 1.0 else f", {scale:g} ε")
            self.progress(task, 0, self.n)
            found = attack_data(
                made, target, (self.x, self.y), store=self.store, progress=self.progress, task=task
            )
            self.now = self.now + (found.cost - found.reused)
            self.cost = self.cost + found.cost
            self._known[key] = found
        return self._known[key]

    def risk(self, who: int, name: str, scale: float = 1.0, **options: Any) -> NDArray[np.float64]:
        """Expected error per input [n] that an attack reaches."""
        found: NDArray[np.float64] = self.attack(who, name, scale, **options).risk.numpy()
        return found

    def judge(self, member: int, x: Tensor) -> Fooled:
        """Verdicts [n] of one member on other inputs."""
        alone = RandomizedEnsemble([self.members[member]])
        self.cost = self.cost + Cost(forwards=len(x))
        fooled: Fooled = alone.errors(x.to(alone.device), self.y.to(alone.device)).cpu().numpy()[:, 0]
        return fooled


def named(who: int) -> str:
    """Return a name for sentences."""
    return "the ensemble" if who == ENSEMBLE else f"member {who}"


def logits(case: Case, member: int, x: Tensor) -> Tensor:
    """Return one member's logits [n, C] in eval mode, without gradients."""
    module = case.members[member]
    with evaluating(module), torch.no_grad():
        z: Tensor = module(to_layout(x.to(case.rec.device))).cpu()
    case.cost = case.cost + Cost(forwards=len(x))
    return z
