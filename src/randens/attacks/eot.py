"""Expectation over transformation (Athalye et al. 2018): gradients averaged over fresh draws of a random classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from randens.attacks.base import Attack, register
from randens.attacks.losses import Loss, expected_margin, mixture_cross_entropy, standardized
from randens.attacks.result import Cost
from randens.attacks.search import Search
from randens.ensemble import RandomizedEnsemble, frozen, to_layout
from randens.random_model import FrozenDraw, RandomizedModel
from randens.threat import Threat

_FIRST = 1_000_003  # the first seed; `RandomizedModel.ensemble` uses small seeds, so the two do not overlap


@dataclass(frozen=True)
class DrawGradients:
    """Of D draws at n points: logits [D, n, C], gradients [D, n, ...] that sum to the expected loss's, weights [D]."""

    z: Tensor
    gradients: Tensor
    weights: Tensor

    @property
    def mean(self) -> Tensor:
        """The gradient [n, ...] of the expected loss, estimated from these draws."""
        return torch.nan_to_num(self.gradients.sum(dim=0), 0.0, 0.0, 0.0)


def sources(rec: nn.Module) -> list[tuple[nn.Module, float]]:
    """Everything that can be drawn with its probability: the random models of frozen draws, and other members."""
    if not isinstance(rec, RandomizedEnsemble):
        return [(rec, 1.0)]
    found: dict[int, tuple[nn.Module, float]] = {}
    for member, weight in zip(rec.members, rec.probs.tolist(), strict=True):
        source = member.model if isinstance(member, FrozenDraw) else member
        found[id(source)] = (source, found.get(id(source), (source, 0.0))[1] + weight)
    return [(source, weight) for source, weight in found.values() if weight > 0]


def draw_gradients(
    drawn: list[tuple[nn.Module, float]], x: Tensor, y: Tensor, loss: Loss, samples: int, seed: int
) -> DrawGradients:
    """Gradients of `loss` with `samples` fresh draws of every random source, each on its own copy of x [n, ...]."""
    copies, outputs, weights = [], [], []
    for number, (source, weight) in enumerate(drawn):
        count = samples if isinstance(source, RandomizedModel) else 1
        own = x.detach().unsqueeze(0).repeat(count, *[1] * x.dim()).requires_grad_(True)
        copies.append(own)
        if isinstance(source, RandomizedModel):
            outputs.append(source.fresh(own, seed + 7919 * number))
        else:
            outputs.append(source(to_layout(own[0])).unsqueeze(0))
        weights += [weight / count] * count
    z = torch.cat(outputs)
    shares = torch.tensor(weights, dtype=torch.float64, device=x.device)
    value = loss(z, y, shares).sum()
    if not value.requires_grad:
        return DrawGradients(z, torch.zeros(len(shares), *x.shape, dtype=x.dtype, device=x.device), shares)
    found = torch.autograd.grad(value, copies, allow_unused=True)
    parts = [torch.zeros_like(c) if g is None else g for c, g in zip(copies, found, strict=True)]
    return DrawGradients(z.detach(), torch.cat(parts), shares)


