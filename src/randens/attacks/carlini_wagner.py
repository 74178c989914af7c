"""Carlini and Wagner's attack in a ball, made adaptive: the expectation over the members is taken at the loss (ACW)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.losses import Loss, margins
from randens.attacks.search import Search

_MOMENTUM = 0.8


def expected_hinge(kappa: float) -> Loss:
    """−Σ_i α_i max(z_y − max_{c≠y} z_c, −κ): Carlini and Wagner's f₆ with the expectation at the loss."""

    def loss(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
        return -(probs.to(z.dtype) @ margins(z, y).clamp_min(-kappa))

    return loss


@register("acw")
@dataclass(frozen=True, kw_only=True)
class ACW(Attack):
    """Adaptive Carlini-Wagner: min ‖δ‖²/R² + c Σ_i α_i max(margin_i, −κ), over a search of c for every input.

    R is the largest l2 norm in the ball. The descent has momentum, and its normalized steps shrink from
    `rate`·R to 0. Carlini and Wagner use Adam, but Adam scales coordinates and so does not suit a projection. After
    `steps` steps from the input (or the restart's random point), c is multiplied by 10 where some member was never
    fooled; where all were, c moves halfway to the largest c that was too small.
    """

    steps: int = 30
    constants: int = 3
    constant: float = 1.0
    rate: float = 0.1
    kappa: float = field(default=0.0, metadata={"range": (0.0, 1e6)})

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            self.search_constants(s, restart)

    def search_constants(self, s: Search, restart: int) -> None:
        """Bisect the constant of every input, with a descent at each."""
        low = torch.zeros(s.n, device=s.device, dtype=s.x.dtype)
        high = torch.full_like(low, torch.inf)
        c = torch.full_like(low, self.constant)
        for _ in range(self.constants):
            if not len(s.open):
                return
            fooled = self._descend(s, c, restart)
            high = torch.where(fooled, torch.minimum(high, c), high)
            low = torch.where(fooled, low, torch.maximum(low, c))
            c = torch.where(torch.isfinite(high), (low + high) / 2, 10 * c)

    def _descend(self, s: Search, c: Tensor, restart: int) -> Tensor:
        """A descent at the constants c [n]; bool [n], the inputs on which one point fooled every member."""
        loss = expected_hinge(self.kappa)
        # R: only a cube is longer than its ε.
        size = s.threat.eps * (math.sqrt(s.x[0].numel()) if s.threat.norm == "linf" else 1)
        shape = (-1,) + (1,) * (s.x.dim() - 1)
        point = s.start(restart)
        momentum = torch.zeros_like(point)
        rows = s.open
        for step in range(self.steps):
            pull = s.gradient(rows, point[rows], loss)
            slope = 2 * (point[rows] - s.x[rows]) / size**2 - c[rows].reshape(shape) * pull
            length = torch.linalg.vector_norm(slope.flatten(1), dim=1).clamp_min(1e-20)
            momentum[rows] = _MOMENTUM * momentum[rows] + slope / length.reshape(shape)
            stride = self.rate * (1 - step / self.steps) * size
            point[rows] = s.project(rows, point[rows] - stride * momentum[rows])
            rows = s.open
            if not len(rows):
                break
        if len(rows):
            s.judge(rows, point[rows])
        closed = torch.ones(s.n, dtype=torch.bool, device=s.device)
        closed[s.open] = False
        return closed
