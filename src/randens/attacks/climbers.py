"""Climbers: enlarge the set of fooled members one by one, each time searching for a point that fools all of
them.

Both climbers go through the lattice of subsets (Gnecco-Heredia et al.). They differ in the search for a point
that fools a target set T: `lattice` descends the sum of hinge losses, `saddle` solves the linearised game
between the perturbation and the members of T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.game import solve_game
from randens.attacks.oracle import Memory
from randens.attacks.plans import planned
from randens.attacks.search import Search
from randens.core.tensors import norms, take
from randens.threat import Region

__all__ = ["Reach", "climb", "descend", "play"]

_PATIENCE = 5  # `lattice`, the last of a portfolio, skips a member after so many failed searches for it
_PLAN = 40  # iterations of each game of a plan

Reach = Callable[[Search, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""reach(s, lanes, points [k, ...], targets bool [k, M]) → (points, errors [k, M]) where it ended."""


def climb(s: Search, sweep: int, resisted: Tensor, reach: Reach, patience: int | None = None) -> None:
    """Make one sweep through the members in random order; add each to the fooled set F if a point is found.

    Restarts that are searched together are L = together·n lanes, each with its own point, order and set F.
    The first sweep takes every lane. Later sweeps look for other maximal sets: they take the lanes where some
    member is missing from the input's best set and has not resisted alone, and begin with such a member.
    `resisted` [L, M] marks members that were attacked alone and not fooled. Members that `patience` searches
    of this or of other attacks have attacked alone without success are skipped.
    """
    skipped = s.safe | (s.probs <= 0)
    if patience is not None:
        skipped = skipped | (s.resistance >= patience)
    skipped = skipped[s.owner]
    order = s.ranks()
    chosen = torch.ones(len(order), dtype=torch.bool, device=s.device)
    if sweep:
        missing = ~resisted & ~s.best_errors[s.owner] & ~skipped
        order = order - 2.0 * missing * (order == _largest(order, missing))
        chosen = missing.any(dim=1)
    elif s.restart == 0:
        # Members of larger probability first; equal ones in a random order, one for all inputs: fewer, wider passes.
        order = order[:1].expand_as(order) + (s.probs > s.probs.unsqueeze(1)).sum(dim=1)
    order = order.argsort(dim=1)
    point = s.start()
    errors = s.clean_errors.clone() if s.restart == 0 else torch.zeros_like(skipped)
    for position in range(s.members):
        lanes = s.going[s.owner].nonzero().flatten()
        member = order[lanes, position]
        fresh = chosen[lanes] & ~errors[lanes, member] & ~skipped[lanes, member]
        # No pass for sets of foolable members that cannot get a larger probability than the best set.
        coming = torch.zeros_like(errors[lanes]).scatter(1, order[lanes, position:], True) & ~skipped[lanes]
        heaviest, rows = s.weigh(errors[lanes] | coming), s.owner[lanes]
        fresh &= (heaviest > s.best_value[rows] + 1e-9) | ~s.foolable[rows, member]
        lanes, rows, member = lanes[fresh], rows[fresh], member[fresh]
        if not len(rows):
            continue
        targets = errors[lanes].clone()
        targets[torch.arange(len(rows), device=s.device), member] = True
        targets &= s.probs > 0
        ended, fooled = reach(s, lanes, point[lanes], targets)
        success = (fooled | ~targets).all(dim=1)
        point[lanes[success]] = ended[success]
        errors[lanes[success]] = fooled[success]
        alone = ~success & (targets.sum(dim=1) == 1)
        resisted[lanes[alone], member[alone]] = True
        once = torch.ones_like(rows[alone])
        s.resistance.index_put_((rows[alone], member[alone]), once, accumulate=True)


def attempt(s: Search, reach: Reach, iterations: int, kappa: float) -> None:
    """Aim from the clean input at the set of largest probability that the members' linear models do not rule
    out; of several restarts searched together, each takes the next such set.
    """
    plans = []
    for _ in range(s.together):
        plans.append(planned(s, iterations, kappa))
        # Also if it will be reached: sets of larger probability were ruled out or tried before.
        s.refuse(*plans[-1])
    lanes = torch.cat([number * s.n + rows for number, (rows, _) in enumerate(plans)])
    if len(lanes):
        reach(s, lanes, s.x[s.owner[lanes]], torch.cat([targets for _, targets in plans]))


def _largest(order: Tensor, among: Tensor) -> Tensor:
    """Return, per input, the largest value of `order` among the marked members, [n, 1]."""
    return order.masked_fill(~among, -1.0).amax(dim=1, keepdim=True)


