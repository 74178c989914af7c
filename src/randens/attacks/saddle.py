"""The saddle climber: enlarge the set of fooled members one by one, each time by a linearized game.

To fool all members of a target set T, linearize their margins at the current point, solve

    min_{δ ∈ D} max_{λ ∈ simplex(T)} λ·(c + Aδ),   c_i = margin_i / ‖w_i‖_q + κ,  A_i = w_i / ‖w_i‖_q,

move there and repeat. λ proves, in the linear model, how far T is out of reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.climb import Targets, climb
from randens.attacks.search import Search
from randens.region import Region, norms

_REMOTE = 1.5  # in ε: a member that the linear model at the input puts further away is soon passed over


@register("saddle")
@dataclass(frozen=True, kw_only=True)
class Saddle(Attack):
    """The saddle climber.

    The first restart begins at the input and looks at each member's runner-up class; this decides most inputs with two
    or three passes per member. Later restarts begin at random points and look at several runners-up. Between climbs,
    the heaviest set that the linear models at the input do not rule out is aimed at from there.
    """

    moves: int = 6  # how often a target set is linearized again
    iterations: int = 20  # of each game
    orders: int = 2  # climbs per restart, each in another order of the members
    patience: int = 4  # failed searches for one member alone after which it is passed over
    kappa: float = field(default=0.05, metadata={"range": (0.0, 10.0)})  # games aim past boundaries, in ε
    trust: float = field(default=0.6, metadata={"range": (0.01, 1.0)})  # length of a move to the last one
    give_up: float = 0.4  # in ε: a set is given up once its game proves it further out of reach
    boundaries: int = 2  # runners-up that restarts after the first look at
    restarts: int = field(default=3, kw_only=True)

    def search(self, s: Search) -> None:
        targets = Targets(s)
        for restart in range(self.restarts):
            classes = 1 if restart == 0 else self.boundaries
            for sweep in range(1 if restart == 0 and self.restarts > 1 else self.orders):
                if sweep:
                    rows, chosen = targets.next(s, refuted, self.kappa)
                    self.reach(s, rows, s.x[rows], chosen)
                climb(s, self.reach, restart=restart, sweep=sweep, patience=self.patience, classes=classes)

    def reach(
        self, s: Search, rows: Tensor, start: Tensor, target: Tensor, classes: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Move to the solution of the linearized game, linearize there, and repeat until all of `target` are fooled."""
        point, verdicts = start.clone(), torch.zeros_like(target)
        left = torch.arange(len(rows), device=s.device)
        weights, eps = uniform(target).to(s.x.dtype), s.threat.eps
        for move in range(self.moves):
            now, here, aim = rows[left], point[left], target[left]
            errors = s.linearize(now, here, aim, classes)[2]
            verdicts[left] = s.judge(now, here, aim, errors)
            open_ = (aim & ~errors).any(dim=1)
            left, now, here, aim = left[open_], now[open_], here[open_], aim[open_]
            game = linearized_game(s, now, here, aim, classes, self.kappa, 2 * self.trust**move)
            # Each game begins with the λ of the one before it.
            begin = (here - s.x[now]).flatten(1)
            delta, weights[left], floor = game.solve(begin, weights[left], self.iterations)
            point[left] = s.project(now, s.x[now] + delta.reshape(here.shape))
            if move == 0:
                alone = (floor > _REMOTE * eps) & (aim.sum(dim=1) == 1)
                s.resisted[now] += aim & alone[:, None]
            # Given up: out of reach by more than the model errs, which falls with the square of its reach.
            error = (self.give_up - self.kappa) * self.trust ** (2 * max(0, move - 1))
            left = left[floor <= (self.kappa + error) * eps]
            if not len(left):
                break
        verdicts[left] = s.judge(rows[left], point[left], target[left])
        return point, verdicts


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
    s: Search, rows: Tensor, point: Tensor, target: Tensor, classes: int, kappa: float, reach: float
) -> Game:
    """Games of the linear models at `point` [k, ...], with δ within `reach`·ε of it."""
    margin, slope, _ = s.linearize(rows, point, target, classes)
    scale, eps = norms(slope, s.threat.q).clamp_min(1e-20), s.threat.eps
    a, delta = slope / scale[:, :, None], (point - s.x[rows]).flatten(1)
    c = margin / scale + kappa * eps - torch.bmm(a, delta[:, :, None])[:, :, 0]
    return Game(c * target, a, target, s.region[rows].near(delta, reach * eps))


def refuted(s: Search, rows: Tensor, target: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Bool [k]: by the linear models at the inputs, nothing fools all of `target`; the members [k, M] that prove it."""
    game = linearized_game(s, rows, s.x[rows], target, 1, kappa, 2.0)
    zero, limit = torch.zeros_like(game.region.low), kappa * s.threat.eps
    _, weights, floor = game.solve(zero, uniform(target).to(zero.dtype), 40)
    # Small weights are dropped if what is left is still a proof.
    fewer = weights * (weights >= 0.02)
    fewer = fewer / fewer.sum(dim=1, keepdim=True).clamp_min(1e-20)
    return floor > limit, torch.where((game.floor(fewer) > limit)[:, None], fewer, weights) > 0


def onto_simplex(v: Tensor, target: Tensor) -> Tensor:
    """The nearest λ ≥ 0 with sum 1 on `target`, [k, M]."""
    v = v.masked_fill(~target, -torch.inf)
    v = v - v.amax(dim=1, keepdim=True)  # the same projection, and huge values do not round 1 away
    ordered = v.sort(dim=1, descending=True).values
    sums = ordered.masked_fill(ordered == -torch.inf, 0).cumsum(dim=1) - 1
    count = torch.arange(1, v.shape[1] + 1, device=v.device)
    threshold = torch.where(ordered * count > sums, sums / count, -torch.inf).amax(dim=1, keepdim=True)
    return (v - threshold).clamp_min(0)


def uniform(target: Tensor) -> Tensor:
    """The center of the simplex on `target`, [k, M]."""
    return target / target.sum(dim=1, keepdim=True).clamp_min(1)
