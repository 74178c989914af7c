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
from randens.attacks import Attack, Cost
from randens.attacks.dataset import Found, ask, attack_data
from randens.core.errors import RandensError
from randens.core.files import Plain
from randens.core.progress import Progress, silent
from randens.ensemble import RandomizedEnsemble, evaluating, to_layout
from randens.threat import Threat
from randens.witness.store import WitnessStore, input_keys, member_key

__all__ = [
    "ENSEMBLE",
    "LUCK",
    "TOLERANCE",
    "Case",
    "Check",
    "Fooled",
    "NotStored",
    "Risks",
    "StoredCase",
    "logits",
    "named",
]

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
class Check(Plain):
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

    def __post_init__(self) -> None:
        if self.passed:
            object.__setattr__(self, "advice", "")


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
    _judged: dict[int, Fooled] = field(default_factory=dict, repr=False)

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
        """Whether the attack that must be weaker finds more [n] than the other: beyond `allowed` and chance.

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
            made = attacks.create(name, threat, seed=self.seed, **options)
            task = f"{name} on {named(who)}" + ("" if scale == 1.0 else f", {scale:g} ε")
            self.progress(task, 0, self.n)
            found = self._met(made, target, task)
            self.now = self.now + (found.cost - found.reused)
            self.cost += found.cost
            self._known[key] = found
        return self._known[key]

    def risk(self, who: int, name: str, scale: float = 1.0, **options: Any) -> NDArray[np.float64]:
        """Expected error per input [n] that an attack reaches."""
        found: NDArray[np.float64] = self.attack(who, name, scale, **options).risk.numpy()
        return found

    def judge(self, member: int, x: Tensor) -> Fooled:
        """Verdicts [n] of one member on other inputs."""
        alone = RandomizedEnsemble([self.members[member]])
        self.cost += Cost(forwards=len(x))
        fooled: Fooled = alone.errors(x.to(alone.device), self.y.to(alone.device)).cpu().numpy()[:, 0]
        return fooled

    def errors(self, x: Tensor, rows: NDArray[np.int64] | None = None) -> Fooled:
        """Verdicts [n, M] of all members on perturbed inputs, computed now; rows: on perturbed inputs of these only."""
        labels = self.y if rows is None else self.y[torch.from_numpy(rows)]
        self.now += Cost(forwards=len(x) * len(self.members))
        fooled: Fooled = self.rec.errors(x.to(self.rec.device), labels.to(self.rec.device)).cpu().numpy()
        return fooled

    def transferred(self, source: int, name: str, **options: Any) -> Fooled:
        """Verdicts [n, M] of all members on the perturbations that an attack found for member `source` alone.

        Verdicts in the store are read, and new ones are added to it.
        """
        if source not in self._judged:
            x_adv = self.attack(source, name, **options).x_adv
            fooled = np.full((self.n, len(self.members)), -1, dtype=np.int8)
            names = [member_key(member) for member in self.members] if self.store is not None else []
            keys = input_keys(self.x, self.y)
            if self.store is not None:
                fooled = self.store.lookup(names, keys, x_adv)
            left = np.flatnonzero((fooled < 0).any(axis=1))
            if len(left):
                chosen = torch.from_numpy(left)
                fooled[left] = self.errors(x_adv[chosen], left)
                if self.store is not None:
                    new = fooled[left] == 1
                    self.store.judged(
                        self.threat, self.x[chosen], keys[left], names, x_adv[chosen], new, "transfer"
                    )
            self.cost += Cost(forwards=fooled.size)
            self._judged[source] = fooled == 1
        return self._judged[source]

    def _met(self, attack: Attack, target: RandomizedEnsemble, task: str) -> Found:
        return attack_data(
            attack, target, (self.x, self.y), store=self.store, progress=self.progress, task=task
        )


class NotStored(RandensError):
    """A check needs an attack or verdicts that are not in the store."""


@dataclass
class StoredCase(Case):
    """A case that only reads its store: what is not there is `NotStored`, and no member is run."""

    def errors(self, x: Tensor, rows: NDArray[np.int64] | None = None) -> Fooled:  # noqa: ARG002
        """Not in a store."""
        raise NotStored(f"verdicts on {len(x)} inputs are not in the store")

    def _met(self, attack: Attack, target: RandomizedEnsemble, task: str) -> Found:
        assert self.store is not None
        question = ask(attack, [member_key(m) for m in target.members], target.probs.tolist(), alone=True)
        keys = input_keys(self.x, self.y)
        if not self.store.answer(question, keys, attack.threat, self.x).done.all():
            raise NotStored(f"{task} is not in the store")
        return super()._met(attack, target, task)


def named(who: int) -> str:
    """Return a name for sentences."""
    return "the ensemble" if who == ENSEMBLE else f"member {who}"


def logits(case: Case, member: int, x: Tensor) -> Tensor:
    """Return one member's logits [n, C] in eval mode, without gradients."""
    module = case.members[member]
    with evaluating(module), torch.no_grad():
        z: Tensor = module(to_layout(x.to(case.rec.device))).cpu()
    case.cost += Cost(forwards=len(x))
    return z
