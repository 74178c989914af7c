"""One batch under attack: what was found so far, and the rules that make verdicts right, here and nowhere else."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from randens.attacks.losses import Loss, margins
from randens.attacks.members import LinearModels
from randens.attacks.result import AttackResult, Cost
from randens.core.errors import InputError, ModelError
from randens.ensemble import RandomizedEnsemble, to_layout
from randens.region import Region, norms
from randens.threat import Threat
from randens.witness import WitnessPool

# A verdict must not depend on rounding. Another batch size, layout or folded BatchNorm changes logits by about 1e-6
# of the largest one, so a member counts as fooled only if its margin is larger than that.
TIE = 5e-5


class Search:
    """A batch of inputs under attack.

    `rows` arguments index the batch and name every input at most once; `points` are perturbed inputs of those rows.

    With an input's index in its data set (0, 1, … by default) and the attack's name (`source`), `seed` determines every
    random number of that input. `members` are run instead of `rec.members`: copies that compute the same faster.
    `known` holds witnesses of these inputs that are known already, those on the unperturbed inputs among them.

    Attributes
    ----------
    x, y, threat, probs
        Inputs [n, ...], labels [n], threat and α [M].
    clean, best, best_x
        Errors on the inputs [n, M]; the worst known fooled set [n, M] and its point [n, ...].
    resisted, left_out
        Failed searches for one member alone [n, M]; inputs that the attack is spared [n].
    """

    def __init__(
        self,
        rec: RandomizedEnsemble,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        seed: int = 0,
        index: Sequence[int] | None = None,
        source: str = "",
        members: Sequence[nn.Module] | None = None,
        known: WitnessPool | None = None,
    ) -> None:
        threat.check(x.detach())
        self.rec, self.source, self.seed = rec, source, seed
        self._index = list(range(len(x))) if index is None else list(index)
        self._networks = list(rec.members) if members is None else list(members)
        self._passes = [int(getattr(member, "passes", 1)) for member in rec.members]
        self.x = to_layout(_in_precision_of(rec, x, threat))
        self.n, self.members, self.device = len(x), len(rec), self.x.device
        self.threat = _around_rounded(threat, self.x, x)
        # In linf a projection is a clamp between two bounds, which take longer to compute than to apply.
        self._interval = self.threat.interval(self.x) if threat.norm == "linf" else None
        self.probs = rec.probs.to(self.device)
        self.cost = Cost(forwards=self.n * sum(self._passes))
        self.clean = rec.errors(self.x, y).to(self.device)
        self.y = y.to(self.device, torch.int64)
        self.best, self.best_x = self.clean.clone(), self.x.clone()
        self.resisted = torch.zeros(self.n, self.members, dtype=torch.int64, device=self.device)
        self.zero_gradient, self.nan_gradient = torch.zeros_like(self.clean), torch.zeros_like(self.clean)
        self.unstable = torch.zeros_like(self.clean)
        self.left_out = torch.zeros(self.n, dtype=torch.bool, device=self.device)
        self._sets = self.clean[:, None].clone()  # [n, K, M]: all fooled sets; unused places are empty
        self._found: list[tuple[Tensor, Tensor, Tensor, str]] = []  # rows, points, fooled sets, source
        self._models = [LinearModels(self.x, self.clean), LinearModels(self.x, self.clean)]
        self._generators: dict[tuple[object, ...], torch.Generator] = {}
        self._known = known
        if known is not None and len(known):
            self._start_from(known)

    @cached_property
    def region(self) -> Region:
        """The perturbation sets in coordinates of δ."""
        return Region.around(self.x, self.threat)

    # ---- what is known ----

    def risk(self, sets: Tensor) -> Tensor:
        """u·α of sets of members [..., M]."""
        return sets.to(self.probs.dtype) @ self.probs

    @property
    def open(self) -> Tensor:
        """Rows whose risk can still increase, but for those left out."""
        return (~(self.best | (self.probs == 0)).all(dim=1) & ~self.left_out).nonzero().flatten()

    @property
    def foolable(self) -> Tensor:
        """Bool [n, M]: members that some known point fools."""
        return self._sets.any(dim=1)

    @property
    def blind(self) -> Tensor:
        """Bool [n]: inputs where a member's gradient was zero or NaN, so that failed searches mean nothing."""
        return (self.zero_gradient | self.nan_gradient).any(dim=1)

    def is_new(self, rows: Tensor, sets: Tensor) -> Tensor:
        """Bool [k]: no known fooled set of the input contains this one [k, M]."""
        return ~(self._sets[rows] | ~sets[:, None]).all(dim=2).any(dim=1)

    def record(self, rows: Tensor, points: Tensor, errors: Tensor) -> None:
        """Keep every fooled set that is new, with its point, and the worst one of every input."""
        new = self.is_new(rows, errors).nonzero().flatten()
        if not len(new):
            return
        rows, points, errors = rows[new], points[new].detach(), errors[new]
        self._found.append((rows, points, errors, self.source))
        slot = torch.zeros_like(self.clean)
        slot[rows] = errors
        self._sets = torch.cat([self._sets, slot[:, None]], dim=1)
        better = self.risk(errors) > self.risk(self.best[rows])
        self.best[rows[better]], self.best_x[rows[better]] = errors[better], points[better]

    def result(self) -> AttackResult:
        """What was found. Every new witness is scored once more by the original members in their own precision."""
        pool = self._pool()
        if len(pool):
            rows = torch.from_numpy(pool.points).to(self.device)
            again = self.rec.errors(torch.from_numpy(pool.x_adv).to(self.device), self.y[rows])
            self.cost.forwards += len(pool) * sum(self._passes)
            lost = torch.from_numpy(pool.fooled).to(self.device) & ~again
            self.unstable.index_put_((rows,), lost, accumulate=True)
            pool = pool.replace(fooled=again.cpu().numpy())
        clean = WitnessPool(
            self.n, self.members, range(self.n), self.clean.cpu(), x_adv=_array(self.x), sources="clean"
        )
        everything = clean.merge(pool) if self._known is None else clean.merge(self._known, pool)
        risk, best = everything.best(self.rec.probs.numpy())
        errors, x_adv, found = self.clean.cpu().clone(), self.x.cpu().clone(), np.flatnonzero(best >= 0)
        assert everything.x_adv is not None
        errors[found] = torch.from_numpy(everything.fooled[best[found]])
        x_adv[found] = torch.from_numpy(everything.x_adv[best[found]]).to(x_adv.dtype)
        return AttackResult(
            x_adv=x_adv,
            errors=errors,
            risk=torch.from_numpy(risk),
            clean_errors=self.clean.cpu(),
            pool=everything if self._known is None else pool,
            cost=self.cost,
            sources=tuple(everything.sources[row] if row >= 0 else "clean" for row in best.tolist()),
            flags={
                name: (getattr(self, name).double().sum(dim=0) / max(1, self.n)).tolist()
                for name in ("zero_gradient", "nan_gradient", "unstable")
            },
        )

    def _pool(self) -> WitnessPool:
        """The new witnesses."""
        if not self._found:
            return WitnessPool(self.n, self.members, x_adv=_array(self.x[:0]))
        rows, points, sets, sources = zip(*self._found, strict=True)
        names = [source for part, source in zip(rows, sources, strict=True) for _ in range(len(part))]
        x_adv = _array(torch.cat(points))
        return WitnessPool(
            self.n, self.members, torch.cat(rows).cpu(), torch.cat(sets).cpu(), x_adv=x_adv, sources=names
        )

    def _start_from(self, known: WitnessPool) -> None:
        """Take over witnesses that are known already: the first of every input, then the second, and so on."""
        rows, order = torch.from_numpy(known.points).sort(stable=True)
        turn = torch.arange(len(rows)) - torch.searchsorted(rows, rows)
        for k in range(int(turn.max()) + 1):
            part = order[turn == k].numpy()
            assert known.x_adv is not None
            points, sets = torch.from_numpy(known.x_adv[part]), torch.from_numpy(known.fooled[part])
            here = torch.from_numpy(known.points[part]).to(self.device)
            self.record(here, points.to(self.x), sets.to(self.device))
        self._found.clear()

    # ---- points and random numbers ----

    def start(self, restart: int = 0) -> Tensor:
        """The inputs themselves for restart 0, random legal points for the others, [n, ...]."""
        if restart == 0:
            return self.x.clone()
        generators = [self._generator(row, "start", restart) for row in range(self.n)]
        noisy = [self.threat.noisy(self.x[row : row + 1], each) for row, each in enumerate(generators)]
        return self.project(torch.arange(self.n, device=self.device), torch.cat([self.x[:0], *noisy]))

    def orders(self, restart: int = 0) -> Tensor:
        """A random order of the members for every input, [n, M]; every call gives another."""
        generators = [self._generator(row, "order", restart) for row in range(self.n)]
        numbers = torch.zeros(self.n, self.members)
        for row, generator in enumerate(generators):
            numbers[row].uniform_(generator=generator)
        return numbers.argsort(dim=1).to(self.device)

    def uniform(self, rows: Tensor, *shape: int) -> Tensor:
        """Uniform random numbers [k, *shape]; every call gives others."""
        numbers = torch.zeros(len(rows), *shape)
        for place, row in enumerate(rows.tolist()):
            numbers[place].uniform_(generator=self._generator(row, "uniform"))
        return numbers.to(self.x)

    def _generator(self, row: int, *purpose: object) -> torch.Generator:
        """The input's own generator, so that batch sizes and numbers of processes change nothing."""
        key = (self.seed, self.source, self._index[row], *purpose)
        if purpose[0] == "start" or key not in self._generators:
            self._generators[key] = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
        return self._generators[key]

    def project(self, rows: Tensor, points: Tensor) -> Tensor:
        """The nearest legal points to `points`."""
        if self._interval is None:
            return to_layout(self.threat.project(points, self.x[rows]))
        low, high = (end[rows] for end in self._interval)
        return to_layout(torch.clamp(points, low, high))

    # ---- members ----

    def judge(
        self, rows: Tensor, points: Tensor, first: Tensor | None = None, errors: Tensor | None = None
    ) -> Tensor:
        """Verdicts bool [k, M] at the projections of `points`, recorded.

        With `first` [k, M] these members are asked first (unless `errors` [k, M] holds their verdicts at legal points
        already), and the others only where the first ones make a new fooled set. Members that are not asked count as
        not fooled.
        """
        first = torch.ones_like(self.clean[rows]) if first is None else first
        if errors is None:
            points = self.project(rows, points)
            errors = self.verdicts(rows, points, first)
        new = self.is_new(rows, errors).nonzero().flatten()
        if len(new):
            errors = errors.clone()
            errors[new] |= self.verdicts(rows[new], points[new], ~first[new])
            self.record(rows[new], points[new], errors[new])
        return errors

    def verdicts(self, rows: Tensor, points: Tensor, wanted: Tensor) -> Tensor:
        """Verdicts of the members `wanted` [k, M], not recorded; others count as not fooled."""
        errors = torch.zeros_like(wanted)
        with torch.no_grad():
            for member, part in _by_member(wanted):
                errors[part, member] = _fooled(self.ask(member, points[part]), self.y[rows[part]])
        return errors

    def examine(self, rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`judge` on all members, with every member's margin [k, M] and its logits' spread over the classes [k, M]."""
        points = self.project(rows, points)
        with torch.no_grad():
            z = torch.stack([self.ask(member, points) for member in range(self.members)])
        y = self.y[rows]
        errors = torch.stack([_fooled(each, y) for each in z], dim=1)
        self.record(rows, points, errors)
        return errors, margins(z, y).T.to(self.x.dtype), z.std(dim=2).T.clamp_min(1e-20).to(self.x.dtype)

    def gradient(
        self, rows: Tensor, points: Tensor, loss: Loss, members: Sequence[int] | None = None
    ) -> Tensor:
        """∇ loss of `members` (default: all that can be sampled) at `points`, [k, ...]; verdicts are recorded."""
        chosen = self.probs.nonzero().flatten().tolist() if members is None else list(members)
        weights = (
            self.probs[chosen] if members is None else torch.full_like(self.probs[chosen], 1 / len(chosen))
        )
        point = points.detach().requires_grad_()
        answers = [self.ask(member, point) for member in chosen]
        z = torch.stack(answers).detach().requires_grad_()
        (pull,) = torch.autograd.grad(loss(z, self.y[rows], weights).sum(), z)
        total = torch.zeros_like(points)
        seen, errors = torch.zeros_like(self.clean[rows]), torch.zeros_like(self.clean[rows])
        # Member by member: one whose gradient is NaN must not affect the others, one without any must be seen.
        for place, member in enumerate(chosen):
            fooled = _fooled(z[place].detach(), self.y[rows])
            own = self._backward(member, answers[place], pull[place], point)
            # A loss may be flat by design where the member is fooled already.
            total += self._usable(rows, member, own, watched=~fooled)
            seen[:, member], errors[:, member] = True, fooled
        self.judge(rows, points, seen, errors)
        return to_layout(total)

    def linearize(
        self, rows: Tensor, points: Tensor, wanted: Tensor, classes: int = 1
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Margins [k, M], their gradients [k, M, d] and verdicts [k, M] of the members `wanted` [k, M]; zero elsewhere.

        With several `classes`, the margin is that of the nearest boundary to one of that many runners-up. Models at the
        inputs and at the last points of every input are not computed again.
        """
        at_input = (points == self.x[rows]).flatten(1).all(dim=1) & (classes == 1)
        inputs, last = self._models
        known = inputs.known(rows, points, classes) | last.known(rows, points, classes)
        for member, part in _by_member(wanted & ~known):
            found = self._linearize_member(member, rows[part], points[part], classes)
            for models, mine in ((inputs, at_input[part]), (last, ~at_input[part])):
                where = part[mine]
                models.add(rows[where], member, points[where], classes, tuple(each[mine] for each in found))
        margin, slope, errors = last.get(rows)
        if bool(at_input.any()):
            margin[at_input], slope[at_input], errors[at_input] = inputs.get(rows[at_input])
        return margin * wanted, slope * wanted[:, :, None], errors & wanted

    def _linearize_member(
        self, member: int, rows: Tensor, points: Tensor, classes: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Margin [k], gradient [k, d] and verdict [k] of one member."""
        point = points.detach().requires_grad_()
        z = self.ask(member, point)
        label = self.y[rows, None]
        gaps = (z.gather(1, label) - z).scatter(1, label, torch.inf)
        nearest = gaps.topk(min(classes, z.shape[1] - 1), dim=1, largest=False).values
        pulls = [self._backward(member, gap, 1.0, point) for gap in nearest.unbind(dim=1)]
        normals = torch.stack([self._usable(rows, member, each).flatten(1) for each in pulls], dim=1)
        distances = nearest.detach() / norms(normals, self.threat.q).clamp_min(1e-20)
        line, closest = torch.arange(len(rows), device=self.device), distances.argmin(dim=1)
        verdicts = _fooled(z.detach(), self.y[rows])
        return nearest.detach()[line, closest], normals[line, closest], verdicts

    def ask(self, member: int, points: Tensor) -> Tensor:
        """One member's logits [k, C]."""
        self.cost.forwards += len(points) * self._passes[member]
        z = self.rec.answer(member, self._networks[member], to_layout(points))
        # A sum is the cheapest test: it is finite only if all are. Where it overflows, all are looked at.
        if not math.isfinite(float(z.detach().sum())) and not bool(torch.isfinite(z).all()):
            raise ModelError(f"member {member} returns NaN or infinite logits; it cannot be scored")
        return z

    def _backward(self, member: int, output: Tensor, pull: Tensor | float, point: Tensor) -> Tensor:
        """pull·∂output/∂point; zero, which is flagged, where the output does not depend on the point."""
        self.cost.backwards += len(point) * self._passes[member]
        if not output.requires_grad:
            return torch.zeros_like(point)
        (found,) = torch.autograd.grad((output * pull).sum(), point, retain_graph=True, allow_unused=True)
        return torch.zeros_like(point) if found is None else found.detach()

    def _usable(self, rows: Tensor, member: int, gradient: Tensor, watched: Tensor | None = None) -> Tensor:
        """Flag inputs whose gradient is NaN, or zero where `watched` [k]; NaN becomes 0, which moves nothing."""
        if not gradient[:1].numel():
            return gradient
        largest = gradient.flatten(1).abs().amax(dim=1)
        bad, zero = ~torch.isfinite(largest), largest == 0
        if watched is not None:
            zero &= watched
        self.nan_gradient[rows[bad], member] = True
        self.zero_gradient[rows[zero], member] = True
        return torch.nan_to_num(gradient, 0.0, 0.0, 0.0)


def _fooled(z: Tensor, y: Tensor) -> Tensor:
    """Bool [k]: the member is wrong by more than rounding."""
    return margins(z[None], y)[0] < -TIE * z.abs().amax(dim=1)


def _by_member(wanted: Tensor) -> list[tuple[int, Tensor]]:
    """The members in `wanted` [k, M], and the places where each is wanted."""
    return [(i, wanted[:, i].nonzero().flatten()) for i in wanted.any(dim=0).nonzero().flatten().tolist()]


def _array(points: Tensor) -> np.ndarray:
    return points.detach().cpu().contiguous().numpy()


def _in_precision_of(rec: RandomizedEnsemble, x: Tensor, threat: Threat) -> Tensor:
    """Inputs on the members' device and in their precision; rounding may leave the box by half a unit."""
    first = next(rec.parameters(), x)
    wide = first.dtype in (torch.float32, torch.float64)  # NumPy has no bfloat16
    moved = x.detach().to(rec.device, first.dtype if wide else torch.promote_types(x.dtype, torch.float32))
    return moved if threat.bounds is None else moved.clamp(*threat.bounds)


def _around_rounded(threat: Threat, rounded: Tensor, x: Tensor) -> Threat:
    """The threat around `rounded` whose points are legal around `x` too: smaller by the rounding error."""
    if rounded.dtype == x.dtype or not x.numel() or threat.norm == "finite":
        return threat
    distance = float(norms((rounded.cpu().double() - x.detach().cpu().double()).flatten(1), threat.p).max())
    if distance == 0:
        return threat
    left = 1 - 1e-12 - distance / threat.eps
    if left <= 0:
        raise InputError(
            f"eps is {threat.eps:g}; rounding x from {x.dtype} to the members' {rounded.dtype} moves it by "
            f"{distance:g} already (give x in the members' precision)"
        )
    return threat.scaled(left)
