"""Random search on the exact metric: no gradients, so nothing a member does to its gradients can stop it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.search import Search

__all__ = ["RandomSearch"]


@register("random")
@dataclass(frozen=True, kw_only=True)
class RandomSearch(Attack):
    """Change a random part of the perturbation; keep it if more weight is fooled, or as much with less margin.

    Parts are squares of all channels for images and random coordinates otherwise; they shrink as the queries
    are used up (after Andriushchenko et al.'s Square attack, here on u·α itself).
    """

    queries: int = 100

    def search(self, s: Search) -> None:
        rows = torch.arange(s.n, device=s.device)
        point = s.project(rows, s.x + s.threat.eps * _signs(s))
        errors, margin = s.examine(rows, point)
        value, slack = errors.double() @ s.probs, _slack(s, margin)
        for query in range(self.queries):
            mask, signs = _part(s, 0.5 * 0.1 ** (2 * query / self.queries)), _signs(s)
            rows = s.unfinished
            if not len(rows):
                return
            moved = _changed(s, rows, point[rows], mask[rows], signs[rows])
            fooled, margin = s.examine(rows, moved)
            risk, room = fooled.double() @ s.probs, _slack(s, margin)
            better = (risk > value[rows]) | ((risk == value[rows]) & (room < slack[rows]))
            taken = rows[better]
            point[taken], value[taken], slack[taken] = moved[better], risk[better], room[better]


def _slack(s: Search, margin: Tensor) -> Tensor:
    """Σ α_i max(margin_i, 0): how far the members not yet fooled are from it."""
    return margin.clamp_min(0).double() @ s.probs


def _signs(s: Search) -> Tensor:
    """±1 for every coordinate; for images one sign per channel and column, a pattern that fools nets often."""
    if s.x.dim() == 4:
        return (s.uniform(s.x.shape[1], 1, s.x.shape[3]).round() * 2 - 1).expand_as(s.x)
    return s.uniform(*s.x.shape[1:]).round() * 2 - 1


def _part(s: Search, share: float) -> Tensor:
    """Bool, shaped like x: the part of each input that is changed, about `share` of it."""
    if s.x.dim() != 4:
        return s.uniform(*s.x.shape[1:]) < max(share, 1.0 / s.x[0].numel())
    height, width = s.x.shape[2:]
    side = max(1, round((share * height * width) ** 0.5))
    place = s.uniform(2)
    top = (place[:, 0] * max(1, height - side + 1)).long().reshape(-1, 1, 1, 1)
    left = (place[:, 1] * max(1, width - side + 1)).long().reshape(-1, 1, 1, 1)
    line = torch.arange(height, device=s.device).reshape(1, 1, -1, 1)
    column = torch.arange(width, device=s.device).reshape(1, 1, 1, -1)
    inside: Tensor = (line >= top) & (line < top + side) & (column >= left) & (column < left + side)
    return inside.expand(-1, s.x.shape[1], -1, -1)


def _changed(s: Search, rows: Tensor, point: Tensor, mask: Tensor, signs: Tensor) -> Tensor:
    """The masked part replaced by ±ε (linf), or by as much norm as the rest leaves over (l2)."""
    x = s.x[rows]
    if s.threat.norm == "linf":
        return s.project(rows, torch.where(mask, x + s.threat.eps * signs, point))
    delta = torch.where(mask, torch.zeros_like(x), point - x)
    spent = delta.flatten(1).square().sum(dim=1)
    count = mask.flatten(1).sum(dim=1).clamp_min(1)
    # At least a tenth of the squared budget goes into the new part; the projection takes it from the rest.
    budget = (s.threat.eps**2 - spent).clamp_min(0.1 * s.threat.eps**2)
    size = (budget / count).sqrt().reshape((-1,) + (1,) * (x.dim() - 1))
    return s.project(rows, x + torch.where(mask, size * signs, delta))
