"""Ball ∩ box in coordinates of the perturbation: projections, and linear functions over it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from randens.threat import Threat

__all__ = ["Region", "filled", "norms"]


@dataclass(frozen=True)
class Region:
    """n perturbation sets in coordinates of δ: low ≤ δ ≤ high [n, d], and ‖δ‖_p ≤ radius (p 2 or 1) if there is one."""

    low: Tensor
    high: Tensor
    radius: float | None = None
    p: float = 2.0

    @staticmethod
    def around(x: Tensor, threat: Threat) -> Region:
        """The perturbation sets of `threat` at inputs x [n, ...], in the precision of x."""
        flat = x.flatten(1)
        low, high = torch.full_like(flat, -threat.eps), torch.full_like(flat, threat.eps)
        if threat.bounds is not None:
            low = torch.maximum(low, threat.bounds[0] - flat).clamp(max=0.0)
            high = torch.minimum(high, threat.bounds[1] - flat).clamp(min=0.0)
        return Region(low, high, None if threat.norm == "linf" else threat.eps, threat.p)

    def __getitem__(self, rows: Tensor | slice) -> Region:
        """The sets of some of the inputs; a row may be taken several times."""
        return Region(self.low[rows], self.high[rows], self.radius, self.p)

    def near(self, delta: Tensor, reach: float | Tensor) -> Region:
        """Return the region restricted to points within `reach` of `delta` [n, d] in every coordinate."""
        low, high = torch.maximum(self.low, delta - reach), torch.minimum(self.high, delta + reach)
        return Region(low, high, self.radius, self.p)

    def project(self, delta: Tensor) -> Tensor:
        """The nearest point for linf and l1; scaled onto the ball and clipped for l2; [..., d]."""
        if self.radius is not None and self.p == 1:
            return self._project_l1(delta, self.radius)
        if self.radius is not None:
            norm = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
            delta = delta * (self.radius / norm.clamp_min(self.radius))
        return torch.clamp(delta, self.low, self.high)

    def minimum(self, slope: Tensor) -> Tensor:
        """A lower bound [n] on min slope·δ that never exceeds it: the minimum itself for linf, up to rounding else."""
        floor = self.floor(slope)
        if self.radius is None:
            return floor
        return torch.maximum(floor, (self._dual_l1 if self.p == 1 else self._dual_l2)(slope, self.radius))

    def _dual_l1(self, slope: Tensor, radius: float) -> Tensor:
        """min over the box of slope·δ + μ(‖δ‖₁ − radius): valid for every μ ≥ 0, best where the radius is used up."""
        size, room = slope.abs(), torch.where(slope > 0, -self.low, self.high)
        order = size.argsort(dim=1, descending=True)
        used_up = (room.gather(1, order).cumsum(dim=1) < radius).sum(dim=1, keepdim=True)
        mu = F.pad(size.gather(1, order), (0, 1)).gather(1, used_up)
        return -((size - mu).clamp_min(0.0) * room).sum(dim=1) - mu[:, 0] * radius

    def _dual_l2(self, slope: Tensor, radius: float) -> Tensor:
        """The same for μ/2·(‖δ‖² − radius²): best where −slope, stretched and clipped, uses up the radius."""
        length = torch.linalg.vector_norm(slope, dim=1, keepdim=True)
        unit = slope / length.clamp_min(1e-30)
        short = torch.full_like(length, radius)
        long = short / unit.abs().masked_fill(unit == 0, torch.inf).amin(dim=1, keepdim=True).clamp(1e-6, 1.0)
        for _ in range(40):
            middle = (short * long).sqrt()
            delta = torch.clamp(-middle * unit, self.low, self.high)
            inside = torch.linalg.vector_norm(delta, dim=1, keepdim=True) <= radius
            short, long = torch.where(inside, middle, short), torch.where(inside, long, middle)
        delta = torch.clamp(-short * unit, self.low, self.high)
        mu = (length / short)[:, 0]
        return (slope * delta).sum(dim=1) + mu / 2 * (delta.square().sum(dim=1) - radius**2)

    def floor(self, slope: Tensor) -> Tensor:
        """A cheap lower bound [...] on min slope·δ, slope [..., d], over the box or the ball alone; exact for linf."""
        in_box = torch.minimum(slope * self.low, slope * self.high).sum(dim=-1)
        if self.radius is None:
            return in_box
        return torch.maximum(in_box, -self.radius * norms(slope, math.inf if self.p == 1 else 2))

    def _project_l1(self, delta: Tensor, radius: float) -> Tensor:
        """The nearest point of l1 ball ∩ box: every |δ_i| loses the same λ, between 0 and its room."""
        size = delta.abs()
        room = torch.where(delta > 0, self.high, -self.low).clamp_min(0.0)
        begin = (size - room).clamp_min(0.0)
        whole = torch.minimum(size, room).sum(dim=-1, keepdim=True)
        kinks = torch.cat([begin, size], dim=-1)
        order = kinks.argsort(dim=-1)
        places = kinks.gather(-1, order)
        slopes = torch.where(order < size.shape[-1], -1.0, 1.0).to(size.dtype).cumsum(dim=-1)
        left = torch.cat([whole, whole + (slopes[..., :-1] * places.diff(dim=-1)).cumsum(dim=-1)], dim=-1)
        # The last kink at which there is still too much; where there is none, nothing is taken.
        index = ((left > radius).sum(dim=-1, keepdim=True) - 1).clamp_min(0)
        slope = slopes.gather(-1, index).clamp(max=-1.0)
        cut = places.gather(-1, index) + (left.gather(-1, index) - radius) / -slope
        cut = torch.where(whole > radius, cut, torch.zeros_like(cut))
        return delta.sign() * torch.minimum((size - cut).clamp_min(0.0), room)


def filled(gain: Tensor, room: Tensor, budget: float | Tensor) -> Tensor:
    """Distribute a budget over the coordinates, [n, d]: the largest gains first, each up to its limit."""
    order = gain.argsort(dim=1, descending=True)
    wanted = room.gather(1, order)
    before = wanted.cumsum(dim=1) - wanted
    taken = torch.minimum(wanted, (budget - before).clamp_min(0.0))
    return torch.zeros_like(room).scatter_(1, order, taken)


def norms(values: Tensor, p: float) -> Tensor:
    """‖·‖_p along the last dimension; NaN and infinity reach the result."""
    # `vector_norm` is 4 to 16 times as slow for these two on a CPU.
    if p == math.inf:
        return values.abs().amax(dim=-1)
    return values.abs().sum(dim=-1) if p == 1 else torch.linalg.vector_norm(values, p, dim=-1)