@register("eot")
@dataclass(frozen=True, kw_only=True)
class EOT(Attack):
    """Projected ascent on two losses, each step along the gradient averaged over `samples` fresh draws.

    The steps have momentum and shrink from `step`·ε to 0, which suits noisy gradients. Verdicts are computed
    for the last point and for the mean of the later points, on the frozen draws of the ensemble under attack.
    """

    steps: int = 40
    samples: int = 16
    step: float = 0.5

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            rows = s.open
            if len(rows):
                for points in self.ascend(s, rows, restart):
                    s.judge(rows, points)

    def ascend(self, s: Search, rows: Tensor, restart: int) -> list[Tensor]:
        """The ends of ascents on fresh draws; verdicts are those of the frozen draws of the ensemble under attack."""
        start, x = s.start(restart)[rows], s.x[rows]
        if any(isinstance(source, RandomizedModel) for source, _ in sources(s.rec)):
            passes = len(rows) * 2 * self.steps * self.passes(s.rec)
            s.cost += Cost(passes, passes)
            return self.ends(s.rec, start, s.y[rows], x, s.seed + 31 * restart)
        # Without draws the gradients of the search are exact; it also counts them and flags unusable ones.
        return self._ascend(start, x, lambda point, loss, _: s.gradient(rows, point, loss))

    def passes(self, rec: nn.Module) -> int:
        """Member passes per step and input."""
        return sum(self.samples if isinstance(m, RandomizedModel) else 1 for m, _ in sources(rec))

    def ends(self, rec: nn.Module, start: Tensor, y: Tensor, x: Tensor, seed: int = 0) -> list[Tensor]:
        """The ends of ascents from `start` [n, ...] around x: per loss, the last point and the mean of later ones."""
        drawn = sources(rec)

        def gradient(point: Tensor, loss: Loss, step: int) -> Tensor:
            first = _FIRST + 2 * seed % 1000 * 1_000_000 + step * 101 * self.samples
            return draw_gradients(drawn, point, y, loss, self.samples, first).mean

        return self._ascend(start, x, gradient)

    def ends_from(self, rec: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Tensor], Cost]:
        """`ends` of ascents from all inputs, batch by batch, and the passes."""
        with frozen(rec), torch.enable_grad():
            batches = zip(torch.split(x, self.batch_size), torch.split(y, self.batch_size), strict=True)
            parts = [self.ends(rec, inputs, labels, inputs, self.seed) for inputs, labels in batches]
        passes = len(x) * 2 * self.steps * self.passes(rec)
        return [torch.cat(points) for points in zip(*parts, strict=True)], Cost(passes, passes)

    def _ascend(
        self, start: Tensor, x: Tensor, gradient: Callable[[Tensor, Loss, int], Tensor]
    ) -> list[Tensor]:
        """Both ascents, along gradient(point, loss, number of the step)."""
        found = []
        for number, loss in enumerate((standardized(mixture_cross_entropy), expected_margin)):
            point, momentum, late = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
            for k in range(self.steps):
                slope = gradient(point, loss, number * self.steps + k)
                size = slope.flatten(1).abs().mean(dim=1).clamp_min(1e-30)
                momentum = 0.75 * momentum + slope / size.reshape(-1, *[1] * (slope.dim() - 1))
                stride = self.step * self.threat.eps * (1 - k / self.steps)
                point = self.threat.project(point + stride * self.threat.steepest(momentum), x)
                if k >= self.steps // 2:
                    late += point / (self.steps - self.steps // 2)
            found += [point, self.threat.project(late, x)]
        return found


def single_draw_ascent(
    rec: nn.Module, threat: Threat, x: Tensor, y: Tensor, seed: int, steps: int = 40
) -> tuple[Tensor, Tensor, Cost]:
    """One draw per step, fooled as soon as one answer is wrong, as evaluations for deterministic models do it.

    Returns the points [n, ...], which inputs were fooled [n], and the passes.
    """
    drawn, cost = sources(rec), Cost()
    point, kept = x.clone(), x.clone()
    fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    generator = torch.Generator().manual_seed(seed)
    with frozen(rec), torch.enable_grad():
        for k in range(steps):
            rows = (~fooled).nonzero().flatten()
            if not len(rows):
                break
            found = draw_gradients(drawn, point[rows], y[rows], expected_margin, 1, seed + 13 * k)
            cost += Cost(len(rows) * len(found.weights), len(rows) * len(found.weights))
            pick = int(torch.multinomial(found.weights.cpu(), 1, generator=generator))
            kept[rows] = point[rows]
            fooled[rows[found.z[pick].argmax(dim=1) != y[rows]]] = True
            step = 2 * threat.eps * (1 - k / steps) * threat.steepest(found.mean)
            point[rows] = threat.project(point[rows] + step, x[rows])
    return kept, fooled, cost
