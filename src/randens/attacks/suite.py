"""A portfolio: several attacks on one search, so that each begins with the witnesses of the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from randens.attacks.apgd import ascend_adaptively
from randens.attacks.arc import ARC
from randens.attacks.base import Attack, register
from randens.attacks.lattice import Lattice
from randens.attacks.losses import expected_margin, expected_mce, mixture_cross_entropy, standardized
from randens.attacks.pgd import FGSM, PGD, ascend
from randens.attacks.random_search import RandomSearch
from randens.attacks.saddle import Saddle
from randens.attacks.search import Search
from randens.core.errors import unknown
from randens.threat import Threat

__all__ = ["PRESETS", "Suite", "parts"]

PRESETS = ("fast", "standard", "thorough")
# The logits' scale has no effect on these.
_LOSSES = (standardized(mixture_cross_entropy), expected_margin, standardized(expected_mce))
_RESISTED = (
    4  # failed searches for one member alone, of saddle and pgd, before `standard` leaves an input out
)


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
class _Automatic(Attack):
    """The same three losses with Auto-PGD's step rule, and the margin against each member alone."""

    steps: int = 50

    @property
    def name(self) -> str:
        return "apgd-3"

    def search(self, s: Search) -> None:
        for loss in _LOSSES:
            ascend_adaptively(s, loss, steps=self.steps)
        for member in s.probs.nonzero().flatten().tolist():
            ascend_adaptively(s, expected_margin, steps=self.steps, members=[member])


def parts(preset: str, threat: Threat) -> tuple[Attack, ...]:
    """The attacks of a preset in the order in which they run: cheap ones first, which decide most inputs."""
    if preset == "fast":
        return (Saddle(threat, orders=1, restarts=2), _Adaptive(threat, steps=10))
    if preset == "standard":
        return (
            Saddle(threat, orders=4, restarts=4),
            PGD(threat),
            _Adaptive(threat, steps=10),
            ARC(threat, steps=20, shuffle=True),
            Lattice(threat, orders=1),
            RandomSearch(threat, queries=50),
        )
    if preset == "thorough":
        return (
            FGSM(threat),
            Saddle(threat, orders=8, restarts=8, boundaries=3),
            PGD(threat, steps=50, step=0.1, restarts=2),
            _Adaptive(threat, steps=50, restarts=2),
            _Automatic(threat, steps=100),
            ARC(threat, steps=20),
            ARC(threat, steps=20, restarts=3, shuffle=True),
            Lattice(threat, orders=3, steps=30),
            RandomSearch(threat, queries=500),
        )
    return unknown("preset", preset, PRESETS)


@register("fast", preset="fast")
@register("standard", preset="standard")
@register("thorough", preset="thorough")
@register("suite")
@dataclass(frozen=True, kw_only=True)
class Suite(Attack):
    """Every attack of a preset; of each input the worst case. Budgets are in steps, whatever the machine.

    Parameters
    ----------
    preset : str
        ``"fast"``, ``"standard"`` or ``"thorough"``.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.Suite(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("standard", attack.threat)
    ('standard', True)
    """

    preset: str = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        parts(self.preset, self.threat)

    def search(self, s: Search) -> None:
        for attack in parts(self.preset, self.threat):
            s.source = attack.name
            # Where no member can be fooled alone, none can be together with others.
            together = self.preset == "standard" and not isinstance(attack, (Saddle, PGD, RandomSearch))
            s.left_out = _all_resisted(s) if together else torch.zeros_like(s.blind)
            attack.search(s)


def _all_resisted(s: Search) -> torch.Tensor:
    """Bool [n]: every member that the best point does not fool resisted all searches for it alone.

    Searches whose gradients were zero or NaN tell nothing.
    """
    alone = (s.resisted >= _RESISTED) & ~s.foolable
    return (alone | s.best | (s.probs == 0)).all(dim=1) & ~s.blind