class Path:
    """The points that a search comes by, and the verdicts known there; they are settled together at its end."""

    def __init__(self, rows: Tensor, points: Tensor, targets: Tensor) -> None:
        self.rows, self.targets = rows, targets
        self.points, self.errors = points.clone(), torch.zeros_like(targets)
        self._left: list[Tensor] = []
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def see(self, left: Tensor, errors: Tensor, known: Tensor) -> Tensor:
        """Note the verdicts [k, M] of the `known` members at the points `left` [k]; bool [k]: is a target left?"""
        self.errors[left] = errors
        self._left.append(left)
        self._seen.append((take(self.points, left), errors, known))
        return (self.targets[left] & ~errors).any(dim=1)

    def settle(self, s: Search) -> tuple[Tensor, Tensor]:
        """Complete what can be a new set; return the points where the search ended, and the verdicts there."""
        if self._left:
            points, errors, known = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
            done = s.settle(self.rows[torch.cat(self._left)], points, errors, known)
            parts = torch.split(done, [len(left) for left in self._left])
            for left, part in zip(self._left, parts, strict=True):
                self.errors[left] = part
        return self.points, self.errors


def descend(
    s: Search,
    lanes: Tensor,
    points: Tensor,
    targets: Tensor,
    *,
    steps: int,
    step: float,
    kappa: float,
    elsewhere: Tensor,
) -> tuple[Tensor, Tensor]:
    """Reach T by projected descent of Σ_{j∈T} relu(margin_j + κ)/‖∇margin_j‖_q, stopping once all of T are fooled.

    Starts from the current point, then from the clean input, then from `elsewhere` [n, ...].
    """
    rows, ended, errors = s.owner[lanes], points.clone(), torch.zeros_like(targets)
    # Do not repeat the descent from the clean input.
    elsewhere_only = (points == s.x[rows]).flatten(1).all(dim=1)
    for number, start in enumerate((points, s.x[rows], elsewhere[rows])):
        missing = ~(errors | ~targets).all(dim=1)
        missing = (missing & ~elsewhere_only if number == 1 else missing).nonzero().flatten()
        if len(missing):
            ended[missing], errors[missing] = _descend_from(
                s, rows[missing], start[missing], targets[missing], steps, step, kappa
            )
    return ended, errors


def _descend_from(
    s: Search, rows: Tensor, start: Tensor, targets: Tensor, steps: int, step: float, kappa: float
) -> tuple[Tensor, Tensor]:
    path = Path(rows, start, targets)
    left = torch.arange(len(rows), device=s.device)
    for number in range(steps):
        # Steps shrink from four times `step` to 0: large enough to leave x, small enough to end between
        # boundaries.
        stride = 4 * step * (1 - number / steps) ** 2 * s.threat.eps
        steepest = 2 * number < steps
        lin = s.models(rows[left], take(path.points, left), targets[left])
        going = path.see(left, lin.errors, lin.wanted).nonzero().flatten()
        left, lin = left[going], lin[going]
        if not len(left):
            return path.settle(s)
        scale = norms(lin.gradients, s.threat.q).clamp_min(1e-20)
        pulling = (lin.margins / scale > -kappa * s.threat.eps) & lin.wanted
        points = take(path.points, left)
        pull = torch.bmm((pulling / scale).unsqueeze(1), lin.gradients).reshape(points.shape)
        path.points[left] = s.project(rows[left], _stepped(s, points, pull, stride, steepest=steepest))
    path.see(left, s.verdicts(rows[left], path.points[left], targets[left]), targets[left])
    return path.settle(s)


def _stepped(s: Search, points: Tensor, pull: Tensor, stride: float, *, steepest: bool) -> Tensor:
    """Make one step against the gradient: steepest for the norm, or of the same length along the gradient
    itself.

    In linf the steepest step moves all coordinates, even those whose sign the members disagree about. The
    later, short steps go along the gradient itself and can end between boundaries.
    """
    if steepest or s.threat.norm != "linf":
        return s.threat.step(points, -pull, stride)
    length = norms(pull.flatten(1), 2).clamp_min(1e-20)
    size = stride * pull[0].numel() ** 0.5
    return points - (size / length).reshape((-1,) + (1,) * (pull.dim() - 1)) * pull


