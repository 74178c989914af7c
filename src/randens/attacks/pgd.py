"""Projected gradient ascent: FGSM, PGD, adaptive forms (Appendix B.3), and Auto-PGD (Croce and Hein, 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.losses import LOSSES, Loss, expected_cross_entropy, toward
from randens.attacks.search import Search


def ascend(
    s: Search, loss: Loss, *, steps: int, step: float, restart: int = 0, members: Sequence[int] | None = None
) -> None:
    """PGD, Eq. 95: δ ← Π(δ + step·ε·μ_p(∇ loss)), scored at every step; of `members`, until all are known as foolable.

    With a loss of all members it is Eq. 96, adaptive PGD, whose expectation over the members is an exact sum.
    """
    point = s.start(restart)
    for _ in range(steps):
        rows = unsolved(s, members)
        if not len(rows):
            return
        gradient = s.gradient(rows, point[rows], loss, members)
        point[rows] = s.project(rows, s.threat.step(point[rows], gradient, step * s.threat.eps))
    finish(s, point, members)


def auto_pgd(
    s: Search,
    loss: Loss,
    *,
    steps: int,
    restart: int = 0,
    members: Sequence[int] | None = None,
    aim: Tensor | None = None,
) -> None:
    """Auto-PGD from 2ε: the step halves, at the best point, where the loss stalls; `aim` [n]: classes to aim at."""
    point = s.start(restart)
    previous, best = point.clone(), point.clone()
    best_loss = s.x.new_full((s.n,), -torch.inf)
    last_loss, checked_loss = best_loss.clone(), best_loss.clone()
    size, rises = s.x.new_full((s.n,), 2.0), s.x.new_zeros(s.n)
    halved = torch.ones(s.n, dtype=torch.bool, device=s.device)
    shape, last_check = (-1,) + (1,) * (s.x.dim() - 1), 0
    for k in range(steps):
        rows = unsolved(s, members)
        if not len(rows):
            return
        here_loss = loss if aim is None else toward(aim[rows])
        gradient, value = _gradient_and_value(s, rows, point[rows], here_loss, members)
        rises[rows] += value > last_loss[rows]
        last_loss[rows] = value
        higher = rows[value > best_loss[rows]]
        best_loss[higher], best[higher] = last_loss[higher], point[higher]
        if k in _checkpoints(steps):
            # Condition 1: too few steps raised the loss; condition 2: with this step size none reached a new best.
            halved = (rises < 0.75 * (k - last_check)) | (~halved & (best_loss <= checked_loss))
            size = torch.where(halved, size / 2, size)
            point, previous = (torch.where(halved.reshape(shape), best, old) for old in (point, previous))
            checked_loss, last_check, rises = best_loss.clone(), k, torch.zeros_like(rises)
        here = point[rows]
        target = s.project(rows, s.threat.step(here, gradient, size[rows] * s.threat.eps))
        if k:  # with momentum
            target = s.project(rows, here + 0.75 * (target - here) + 0.25 * (here - previous[rows]))
        previous[rows], point[rows] = here, target
    finish(s, point, members)


def _gradient_and_value(
    s: Search, rows: Tensor, points: Tensor, loss: Loss, members: Sequence[int] | None
) -> tuple[Tensor, Tensor]:
    """Gradient [k, ...] and value [k] of the loss."""
    values = []

    def noting(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
        value = loss(z, y, probs)
        values.append(value.detach())
        return value

    return s.gradient(rows, points, noting, members), values[0].to(s.x.dtype)


def _checkpoints(steps: int) -> set[int]:
    """At 22 % of the steps, then after periods that shrink by 3 % to no less than 6 %."""
    marks, previous, current = [0.0, 0.22], 0.0, 0.22
    while current < 1:
        previous, current = current, current + max(current - previous - 0.03, 0.06)
        marks.append(current)
    return {int(-(-mark * steps // 1)) for mark in marks[1:]}


def finish(s: Search, point: Tensor, members: Sequence[int] | None) -> None:
    """Score the last points; a search for one member alone that did not fool it is counted."""
    rows = unsolved(s, members)
    s.judge(rows, point[rows])
    if members is not None and len(members) == 1:
        s.resisted[unsolved(s, members), members[0]] += 1


def unsolved(s: Search, members: Sequence[int] | None) -> Tensor:
    """Open rows; with `members`, those of them where one of these is not known to be foolable."""
    rows = s.open
    return rows if members is None else rows[~s.foolable[rows][:, list(members)].all(dim=1)]


@register("fgsm")
@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """One step of size ε against each member alone; every point is scored on all members (transfer)."""

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            start = s.start(restart)
            for member in s.probs.nonzero().flatten().tolist():
                # Also where the member is fooled already: this point may fool others, too.
                rows = s.open
                gradient = s.gradient(rows, start[rows], expected_cross_entropy, [member])
                s.judge(rows, s.project(rows, s.threat.step(start[rows], gradient, s.threat.eps)))


@register("pgd")
@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """`steps` steps of size `step`·ε against each member alone; every point is scored on all members."""

    steps: int = 20
    step: float = 0.25

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            for member in s.probs.nonzero().flatten().tolist():
                loss = expected_cross_entropy
                ascend(s, loss, steps=self.steps, step=self.step, restart=restart, members=[member])


@register("afgsm")
@dataclass(frozen=True, kw_only=True)
class AdaptiveFGSM(Attack):
    """One step of size ε on the expected loss."""

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            ascend(s, expected_cross_entropy, steps=1, step=1.0, restart=restart)


@register("adaptive-pgd-l", loss="loss")
@register("adaptive-pgd-s", loss="softmax")
@register("adaptive-pgd-z", loss="logits")
@register("adaptive-pgd-margin", loss="margin")
@register("adaptive-pgd-mce", loss="mce")
@dataclass(frozen=True, kw_only=True)
class AdaptivePGD(Attack):
    """PGD on one loss of all members; `loss` says where the expectation over the members is taken.

    The paper's APGD-L is ``loss="loss"`` (Eq. 96), its APGD-S ``"softmax"``; ``"logits"`` is as against an average.
    """

    loss: str = field(default="softmax", metadata={"choices": LOSSES})
    steps: int = 20
    step: float = 0.25

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            ascend(s, LOSSES[self.loss], steps=self.steps, step=self.step, restart=restart)


@register("apgd", loss="softmax")
@register("apgd-margin", loss="margin")
@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    """Auto-PGD (Croce and Hein) on one loss of all members; what the paper calls APGD is `AdaptivePGD`."""

    loss: str = field(default="softmax", metadata={"choices": LOSSES})  # as for `AdaptivePGD`
    steps: int = 40

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            auto_pgd(s, LOSSES[self.loss], steps=self.steps, restart=restart)
