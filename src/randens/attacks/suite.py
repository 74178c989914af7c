"""A portfolio: several attacks on one search, so that each starts from the witnesses of the others.

The result is the worst perturbation of each input; `Found.sources` names the attack that found it. Budgets
are fixed per preset, in steps, which do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from randens.attacks.arc import ARC, ARCR
from randens.attacks.base import Attack, register
from randens.attacks.climbers import Lattice, Saddle
from randens.attacks.gradient import FGSM, PGD, ascend, ascend_adaptively
from randens.attacks.losses import Loss, expected_margin, expected_mce, mixture_cross_entropy, standardised
from randens.attacks.random_search import RandomSearch
from randens.attacks.search import Search
from randens.core.errors import unknown
from randens.threat import Threat

__all__ = ["PRESETS", "Suite", "parts"]

PRESETS = ("fast", "standard", "thorough")
# Failed searches for one member alone. Before it attacks members together, `standard` makes five: four of saddle, the
# first of which may have aimed at the member together with others only, and one of pgd.
_RESISTED = 4


@dataclass(frozen=True, kw_only=True)
class _Adaptive(Attack):
    """Adaptive PGD with three losses: mixture cross-entropy, margin, margin-maximising cross-entropy."""

    steps: int = 20
    name = "adaptive-pgd-3"

    def search(self, s: Search) -> None:
        for losses in _side_by_side(s):
            ascend(s, *losses, steps=self.steps, step=0.25)


@dataclass(frozen=True, kw_only=True)
class _Automatic(Attack):
    """The same three losses with Auto-PGD's step rule, and the margin against each member alone."""

    steps: int = 50
    name = "apgd-3"

    def search(self, s: Search) -> None:
        for losses in _side_by_side(s):
            ascend_adaptively(s, *losses, steps=self.steps)
        with s.credited("apgd on members"):
            for member in s.probs.nonzero().flatten().tolist():
                ascend_adaptively(s, expected_margin, steps=self.steps, members=[member])


_LOSSES: tuple[Loss, ...] = (standardised(mixture_cross_entropy), expected_margin, standardised(expected_mce))


def _side_by_side(s: Search) -> Iterator[tuple[Loss, ...]]:
    """The losses, as many at a time as keep a pass within the batch size."""
    left = _LOSSES
    while left and len(rows := s.unfinished):
        several = max(1, s.width // len(rows))
        yield left[:several]
        left = left[several:]


def parts(preset: str, threat: Threat) -> tuple[Attack, ...]:
    """Return the attacks of a preset in the order in which they run: cheap ones first, which decide most
    inputs.
    """
    if preset == "fast":
        return (Saddle(threat, orders=1, restarts=2), _Adaptive(threat, steps=10))
    if preset == "standard":
        return (
            Saddle(threat, orders=4, restarts=4),
            PGD(threat),
            _Adaptive(threat, steps=10),
            ARCR(threat, steps=20),
            Lattice(threat, orders=1),
            RandomSearch(threat, queries=50),
        )
    if preset == "thorough":
        return (
            FGSM(threat),
            Saddle(threat, orders=8, restarts=8, hyperplanes=3),
            PGD(threat, steps=50, step=0.1, restarts=2),
            _Adaptive(threat, steps=50, restarts=2),
            _Automatic(threat, steps=100),
            ARC(threat, steps=20),
            ARCR(threat, steps=20, restarts=3),
            Lattice(threat, orders=3, steps=30),
            RandomSearch(threat, queries=500),
        )
    return unknown("preset", preset, PRESETS)


@register("suite")
@dataclass(frozen=True, kw_only=True)
class Suite(Attack):
    """Every attack of the chosen preset (`fast`, `standard`, `thorough`); the pointwise worst case.

    Parameters
    ----------
    preset : str
        ``"fast"``, ``"standard"`` or ``"thorough"``.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.Suite(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("suite", attack.threat)
    ('suite', True)
    """

    preset: str = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        parts(self.preset, self.threat)

    def search(self, s: Search) -> None:
        again = s.restart
        for stream, attack in enumerate(parts(self.preset, self.threat), start=1):
            together = isinstance(attack, (_Adaptive, ARCR, Lattice))
            with (
                s.credited(attack.name),
                s.leaving_out(_hopeless(s) if together and self.preset == "standard" else None),
            ):
                restarts = range(again * attack.restarts, (again + 1) * attack.restarts)
                attack.run(s, restarts, stream, width=self.batch_size)


def _hopeless(s: Search) -> Tensor:
    """Bool [n]: inputs where every member that the best point does not fool resisted all searches for it alone.

    As far as these searches can tell, no perturbation fools a larger set there. Searches whose gradients were zero or
    NaN tell nothing, so inputs with such gradients are not among them.
    """
    blind = (s.no_gradient | s.nan_gradient).any(dim=1).to(s.device)
    alone = (s.resistance >= _RESISTED) & ~s.foolable
    resisting = alone | s.best_errors | s.safe | (s.probs == 0)
    return resisting.all(dim=1) & ~blind
