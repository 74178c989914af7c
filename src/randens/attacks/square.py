"""Square attack (Andriushchenko et al. 2020) on u·α: it asks for logits only, so masked gradients do not mislead it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.search import Search
from randens.region import norms

_SHARE = 0.8  # of the image: the area of the first squares
_HALVED = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries: then the area is halved


@register("random", queries=500)
@register("square")
@dataclass(frozen=True, kw_only=True)
class Square(Attack):
    """Change a random square of the perturbation; keep it if u·α grows, or if it stays and the margins do not grow.

    The margins are those of the members that are not fooled, weighted by α, each in units of its logits' spread; for
    one member this is the paper's loss. Squares shrink as the queries are used up. What is not an image has runs of
    coordinates instead of squares.
    """

    queries: int = 5000  # points tried per restart

    def search(self, s: Search) -> None:
        for restart in range(self.restarts):
            self.walk(s, restart)

    def walk(self, s: Search, restart: int) -> None:
        """Query after query, from a random pattern or from the worst known point, whichever is worse."""
        rows, point = s.open, s.x.clone()
        if not len(rows):
            return
        spread = s.x.new_ones(s.n, s.members)
        risk, slack = torch.full_like(s.risk(s.best), -1.0), s.risk(torch.full_like(spread, torch.inf))
        spread[rows] = s.examine(rows, s.x[rows])[2]

        def offer(rows: Tensor, moved: Tensor) -> None:
            errors, margin, _ = s.examine(rows, moved)
            now, room = s.risk(errors), s.risk((margin / spread[rows]).clamp_min(0))
            better = (now > risk[rows]) | ((now == risk[rows]) & (room <= slack[rows]))
            taken = rows[better]
            point[taken], risk[taken], slack[taken] = moved[better], now[better], room[better]

        offer(rows, pattern(s, rows))
        if restart == 0:
            offer(s.open, s.best_x[s.open])
        for query in range(self.queries):
            rows = s.open
            if not len(rows):
                return
            used = 10_000 * query / self.queries
            share = _SHARE / 2 ** sum(used > mark for mark in _HALVED)
            offer(rows, changed(s, rows, point[rows], share))


def pattern(s: Search, rows: Tensor) -> Tensor:
    """Points with stripes of ±ε (linf), or tiled by random bumps (l2, l1), [k, ...]."""
    count, channels, height, width = len(rows), *_as_image(s)
    if s.threat.norm == "linf":
        signs = _signs(s.uniform(rows, channels, 1, width))
        return s.project(
            rows, s.x[rows] + (s.threat.eps * signs.expand(-1, -1, height, -1)).reshape(s.x[rows].shape)
        )
    delta = s.x.new_zeros(count, channels, height, width)
    high, wide = max(1, height // 5), max(1, width // 5)
    for top in range(0, height - high + 1, high):
        for left in range(0, width - wide + 1, wide):
            signs = _signs(s.uniform(rows, channels, 1, 1))
            delta[:, :, top : top + high, left : left + wide] = signs * _bumps(s, high, wide)
    return _filled(s, rows, delta)


def changed(s: Search, rows: Tensor, point: Tensor, share: float) -> Tensor:
    """Points with another perturbation in one square of about this `share` of the image, [k, ...]."""
    channels, height, width = _as_image(s)
    delta = (point - s.x[rows]).reshape(-1, channels, height, width)
    high = min(height, max(1, round((share * height * width) ** 0.5)))
    wide = min(width, max(1, round(share * height * width / high))) if height == 1 else min(width, high)
    corners = s.uniform(rows, 2, 2)
    # What is not an image has a sign for every coordinate.
    signs = _signs(s.uniform(rows, channels, 1, wide if height == 1 else 1))
    square = _places(corners[:, 0], (channels, height, width), (high, wide))
    if s.threat.norm == "linf":
        delta[square] = s.threat.eps * signs.expand(-1, -1, high, wide)
        return s.project(rows, s.x[rows] + delta.reshape(point.shape))
    # The square takes over the norm of another one, and what is left of ε; its content gets a bump of random sign.
    p, other = s.threat.p, _places(corners[:, 1], (channels, height, width), (high, wide))
    both = torch.zeros_like(delta)
    both[square] = both[other] = 1.0
    freed = norms((delta * both).flatten(2), p)[:, :, None, None]
    left = (s.threat.eps**p - norms(delta.flatten(1), p) ** p).clamp_min(0)[:, None, None, None] / channels
    new = _unit(delta[square], p) + signs * _bumps(s, high, wide)
    delta[other] = 0.0
    delta[square] = _unit(new, p) * (left + freed**p) ** (1 / p)
    return _filled(s, rows, delta)


def _as_image(s: Search) -> tuple[int, int, int]:
    """Channels, height and width; what is not an image is one line."""
    shape = s.x.shape[1:]
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (1, 1, s.x[0].numel())


def _places(corners: Tensor, shape: tuple[int, int, int], size: tuple[int, int]) -> tuple[Tensor, ...]:
    """Index [k, channels, high, wide] of a part of this size in every image; corners [k, 2] are from 0 to 1."""
    (channels, height, width), (high, wide), at = shape, size, corners.device
    top = (corners[:, 0] * (height - high + 1)).long().clamp(max=height - high)
    left = (corners[:, 1] * (width - wide + 1)).long().clamp(max=width - wide)
    return (
        torch.arange(len(corners), device=at)[:, None, None, None],
        torch.arange(channels, device=at)[None, :, None, None],
        (top[:, None] + torch.arange(high, device=at))[:, None, :, None],
        (left[:, None] + torch.arange(wide, device=at))[:, None, None, :],
    )


def _bumps(s: Search, high: int, wide: int) -> Tensor:
    """Two pyramids of opposite sign, one above the other, [high, wide], of norm 1."""
    upper = _pyramid(s, high // 2, wide) if high > 1 else s.x.new_zeros(0, wide)
    lower = _pyramid(s, high - len(upper), wide)
    return _unit(torch.cat([upper, -lower]), s.threat.p)


def _pyramid(s: Search, high: int, wide: int) -> Tensor:
    """Σ 1/k² over the rings from a place outwards: highest in the middle."""
    down, across = (torch.arange(n, device=s.device).sub(n // 2).abs() for n in (high, wide))
    ring = torch.maximum(down[:, None], across[None, :])
    heights = (1 / torch.arange(1, int(ring.max()) + 2, device=s.device) ** 2).flip(0).cumsum(0).flip(0)
    return _unit(heights[ring].to(s.x), s.threat.p)


def _unit(v: Tensor, p: float) -> Tensor:
    """`v` with norm 1 over its last two dimensions."""
    return v / norms(v.flatten(-2), p)[..., None, None].clamp_min(1e-20)


def _filled(s: Search, rows: Tensor, delta: Tensor) -> Tensor:
    """The legal points nearest to x + δ, where δ is scaled to norm ε."""
    size = norms(delta.flatten(1), s.threat.p).clamp_min(1e-20)[:, None, None, None]
    return s.project(rows, s.x[rows] + (s.threat.eps * delta / size).reshape(s.x[rows].shape))


def _signs(uniform: Tensor) -> Tensor:
    """±1 for numbers from 0 to 1."""
    return uniform.round() * 2 - 1
