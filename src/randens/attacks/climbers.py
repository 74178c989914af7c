"""Climbers: enlarge the set of fooled members one by one, each time searching for a point that fools all of
them.

Both climbers go through the lattice of subsets (Gnecco-Heredia et al.). They differ in the search for a point
that fools a target set T: `lattice` descends the sum of hinge losses, `saddle` solves the linearised game
between the perturbation and the members of T.
"""

from __future__ import annotations

import abc
import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.game import solve_game
from randens.attacks.oracle import Linearisation, Memory
from randens.attacks.plans import planned
from randens.attacks.search import Search
from randens.attacks.slopes import Slopes
from randens.core.tensors import norms, take
from randens.threat import Region

__all__ = ["Descents", "Games", "Reach", "attempt", "climb"]

_PATIENCE = 5  # `lattice`, the last of a portfolio, skips a member after so many failed searches for it
_PLAN = 40  # iterations of each game of a plan
_REMOTE = 1.5  # times ε: a member out of reach by more than this, in the linear model at the input, is remote


class Reach(abc.ABC):
    """Searches for points that fool target sets, one search per lane; a lane does not wait for others.

    Each step takes every lane from its point to the next one. Lanes of different targets and of different numbers of
    steps make their passes together, so that there are few and wide ones.
    """

    def __init__(self, s: Search, steps: int) -> None:
        self.s, self.steps = s, steps
        self.lanes = s.owner[:0]  # whose search is under way
        self.points = take(s.x, s.owner)
        self.targets = torch.zeros(len(s.owner), s.members, dtype=torch.bool, device=s.device)
        self.made = torch.zeros_like(s.owner)  # steps

    def begin(self, lanes: Tensor, points: Tensor, targets: Tensor) -> None:
        """Search from `points` [k, ...] for points that fool all of `targets` bool [k, M]."""
        self.points[lanes], self.targets[lanes], self.made[lanes] = points, targets, 0
        self.lanes = torch.cat([self.lanes, lanes])

    def step(self) -> tuple[Tensor, Tensor, Tensor]:
        """Make one step; lanes [k] whose search ended, the points [k, ...] where it did, and verdicts [k, M] there.

        Searches for inputs whose risk cannot increase any more are dropped.
        """
        s = self.s
        lanes = self.lanes[s.going[s.owner[self.lanes]]]
        rows, here, wanted = s.owner[lanes], take(self.points, lanes), self.targets[lanes]
        lin = self.linearised(lanes, here, wanted)
        errors = s.settle(rows, here, lin.errors, wanted)
        open_ = (wanted & ~errors).any(dim=1)
        fooled, left = (~open_).nonzero().flatten(), open_.nonzero().flatten()
        if len(fooled):
            self.reached(lanes[fooled], take(here, fooled), lin[fooled])
        further = open_.clone()
        if len(left):
            further[left] = self.move(lanes[left], take(here, left), lin[left])
        self.lanes, over = lanes[further], (~further).nonzero().flatten()
        return lanes[over], take(here, over), errors[over]

    def linearised(self, lanes: Tensor, here: Tensor, wanted: Tensor) -> Linearisation:
        """Models of the members `wanted` at the lanes' points; after the last step only their verdicts."""
        s, rows = self.s, self.s.owner[lanes]
        last = (self.made[lanes] == self.steps).nonzero().flatten()
        if not len(last):
            return self.models(lanes, here, wanted)
        moving = wanted.index_fill(0, last, False)
        lin = self.models(lanes, here, moving)
        verdicts = s.verdicts(rows[last], take(here, last), wanted[last])
        return dataclasses.replace(lin, errors=lin.errors.index_copy(0, last, verdicts))

    def models(self, lanes: Tensor, here: Tensor, wanted: Tensor) -> Linearisation:
        """Linear models of the members `wanted` at the lanes' points."""
        return self.s.models(self.s.owner[lanes], here, wanted)

    def reached(self, lanes: Tensor, points: Tensor, models: Linearisation) -> None:  # noqa: B027
        """Do nothing by default where the lanes' targets are fooled at `points`."""

    @abc.abstractmethod
    def move(self, lanes: Tensor, here: Tensor, lin: Linearisation) -> Tensor:
        """Move the lanes' points; bool [k], whether their searches go on."""


