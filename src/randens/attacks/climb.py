"""Enlarging the set of fooled members one by one: what `saddle` and `lattice`, which search differently, share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from randens.attacks.search import Search

# refuted(s, rows, target, kappa): bool [k], no perturbation of the linear models fools all of `target`, and the proof.
Refuted = Callable[[Search, Tensor, Tensor, float], tuple[Tensor, Tensor]]
_LISTED = 8  # members that can be sampled: all 2^M sets are listed
_GAMES = 12  # games per input and choice; a set that they leave undecided is tried


class Reach(Protocol):
    """Points [k, ...] that fool all of `target` [k, M], where they are found, and the verdicts [k, M] there."""

    def __call__(
        self, s: Search, rows: Tensor, start: Tensor, target: Tensor, classes: int = 1
    ) -> tuple[Tensor, Tensor]: ...


def climb(s: Search, reach: Reach, *, restart: int, sweep: int, patience: int, classes: int = 1) -> None:
    """Add members to the fooled set in random order; those that `patience` searches alone did not fool are left out."""
    point, fooled = s.start(restart), s.clean.clone() if restart == 0 else torch.zeros_like(s.clean)
    order = s.orders(restart)
    if restart == sweep == 0:  # members of larger probability first
        order = order.gather(1, s.probs[order].argsort(dim=1, descending=True, stable=True))
    for place, member in enumerate(order.T[:, :, None]):
        to_come = torch.zeros_like(fooled).scatter(1, order[:, place:], True)
        worth = s.risk(fooled | to_come) > s.risk(s.best) + 1e-9  # can still beat the best
        worth |= ~s.foolable.gather(1, member)[:, 0]
        worth &= ~fooled.gather(1, member)[:, 0] & (s.probs > 0)[member[:, 0]]
        worth &= s.resisted.gather(1, member)[:, 0] < patience
        rows = s.open[worth[s.open]]
        target = (fooled[rows] & (s.probs > 0)).scatter(1, member[rows], True)
        end, verdicts = reach(s, rows, point[rows], target, classes)
        done = (verdicts | ~target).all(dim=1)
        point[rows[done]], fooled[rows[done]] = end[done], verdicts[done]
        s.resisted[rows] += target & (~done & (target.sum(dim=1) == 1))[:, None]


class Targets:
    """Sets worth aiming at from the inputs, heavier than a climb's end; a proof rules out all that contain it."""

    def __init__(self, s: Search) -> None:
        sampled = s.probs.nonzero().flatten()
        count = 2 ** len(sampled) if len(sampled) <= _LISTED else 1
        numbers, place = (torch.arange(end, device=s.device) for end in (count, len(sampled)))
        self.sets = torch.zeros(count, s.members, dtype=torch.bool, device=s.device)
        self.sets[:, sampled] = (numbers[:, None] >> place & 1) == 1
        self.left = torch.ones(s.n, count, dtype=torch.bool, device=s.device)

    def rule_out(self, rows: Tensor, sets: Tensor) -> None:
        """Rule out `sets` [k, M] and all that contain them."""
        self.left[rows] &= ~(self.sets | ~sets[:, None]).all(dim=2)

    def next(self, s: Search, refuted: Refuted, kappa: float) -> tuple[Tensor, Tensor]:
        """Inputs [k] and the heaviest set [k, M] above their best that is not ruled out; it is not chosen again."""
        rows, weight, choice = s.open, s.risk(self.sets), torch.zeros_like(s.best)
        self.left[rows] &= weight > s.risk(s.best[rows])[:, None] + 1e-9
        for _ in range(_GAMES):
            rows = rows[self.left[rows].any(dim=1)]
            if not len(rows):
                break
            target = choice[rows] = self.sets[(weight * self.left[rows]).argmax(dim=1)]
            out, proof = refuted(s, rows, target, kappa)
            self.rule_out(rows[out], proof[out])
            rows = rows[out]
            choice[rows] = False
        chosen = choice.any(dim=1).nonzero().flatten()
        self.rule_out(chosen, choice[chosen])
        return chosen, choice[chosen]
