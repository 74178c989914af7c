"""Projected gradient ascent: FGSM, PGD and their adaptive forms on expectations over the members (Appendix B.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.losses import LOSSES, Loss, expected_cross_entropy
from randens.attacks.search import Search
from randens.core.errors import unknown


def ascend(
    s: Search, loss: Loss, *, steps: int, step: float, restart: int = 0, members: Sequence[int] | None = None
) -> None:
    """δ ← Π(δ + step·ε·μ_p(∇ loss)), Eq. 95; every iterate is scored.

    With `members`, an input makes no further steps once each of them is known to be foolable there.
    """
    point = s.start(restart)
    for _ in range(steps):
        rows = unsolved(s, members)
        if not len(rows):
            return
        gradient = s.gradient(rows, point[rows], loss, members)
        point[rows] = s.project(rows, s.threat.step(point[rows], gradient, step * s.threat.eps))
    finish(s, point, members)


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
            for member in s.probs.nonzero().flatten().tolist():
                ascend(s, expected_cross_entropy, steps=1, step=1.0, restart=restart, members=[member])


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
    """PGD on one loss of all members; `loss` says where the expectation over the members is taken."""

    loss: str = "softmax"  # or "loss" (Eq. 96), "logits" (as against an average), "margin", "mce"
    steps: int = 20
    step: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            unknown("loss", self.loss, LOSSES)

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            ascend(s, LOSSES[self.loss], steps=self.steps, step=self.step, restart=restart)