def climb(s: Search, sweep: int, resisted: Tensor, reach: Reach, patience: int | None = None) -> None:
    """Make one sweep through the members in random order; add each to the fooled set F if a point is found.

    Restarts that are searched together are L = together·n lanes, each with its own point, order and set F.
    The first sweep takes every lane. Later sweeps look for other maximal sets: they take the lanes where some
    member is missing from the input's best set and has not resisted alone, and begin with such a member.
    `resisted` [L, M] marks members that were attacked alone and not fooled. Members that `patience` searches
    of this or of other attacks have attacked alone without success are skipped. Lanes with a search under way go on
    from where it ends.
    """
    skipped = s.safe | (s.probs <= 0)
    if patience is not None:
        skipped = skipped | (s.resistance >= patience)
    # Out of reach by far from the input itself: of the later restarts, one looks at such a member again. For the others
    # it counts as a member that was attacked alone and not fooled.
    far = s.remote[s.owner] & (s.numbers > 1).unsqueeze(1)
    if not sweep:
        s.resistance += far.reshape(s.together, s.n, s.members).sum(dim=0)
    skipped = skipped[s.owner] | far
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
    position = torch.zeros_like(s.owner)
    idle = chosen.index_fill(0, reach.lanes, False).nonzero().flatten()
    while True:
        idle = idle[chosen[idle] & s.going[s.owner[idle]]]
        if len(idle):
            place, member = _following(s, idle, order[idle], position[idle], errors[idle], skipped[idle])
            lanes, position[idle] = idle[member >= 0], place + 1
            targets = errors[lanes].scatter(1, member[member >= 0].unsqueeze(1), True) & (s.probs > 0)
            reach.begin(lanes, take(point, lanes), targets)
        if not len(reach.lanes):
            return
        idle, ended, fooled = reach.step()
        targets = reach.targets[idle]
        success = (fooled | ~targets).all(dim=1)
        point[idle[success]], errors[idle[success]] = ended[success], fooled[success]
        alone = ~success & (targets.sum(dim=1) == 1)
        rows, member = s.owner[idle[alone]], targets[alone].int().argmax(dim=1)
        resisted[idle[alone], member] = True
        s.resistance.index_put_((rows, member), torch.ones_like(rows), accumulate=True)


def _following(
    s: Search, lanes: Tensor, order: Tensor, position: Tensor, errors: Tensor, skipped: Tensor
) -> tuple[Tensor, Tensor]:
    """The next member [k] of every lane, −1 if none is left, and its place [k] in the lane's order [k, M].

    Members before `position` [k], fooled ones and `skipped` ones [k, M] are passed over, and those that are foolable
    alone but with all that follow do not make a set of larger probability than the best one.
    """
    rows = s.owner[lanes]
    coming = ~errors & ~skipped
    gain = (coming * s.probs).gather(1, order)
    heaviest = s.weigh(errors).unsqueeze(1) + gain.flip(1).cumsum(dim=1).flip(1)
    worth = (heaviest > s.best_value[rows].unsqueeze(1) + 1e-9) | ~s.foolable[rows].gather(1, order)
    places = torch.arange(order.shape[1], device=s.device)
    fresh = coming.gather(1, order) & worth & (places >= position.unsqueeze(1))
    place = fresh.int().argmax(dim=1)
    member = order.gather(1, place.unsqueeze(1)).squeeze(1)
    return place, torch.where(fresh.any(dim=1), member, -1)


def attempt(s: Search, reach: Reach, kappa: float) -> None:
    """Aim from the clean input at the set of largest probability that the members' linear models do not rule
    out; of several restarts searched together, each takes the next such set. The searches are begun only.
    """
    for number in range(s.together):
        rows, targets = planned(s, _PLAN, kappa)
        # Also if it will be reached: sets of larger probability were ruled out or tried before.
        s.refuse(rows, targets)
        reach.begin(number * s.n + rows, take(s.x, rows), targets)


def _largest(order: Tensor, among: Tensor) -> Tensor:
    """Return, per input, the largest value of `order` among the marked members, [n, 1]."""
    return order.masked_fill(~among, -1.0).amax(dim=1, keepdim=True)


