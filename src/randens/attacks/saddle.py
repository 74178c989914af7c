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
from randens.attacks.game import even, linearized_game
from randens.attacks.search import Search

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
                    rows, chosen = targets.next(s, self.kappa)
                    self.reach(s, rows, s.x[rows], chosen)
                climb(s, self.reach, restart=restart, sweep=sweep, patience=self.patience, classes=classes)

    def reach(
        self, s: Search, rows: Tensor, start: Tensor, target: Tensor, classes: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Move to the solution of the linearized game, linearize there, and repeat until all of `target` are fooled."""
        point, verdicts = start.clone(), torch.zeros_like(target)
        left = torch.arange(len(rows), device=s.device)
        weights, eps = even(target).to(s.x.dtype), s.threat.eps
        for move in range(self.moves):
            now, here, aim = rows[left], point[left], target[left]
            margin, slope, errors = s.linearize(now, here, aim, classes)
            verdicts[left] = s.judge(now, here, aim, errors)
            open_ = (aim & ~errors).any(dim=1)
            left, now, here, aim = left[open_], now[open_], here[open_], aim[open_]
            reach = 2 * self.trust**move
            game = linearized_game(s, now, here, margin[open_], slope[open_], aim, self.kappa, reach)
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
