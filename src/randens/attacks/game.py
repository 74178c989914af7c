"""The game of `saddle`: min over δ ∈ D of max over λ ∈ simplex(T) of λ·(c + Aδ)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from randens.attacks.search import Search
from randens.region import Region, norms


@dataclass(frozen=True)
class Game:
    """Games of k inputs: values c [k, M], slopes A [k, M, d], the members that play [k, M], the region of δ."""

    c: Tensor
    a: Tensor
    target: Tensor
    region: Region

    def solve(self, delta: Tensor, weights: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """δ [k, d], λ [k, M] and a lower bound [k] of the value, by Chambolle and Pock's steps from δ and λ."""
        size = (self.region.high - self.region.low).norm(dim=1) / 2
        size = size.clamp(1e-20, self.region.radius or torch.inf)[:, None]
        # Rows of unit dual norm are longer than this bound; only games without slopes, which do not move, meet it.
        norm = torch.bmm(self.a, self.a.transpose(1, 2)).norm(dim=(1, 2)).sqrt().clamp_min(1e-6)[:, None]
        down, up = 0.95 * size / norm, 0.95 / (size * norm)
        reached, mean_delta, mean_weights = self.at(delta), torch.zeros_like(delta), torch.zeros_like(weights)
        for k in range(1, steps + 1):
            delta = self.region.project(delta - down * torch.bmm(weights[:, None], self.a)[:, 0])
            before, reached = reached, self.at(delta)
            weights = onto_simplex(weights + up * (2 * reached - before), self.target)
            mean_delta, mean_weights = mean_delta.lerp(delta, 1 / k), mean_weights.lerp(weights, 1 / k)
        # Either the last point or the mean of all is better.
        best = torch.where((self.worst(mean_delta) < self.worst(delta))[:, None], mean_delta, delta)
        return best, mean_weights, self.floor(mean_weights)

    def at(self, delta: Tensor) -> Tensor:
        """c + Aδ, [k, M]."""
        return self.c + torch.bmm(self.a, delta[:, :, None])[:, :, 0]

    def worst(self, delta: Tensor) -> Tensor:
        """The largest value among the members that play, [k]."""
        return self.at(delta).masked_fill(~self.target, -torch.inf).amax(dim=1)

    def floor(self, weights: Tensor) -> Tensor:
        """What no δ of the region gets below: min_δ λ·(c + Aδ), [k]."""
        return (weights * self.c).sum(dim=1) + self.region.floor(torch.bmm(weights[:, None], self.a)[:, 0])


def linearized_game(
    s: Search,
    rows: Tensor,
    point: Tensor,
    margin: Tensor,
    slope: Tensor,
    target: Tensor,
    kappa: float,
    reach: float,
) -> Game:
    """Games with c_i = margin_i/‖w_i‖_q + κε and A_i = w_i/‖w_i‖_q, within `reach`·ε of the point."""
    scale = norms(slope, s.threat.q).clamp_min(1e-20)
    a, delta = slope / scale[:, :, None], (point - s.x[rows]).flatten(1)
    c = margin / scale + kappa * s.threat.eps - torch.bmm(a, delta[:, :, None])[:, :, 0]
    return Game(c * target, a, target, s.region[rows].near(delta, reach * s.threat.eps))


def onto_simplex(v: Tensor, target: Tensor) -> Tensor:
    """The nearest λ ≥ 0 with sum 1 on `target`, [k, M]."""
    v = v.masked_fill(~target, -torch.inf)
    v = v - v.amax(dim=1, keepdim=True)  # the same projection, and huge values do not round 1 away
    ordered = v.sort(dim=1, descending=True).values
    sums = ordered.masked_fill(ordered == -torch.inf, 0).cumsum(dim=1) - 1
    count = torch.arange(1, v.shape[1] + 1, device=v.device)
    threshold = torch.where(ordered * count > sums, sums / count, -torch.inf).amax(dim=1, keepdim=True)
    return (v - threshold).clamp_min(0)


def even(target: Tensor) -> Tensor:
    """The center of the simplex on `target`, [k, M]."""
    return target / target.sum(dim=1, keepdim=True).clamp_min(1)