def play(
    s: Search,
    lanes: Tensor,
    points: Tensor,
    targets: Tensor,
    *,
    rounds: int,
    iterations: int,
    kappa: float,
    trust: float,
    hopeless: float,
    classes: int,
    memory: Memory,
) -> tuple[Tensor, Tensor]:
    """Search a point that fools T: move to the solution of the linearised game, linearise there, and repeat.

    Round r may move by at most `trust`^r times the ball's diameter. A target set is given up if the game's
    dual proves, in the linear model, that it is out of reach by more than `hopeless`·ε. `memory` keeps the linear
    models where all of T are fooled: the search for a larger set begins there.
    """
    rows = s.owner[lanes]
    path = Path(rows, points, targets)
    eps, x = s.threat.eps, take(s.x, rows)
    centre, region = x.flatten(1), Region.around(x, s.threat)
    left = torch.arange(len(rows), device=s.device)
    for number in range(rounds):
        here, wanted = take(path.points, left), targets[left]
        if number:
            lin = s.models(rows[left], here, wanted, classes)
        else:
            known = memory.known(lanes[left], here) & wanted
            lin = s.models(rows[left], here, wanted & ~known, classes)
            lin = memory.recall(lanes[left], known, lin)
        open_ = path.see(left, lin.errors, lin.wanted)
        unfooled, fooled = open_.nonzero().flatten(), (~open_).nonzero().flatten()
        memory.keep(lanes[left[fooled]], take(here, fooled), lin[fooled])
        left, lin = left[unfooled], lin[unfooled]
        if not len(left):
            return path.settle(s)
        around = take(centre, left)
        delta = take(here, unfooled).flatten(1) - around
        scale = norms(lin.gradients, s.threat.q).clamp_min(1e-20)
        a = lin.gradients.div_(scale.unsqueeze(2))
        c = lin.margins / scale + kappa * eps - torch.bmm(delta.unsqueeze(1), a.transpose(1, 2)).squeeze(1)
        domain = region[left].near(delta, reach=2 * eps * trust**number) if number else region[left]
        solved = solve_game(c, a, targets[left], domain, delta, iterations)
        moved = (around + solved.delta).reshape(len(left), *here.shape[1:])
        path.points[left] = s.project(rows[left], moved)
        possible = solved.floor <= hopeless * eps
        left, value = left[possible], solved.value[possible]
    # No verdict is computed for a point that is far from fooling all of T by the linear model.
    near = left[value <= hopeless * eps]
    path.see(near, s.verdicts(rows[near], path.points[near], targets[near]), targets[near])
    return path.settle(s)


@register("lattice")
@dataclass(frozen=True, kw_only=True)
class Lattice(Attack):
    """The lattice climber: PGD towards each target set, several random orders of the members.

    Parameters
    ----------
    steps : int
        Steps per climb.
    step : float
        Step size in units of eps.
    orders : int
        Orders of the members that are tried per restart.
    kappa : float
        How far beyond a boundary a step aims, relative to the distance.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.Lattice(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("lattice", attack.threat)
    ('lattice', True)
    """

    steps: int = 20
    step: float = 0.15
    orders: int = 2
    kappa: float = 0.01
    margins_only = True

    def search(self, s: Search) -> None:
        resisted = torch.zeros_like(s.foolable)
        for sweep in range(self.orders):
            elsewhere = s.random_start()
            reach = partial(descend, steps=self.steps, step=self.step, kappa=self.kappa, elsewhere=elsewhere)
            if sweep:
                attempt(s, reach, _PLAN, self.kappa)
            climb(s, sweep, resisted, reach, _PATIENCE)


@register("saddle")
@dataclass(frozen=True, kw_only=True)
class Saddle(Attack):
    """The saddle climber: each target set is reached through the linearised game.

    The first restart linearises against each member's runner-up class from the clean input. This decides most
    inputs with two or three passes each. Later restarts start at random points and choose among several
    runners-up.

    Parameters
    ----------
    relinearisations : int
        How often the members are linearised again per climb.
    iterations : int
        Iterations of the game on each linear model.
    orders : int
        Orders of the members that are tried per restart.
    kappa, trust, hopeless : float
        How far to aim beyond a boundary, how far the linear model is trusted, and when a set is given up.
    hyperplanes : int
        Boundaries per member in a linear model.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.Saddle(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("saddle", attack.threat)
    ('saddle', True)
    """

    relinearisations: int = 6
    iterations: int = 40
    orders: int = 2
    kappa: float = 0.05
    trust: float = 0.6
    hopeless: float = 0.4
    hyperplanes: int = 2  # runners-up considered by every restart after the first
    restarts: int = field(default=3, kw_only=True)
    side_by_side = True
    margins_only = True

    def search(self, s: Search) -> None:
        reach = partial(
            play,
            rounds=self.relinearisations,
            iterations=self.iterations,
            kappa=self.kappa,
            trust=self.trust,
            hopeless=self.hopeless,
            classes=1 if s.restart == 0 else self.hyperplanes,
            memory=Memory(s.x[s.owner], s.members),
        )
        resisted = torch.zeros_like(s.foolable[s.owner])
        for sweep in range(self.orders):
            if sweep:
                attempt(s, reach, self.iterations, self.kappa)
            climb(s, sweep, resisted, reach)
