"""Gradient attacks: FGSM, PGD and their adaptive forms on expectations over the members (Appendix B.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.losses import (
    Loss,
    expected_cross_entropy,
    expected_margin,
    expected_mce,
    mean_logit_cross_entropy,
    mixture_cross_entropy,
)
from randens.attacks.search import Search
from randens.core.tensors import take

__all__ = ["ascend", "ascend_adaptively"]


def ascend(s: Search, *losses: Loss, steps: int, step: float, members: Sequence[int] | None = None) -> None:
    """Projected gradient ascent (Eq. 95): δ ← Π(δ + step·ε·μ_p(∇ loss)); every iterate is scored.

    Several losses ascend side by side, each from a starting point of its own: few wide passes instead of many
    narrow ones. With `members`, an input makes no further steps once all of them are known to be foolable there.
    """
    point, loss = _starts(s, losses), _each_its_own(losses)
    lanes, rows = _open(s, members, losses)
    for _ in range(steps):
        if not len(rows):
            return
        here = take(point, lanes)
        gradient = s.gradient(rows, here, loss, members)
        point[lanes] = s.project(rows, s.threat.step(here, gradient, step * s.threat.eps))
        lanes, rows = _open(s, members, losses)
    s.judge(rows, point[lanes])
    if members is not None and len(members) == 1:
        s.resistance[_open(s, members, losses[:1])[1], members[0]] += 1


def ascend_adaptively(s: Search, *losses: Loss, steps: int, members: Sequence[int] | None = None) -> None:
    """Ascent with momentum whose step halves, from 2ε, wherever the loss has stopped rising.

    The step rule of Croce and Hein's Auto-PGD: at checkpoints, an input that improved in fewer than 3/4 of
    the steps since the last one, or whose best loss and step did not change, returns to its best point. Several losses
    ascend side by side, as in `ascend`.
    """
    point, loss = _starts(s, losses), _each_its_own(losses)
    previous = point.clone()
    best = point.clone()
    best_loss = torch.full((len(point),), -torch.inf, device=s.device, dtype=s.x.dtype)
    last_loss = best_loss.clone()
    size = torch.full((len(point),), 2.0, device=s.device, dtype=s.x.dtype)
    risen = torch.zeros(len(point), device=s.device)
    checked_loss, halved = best_loss.clone(), torch.ones(len(point), dtype=torch.bool, device=s.device)
    checkpoints = _checkpoints(steps)
    last_check = 0
    shape = (-1,) + (1,) * (s.x.dim() - 1)
    for k in range(steps):
        lanes, rows = _open(s, members, losses)
        if not len(rows):
            return
        values = torch.empty(len(rows), device=s.device, dtype=s.x.dtype)

        def noting(z: Tensor, y: Tensor, probs: Tensor, values: Tensor = values) -> Tensor:
            value = loss(z, y, probs)
            values.copy_(value.detach())
            return value

        gradient = s.gradient(rows, point[lanes], noting, members)
        risen[lanes] += (values > last_loss[lanes]).float()
        last_loss[lanes] = values
        higher = values > best_loss[lanes]
        best_loss[lanes] = torch.where(higher, values, best_loss[lanes])
        best[lanes] = torch.where(higher.reshape(shape), point[lanes], best[lanes])
        if k in checkpoints:
            stalled = risen < 0.75 * (k - last_check)
            stuck = ~halved & (best_loss <= checked_loss)
            halved = stalled | stuck
            size = torch.where(halved, size / 2, size)
            point = torch.where(halved.reshape(shape), best, point)
            previous = torch.where(halved.reshape(shape), best, previous)
            checked_loss, last_check = best_loss.clone(), k
            risen.zero_()
        here, before = point[lanes], previous[lanes]
        target = s.project(rows, s.threat.step(here, gradient, size[lanes] * s.threat.eps))
        if k:
            target = s.project(rows, here + 0.75 * (target - here) + 0.25 * (here - before))
        previous[lanes] = here
        point[lanes] = target
    lanes, rows = _open(s, members, losses)
    s.judge(rows, point[lanes])


def _starts(s: Search, losses: Sequence[Loss]) -> Tensor:
    return s.laid(torch.cat([s.start() for _ in losses]))


def _each_its_own(losses: Sequence[Loss]) -> Loss:
    """One loss of several blocks of inputs, as many inputs in each: the first block by the first loss, and so on."""

    def joined(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
        blocks = zip(losses, z.chunk(len(losses), dim=1), y.chunk(len(losses)), strict=True)
        return torch.cat([loss(part, labels, probs) for loss, part, labels in blocks])

    return losses[0] if len(losses) == 1 else joined


def _open(s: Search, members: Sequence[int] | None, losses: Sequence[Loss]) -> tuple[Tensor, Tensor]:
    """The points that need another step, of every loss in turn, and the inputs that they belong to."""
    rows = s.unfinished
    if members is not None:
        rows = rows[~s.foolable[rows][:, list(members)].all(dim=1)]
    lanes = torch.cat([rows + number * s.n for number in range(len(losses))])
    return lanes, rows.repeat(len(losses))


def _checkpoints(steps: int) -> set[int]:
    """Auto-PGD's checkpoints: 22 % of the steps, then periods that shrink by 3 % to no less than 6 %."""
    marks, previous, current = [0.0, 0.22], 0.0, 0.22
    while current < 1:
        previous, current = current, current + max(current - previous - 0.03, 0.06)
        marks.append(current)
    return {int(-(-mark * steps // 1)) for mark in marks[1:]}


@register("fgsm")
@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """One step of size ε against each member alone; every point is scored on all members (transfer).

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.FGSM(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("fgsm", attack.threat)
    ('fgsm', True)
    """

    entropies_only = True

    def search(self, s: Search) -> None:
        for member in s.probs.nonzero().flatten().tolist():
            ascend(s, expected_cross_entropy, steps=1, step=1.0, members=[member])


@register("pgd")
@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """`steps` steps of size `step`·ε against each member alone; every point is scored on all members.

    Parameters
    ----------
    steps : int
        Gradient steps per restart.
    step : float
        Step size in units of eps.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.PGD(randens.Threat("linf", 8 / 255), steps=40)
    >>> attack.name, attack == randens.attacks.create("pgd", attack.threat, steps=40)
    ('pgd', True)
    """

    steps: int = 20
    step: float = 0.25
    entropies_only = True

    def search(self, s: Search) -> None:
        for member in s.probs.nonzero().flatten().tolist():
            ascend(s, expected_cross_entropy, steps=self.steps, step=self.step, members=[member])


@register("afgsm")
@dataclass(frozen=True, kw_only=True)
class AdaptiveFGSM(Attack):
    """One step of size ε on the expected loss.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.AdaptiveFGSM(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("afgsm", attack.threat)
    ('afgsm', True)
    """

    entropies_only = True

    def search(self, s: Search) -> None:
        ascend(s, expected_cross_entropy, steps=1, step=1.0)


@dataclass(frozen=True, kw_only=True)
class _AdaptivePGD(Attack):
    steps: int = 20
    step: float = 0.25


@register("adaptive-pgd-l")
@dataclass(frozen=True, kw_only=True)
class AdaptivePGDL(_AdaptivePGD):
    """Adaptive PGD with the expectation at the loss (Eq. 96).

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.AdaptivePGDL(randens.Threat("linf", 8 / 255), steps=40)
    >>> attack.name, attack == randens.attacks.create("adaptive-pgd-l", attack.threat, steps=40)
    ('adaptive-pgd-l', True)
    """

    entropies_only = True

    def search(self, s: Search) -> None:
        ascend(s, expected_cross_entropy, steps=self.steps, step=self.step)


@register("adaptive-pgd-s")
@dataclass(frozen=True, kw_only=True)
class AdaptivePGDS(_AdaptivePGD):
    """Adaptive PGD with the expectation at the softmax, by logsumexp.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.AdaptivePGDS(randens.Threat("linf", 8 / 255), steps=40)
    >>> attack.name, attack == randens.attacks.create("adaptive-pgd-s", attack.threat, steps=40)
    ('adaptive-pgd-s', True)
    """

    entropies_only = True

    def search(self, s: Search) -> None:
        ascend(s, mixture_cross_entropy, steps=self.steps, step=self.step)


@register("adaptive-pgd-z")
@dataclass(frozen=True, kw_only=True)
class AdaptivePGDZ(_AdaptivePGD):
    """PGD on the mean logits, the attack that a deterministic ensemble faces.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.AdaptivePGDZ(randens.Threat("linf", 8 / 255), steps=40)
    >>> attack.name, attack == randens.attacks.create("adaptive-pgd-z", attack.threat, steps=40)
    ('adaptive-pgd-z', True)
    """

    def search(self, s: Search) -> None:
        ascend(s, mean_logit_cross_entropy, steps=self.steps, step=self.step)


@register("adaptive-pgd-margin")
@dataclass(frozen=True, kw_only=True)
class AdaptivePGDMargin(_AdaptivePGD):
    """Adaptive PGD on the expected margin; its verdict does not depend on the scale of the logits.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.AdaptivePGDMargin(randens.Threat("linf", 8 / 255), steps=40)
    >>> attack.name, attack == randens.attacks.create("adaptive-pgd-margin", attack.threat, steps=40)
    ('adaptive-pgd-margin', True)
    """

    def search(self, s: Search) -> None:
        ascend(s, expected_margin, steps=self.steps, step=self.step)


@register("adaptive-pgd-mce")
@dataclass(frozen=True, kw_only=True)
class AdaptivePGDMCE(_AdaptivePGD):
    """Adaptive PGD on the expected margin-maximising cross-entropy.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.AdaptivePGDMCE(randens.Threat("linf", 8 / 255), steps=40)
    >>> attack.name, attack == randens.attacks.create("adaptive-pgd-mce", attack.threat, steps=40)
    ('adaptive-pgd-mce', True)
    """

    def search(self, s: Search) -> None:
        ascend(s, expected_mce, steps=self.steps, step=self.step)


@register("margin")
@dataclass(frozen=True, kw_only=True)
class Margin(Attack):
    """The expected margin loss in the ball, with Auto-PGD's step rule. Carlini and Wagner's own attack is `acw`."""

    steps: int = 40

    def search(self, s: Search) -> None:
        ascend_adaptively(s, expected_margin, steps=self.steps)


@register("cw")
@dataclass(frozen=True, kw_only=True)
class CW(Margin):
    """`margin` under its earlier name.

    Parameters
    ----------
    steps : int
        Gradient steps per restart.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.CW(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("cw", attack.threat)
    ('cw', True)
    """


@register("apgd")
@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    """Auto-PGD of Croce and Hein: the mixture's cross-entropy with their step rule.

    Parameters
    ----------
    steps : int
        Gradient steps per restart.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.APGD(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("apgd", attack.threat)
    ('apgd', True)
    """

    steps: int = 40

    def search(self, s: Search) -> None:
        ascend_adaptively(s, mixture_cross_entropy, steps=self.steps)
