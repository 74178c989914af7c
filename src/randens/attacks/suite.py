"""A portfolio: several attacks on one search, so that each begins with the witnesses of the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from randens.attacks.arc import ARC
from randens.attacks.base import Attack, create, register
from randens.attacks.lattice import Lattice
from randens.attacks.losses import expected_margin, expected_mce, mixture_cross_entropy, standardized
from randens.attacks.pgd import FGSM, PGD, ascend, auto_pgd
from randens.attacks.saddle import Saddle
from randens.attacks.search import Search
from randens.attacks.square import Square
from randens.threat import Threat

PRESETS = ("fast", "standard", "thorough")
# The logits' scale has no effect on these.
_LOSSES = (standardized(mixture_cross_entropy), expected_margin, standardized(expected_mce))
_SADDLE_DRAWS = 8  # of a random model: the cost of saddle grows with their square
_RESISTED = 4  # failed searches for one member alone before `standard` spares an input the joint attacks


@dataclass(frozen=True, kw_only=True)
class _Adaptive(Attack):
    """Adaptive PGD with three losses: mixture cross-entropy, margin, margin-maximizing cross-entropy."""

    steps: int = 20

    @property
    def name(self) -> str:
        return "adaptive-pgd-3"

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            for loss in _LOSSES:
                ascend(s, loss, steps=self.steps, step=0.25, restart=restart)


@dataclass(frozen=True, kw_only=True)
class _Alone(Attack):
    """Auto-PGD against each member alone: cross-entropy from a random point, then margins to the nearest classes."""

    steps: int = 50
    classes: int = 3

    @property
    def name(self) -> str:
        return "apgd-alone"

    def search(self, s: Search) -> None:
        for member in s.probs.nonzero().flatten().tolist():
            auto_pgd(s, _LOSSES[0], steps=self.steps, restart=1, members=[member])
            for target in _runners_up(s, member, self.classes):
                auto_pgd(s, expected_margin, steps=self.steps, members=[member], aim=target)


def _runners_up(s: Search, member: int, count: int) -> list[torch.Tensor]:
    """The classes [n] that are nearest to being mistaken for the right one at the input, one rank after the other."""
    with torch.no_grad():
        z = s.ask(member, s.x).scatter(1, s.y[:, None], -torch.inf)
    return list(z.argsort(dim=1, descending=True)[:, : min(count, z.shape[1] - 1)].T)


def parts(preset: str, threat: Threat) -> tuple[Attack, ...]:
    """The attacks of a preset in the order in which they run: cheap ones first, which decide most inputs."""
    if preset == "fast":
        return (Saddle(threat, orders=1, restarts=2), _Adaptive(threat, steps=10))
    if preset == "standard":
        return (
            Saddle(threat, orders=4, restarts=4),
            _Alone(threat),
            _Adaptive(threat, steps=10),
            ARC(threat, steps=20, shuffle=True),
            Lattice(threat, orders=1),
            Square(threat, queries=1000),
        )
    return (
        FGSM(threat),
        Saddle(threat, orders=8, restarts=8, boundaries=3),
        PGD(threat, steps=50, step=0.1, restarts=2),
        _Adaptive(threat, steps=50, restarts=2),
        _Alone(threat, steps=100, classes=9),
        ARC(threat, steps=20),
        ARC(threat, steps=20, restarts=3, shuffle=True),
        Lattice(threat, orders=3, steps=30),
        Square(threat, queries=500),
        Square(threat),
    )


@register("fast", preset="fast")
@register("standard", preset="standard")
@register("thorough", preset="thorough")
@register("suite")
@dataclass(frozen=True, kw_only=True)
class Suite(Attack):
    """Every attack of a preset; of each input the worst case. Budgets are in steps, whatever the machine.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.Suite(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("standard", attack.threat)
    ('standard', True)
    """

    preset: str = field(default="standard", metadata={"choices": PRESETS})

    def search(self, s: Search) -> None:
        for attack in parts(self.preset, self.threat):
            s.source, s.left_out = attack.name, torch.zeros_like(s.blind)
            if isinstance(attack, Square) and attack.name == "square":
                s.left_out = ~s.blind  # many queries, only where gradients tell nothing
            elif self.preset == "standard" and not isinstance(attack, (Saddle, _Alone)):
                s.left_out = _all_resisted(s)  # where no member can be fooled alone, none can be with others
            attack.search(s)
        s.left_out = torch.zeros_like(s.blind)

    def on_draws(self) -> tuple[list[Attack], list[tuple[Attack, int]]]:
        own: dict[str, Any] = {"threat": self.threat, "seed": self.seed}
        margin = create("adaptive-pgd-margin", **own)
        saddle = Saddle(orders=1, restarts=1, **own)
        return [create("eot", **own), margin], [(saddle, _SADDLE_DRAWS), (margin, 1)]


def _all_resisted(s: Search) -> torch.Tensor:
    """Bool [n]: every member that the best point does not fool resisted all searches for it, with usable gradients."""
    alone = (s.resisted >= _RESISTED) & ~s.foolable
    return (alone | s.best | (s.probs == 0)).all(dim=1) & ~s.blind