class Descents(Reach):
    """Projected descent of Σ_{j∈T} relu(margin_j + κ)/‖∇margin_j‖_q, which stops once all of T are fooled.

    It starts from the current point, then from the clean input, then from `elsewhere` [n, ...].
    """

    def __init__(self, s: Search, *, steps: int, step: float, kappa: float, elsewhere: Tensor) -> None:
        super().__init__(s, steps)
        self.length, self.kappa, self.elsewhere = step, kappa, elsewhere
        self.starts = torch.zeros_like(s.owner)  # how many were tried before this one

    def begin(self, lanes: Tensor, points: Tensor, targets: Tensor) -> None:
        super().begin(lanes, points, targets)
        # The descent from the clean input is not repeated.
        clean = (points == take(self.s.x, self.s.owner[lanes])).flatten(1).all(dim=1)
        self.starts[lanes] = clean.to(self.starts.dtype)

    def move(self, lanes: Tensor, here: Tensor, lin: Linearisation) -> Tensor:
        s, made = self.s, self.made[lanes]
        rows, over = s.owner[lanes], made == self.steps
        gradients = lin.gradients
        scale = norms(gradients, s.threat.q).clamp_min(1e-20)
        pulling = (lin.margins / scale > -self.kappa * s.threat.eps) & lin.wanted
        pull = torch.bmm((pulling / scale).unsqueeze(1), gradients).reshape(here.shape)
        # Steps shrink from four times the length to 0: large enough to leave x, small enough to end between boundaries.
        stride = (4 * self.length * s.threat.eps * (1 - made / self.steps).square()).to(here.dtype)
        moved = s.project(rows, _stepped(s, here, pull, stride, steepest=2 * made < self.steps))
        first = self.starts[lanes] == 0
        again = torch.where(_per_lane(first, here), take(s.x, rows), take(self.elsewhere, rows))
        self.points[lanes] = torch.where(_per_lane(over, here), again, moved)
        self.made[lanes] = (made + 1).masked_fill(over, 0)
        self.starts[lanes] += over
        return self.starts[lanes] < 3


def _per_lane(values: Tensor, points: Tensor) -> Tensor:
    """values [k] with as many dimensions as points [k, ...]."""
    return values.reshape((-1,) + (1,) * (points.dim() - 1))


def _stepped(s: Search, points: Tensor, pull: Tensor, stride: Tensor, *, steepest: Tensor) -> Tensor:
    """Make one step of length `stride` [k] against the gradient: steepest for the norm, or of the same length along the
    gradient itself.

    In linf the steepest step moves all coordinates, even those whose sign the members disagree about. The
    later, short steps go along the gradient itself and can end between boundaries.
    """
    fastest = s.threat.step(points, -pull, stride)
    if s.threat.norm != "linf" or bool(steepest.all()):
        return fastest
    length = norms(pull.flatten(1), 2).clamp_min(1e-20)
    along = points - _per_lane(stride * pull[0].numel() ** 0.5 / length, points) * pull
    return torch.where(_per_lane(steepest, points), fastest, along)


