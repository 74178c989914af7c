"""The lattice climber: gradient descent towards ever larger sets of members (after Gnecco-Heredia et al.)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.climb import Targets, climb
from randens.attacks.saddle import refuted
from randens.attacks.search import Search
from randens.region import norms


@register("lattice")
@dataclass(frozen=True, kw_only=True)
class Lattice(Attack):
    """Climbs as `saddle` does, and reaches each target set T by descending Σ_{i∈T} relu(margin_i + κ)/‖∇margin_i‖_q."""

    steps: int = 20  # per descent
    step: float = 0.15  # in ε
    orders: int = 2  # climbs per restart, each in another order of the members
    patience: int = 5  # failed searches for one member alone after which it is passed over
    kappa: float = field(default=0.01, metadata={"range": (0.0, 10.0)})  # how far, in ε, past a boundary

    def search(self, s: Search) -> None:
        targets = Targets(s)
        for restart in range(self.restarts):
            for sweep in range(self.orders):
                if sweep:
                    rows, chosen = targets.next(s, refuted, self.kappa)
                    self.reach(s, rows, s.x[rows], chosen)
                climb(s, self.reach, restart=restart, sweep=sweep, patience=self.patience)

    def reach(
        self, s: Search, rows: Tensor, start: Tensor, target: Tensor, classes: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Descend from the current point, then from the input, then from a random point."""
        point, verdicts = start.clone(), torch.zeros_like(target)
        left = torch.arange(len(rows), device=s.device)
        at_input = (start == s.x[rows]).flatten(1).all(dim=1)
        for number, begin in enumerate((start, s.x[rows], s.start(self.restarts)[rows])):
            now = left[~at_input[left]] if number == 1 else left  # not twice from the input
            point[now], verdicts[now] = self.descend(s, rows[now], begin[now], target[now], classes)
            left = left[(target & ~verdicts).any(dim=1)[left]]
            if not len(left):
                break
        return point, verdicts

    def descend(
        self, s: Search, rows: Tensor, point: Tensor, target: Tensor, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Projected descent that stops where all of `target` are fooled: the last points and the verdicts there."""
        verdicts, left = torch.zeros_like(target), torch.arange(len(rows), device=s.device)
        for k in range(self.steps + 1):
            if not len(left):
                break
            now, here, aim = rows[left], point[left], target[left]
            if k == self.steps:
                verdicts[left] = s.judge(now, here, aim)
                break
            margin, slope, errors = s.linearize(now, here, aim, classes)
            verdicts[left] = s.judge(now, here, aim, errors)
            open_ = (aim & ~errors).any(dim=1)
            left, now, here, aim = left[open_], now[open_], here[open_], aim[open_]
            margin, slope = margin[open_], slope[open_]
            scale = norms(slope, s.threat.q).clamp_min(1e-20)
            pulling = aim & (margin / scale > -self.kappa * s.threat.eps)
            pull = torch.bmm((pulling / scale)[:, None], slope).reshape(here.shape)
            # Steps shrink from four times the length to 0: enough to leave x, little enough to end between boundaries.
            stride = 4 * self.step * s.threat.eps * (1 - k / self.steps) ** 2
            point[left] = s.project(now, self.moved(s, here, pull, stride, along=2 * k >= self.steps))
        return point, verdicts

    def moved(self, s: Search, here: Tensor, pull: Tensor, stride: float, *, along: bool) -> Tensor:
        """A step against the gradient: the steepest, or `along` it, where in linf members disagree about signs."""
        if s.threat.norm != "linf" or not along:
            return s.threat.step(here, -pull, stride)
        length = norms(pull.flatten(1), 2).clamp_min(1e-20) / s.x[0].numel() ** 0.5
        return here - stride * pull / length.reshape((-1,) + (1,) * (here.dim() - 1))