class Games(Reach):
    """Moves to the solution of the linearised game, linearises there, and repeats.

    Each game begins with the λ of the one before it.
    Move r may be at most `trust`^r times the ball's diameter. A search is given up if the game's dual proves, in
    the linear model, that the targets are out of reach by more than that model may err: `hopeless`·ε for the first
    two moves, then less by `trust`² each time, as the error of a linear model falls with the square of its reach.
    `memory` keeps the linear models where all of T are fooled: the search for a larger set begins there.
    """

    def __init__(
        self,
        s: Search,
        *,
        rounds: int,
        iterations: int,
        kappa: float,
        trust: float,
        hopeless: float,
        classes: int,
    ) -> None:
        super().__init__(s, rounds)
        self.iterations, self.kappa, self.classes = iterations, kappa, classes
        moves = torch.arange(rounds + 1, dtype=s.x.dtype, device=s.device)
        self.furthest = 2 * s.threat.eps * trust ** moves.unsqueeze(1)
        errs = (hopeless - kappa) * trust ** (2 * (moves - 1).clamp_min(0))
        self.limit = (kappa + errs) * s.threat.eps  # of the bound of each move's game
        self.centre, self.region = s.x.flatten(1), Region.around(s.x, s.threat)
        self.weights = s.x.new_zeros(len(s.owner), s.members)  # λ of the lanes' last games
        self.memory = Memory(self.points, s.members)

    def begin(self, lanes: Tensor, points: Tensor, targets: Tensor) -> None:
        super().begin(lanes, points, targets)
        self.weights[lanes] = targets.to(self.weights.dtype) / targets.sum(dim=1, keepdim=True)

    def models(self, lanes: Tensor, here: Tensor, wanted: Tensor) -> Linearisation:
        known = self.memory.known(lanes, here) & wanted
        lin = self.s.models(self.s.owner[lanes], here, wanted & ~known, self.classes)
        return self.memory.recall(lanes, known, lin)

    def reached(self, lanes: Tensor, points: Tensor, models: Linearisation) -> None:
        self.memory.keep(lanes, points, models)

    def move(self, lanes: Tensor, here: Tensor, lin: Linearisation) -> Tensor:
        further = self.made[lanes] < self.steps
        moving = further.nonzero().flatten()
        if len(moving):
            further[moving] = self._moved(lanes[moving], take(here, moving), lin[moving])
        return further

    def _moved(self, lanes: Tensor, here: Tensor, lin: Linearisation) -> Tensor:
        """Move to the solutions of the games; bool [k], whether the targets may still be in reach."""
        s, made, eps = self.s, self.made[lanes], self.s.threat.eps
        rows, targets = s.owner[lanes], self.targets[lanes]
        centre = take(self.centre, rows)
        delta = here.flatten(1) - centre
        rank, member = lin.wanted.nonzero(as_tuple=True)
        slopes = Slopes.none(delta, s.members).joined(rank, member, lin.slopes.at(rank, member))
        scale = norms(slopes.values, s.threat.q).clamp_min(1e-20)
        slopes.values.div_(scale.unsqueeze(1))
        c = torch.zeros_like(lin.margins)
        change = (slopes.values * take(delta, rank)).sum(dim=1)  # by what δ has moved already
        c[rank, member] = lin.margins[rank, member] / scale + self.kappa * eps - change
        domain = self.region[rows].near(delta, self.furthest[made])
        solved = solve_game(c, slopes, targets, domain, delta, self.iterations, self.weights[lanes])
        self.weights[lanes] = solved.weights
        if s.restart == 0:
            far = (targets.sum(dim=1) == 1) & (made == 0) & (solved.floor > _REMOTE * eps)
            s.remote[rows] |= targets & far.unsqueeze(1)
        self.points[lanes] = s.project(rows, (centre + solved.delta).reshape(here.shape))
        self.made[lanes] = made + 1
        # No verdict is computed for a point that is far from fooling all of T by the linear model.
        bound = torch.where(made + 1 == self.steps, solved.value, solved.floor)
        return bound <= self.limit[made]


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
            reach = Descents(s, steps=self.steps, step=self.step, kappa=self.kappa, elsewhere=elsewhere)
            if sweep:
                attempt(s, reach, self.kappa)
            climb(s, sweep, resisted, reach, _PATIENCE)


@register("saddle")
@dataclass(frozen=True, kw_only=True)
class Saddle(Attack):
    """The saddle climber: each target set is reached through the linearised game.

    The first restart linearises against each member's runner-up class from the clean input. This decides most
    inputs with two or three passes each. Later restarts start at random points and choose among several
    runners-up. With several restarts, the first one tries one order of the members only.

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
    iterations: int = 20
    orders: int = 2
    kappa: float = 0.05
    trust: float = 0.6
    hopeless: float = 0.4
    hyperplanes: int = 2  # runners-up considered by every restart after the first
    restarts: int = field(default=3, kw_only=True)
    side_by_side = True
    margins_only = True

    def search(self, s: Search) -> None:
        reach = Games(
            s,
            rounds=self.relinearisations,
            iterations=self.iterations,
            kappa=self.kappa,
            trust=self.trust,
            hopeless=self.hopeless,
            classes=1 if s.restart == 0 else self.hyperplanes,
        )
        # Few inputs need a second order; those of all restarts are tried side by side, after the first restart.
        orders = 1 if s.restart == 0 and self.restarts > 1 else self.orders
        resisted = torch.zeros_like(s.foolable[s.owner])
        for sweep in range(orders):
            if sweep:
                attempt(s, reach, self.kappa)
            climb(s, sweep, resisted, reach)
