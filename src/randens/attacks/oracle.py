"""Runs the members on points: projections, exact verdicts, gradients, nearest boundaries.

This module also saves passes: members are evaluated only where their verdict can matter, gradient passes give
verdicts as well, gradients at the inputs are kept, and BatchNorm is folded. Near ties have rules of their
own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from randens.attacks.compiled import joined_passes, passes
from randens.attacks.ledger import Ledger
from randens.attacks.losses import OF_ENTROPIES, Loss, cross_entropies, margins
from randens.attacks.members import GradientMembers
from randens.attacks.shared_networks import shared_planes
from randens.attacks.slopes import Slopes
from randens.attacks.stacked import Stack
from randens.core.errors import InputError, ModelError
from randens.core.tensors import norms, take
from randens.ensemble import RandomizedEnsemble, to_layout
from randens.models import send
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = ["Linearisation", "Memory", "Oracle"]

# A verdict must not depend on rounding. Another batch size, layout or folded BatchNorm changes logits by about 1e-6 of
# the largest one, so a member counts as fooled only if its margin is larger than that.
_TIE = 5e-5
_FIRST = 32  # numbers of two points that are compared before the others


@dataclass(frozen=True)
class Linearisation:
    """First-order model of members at a point: margin_i(x') ≈ margin_i + gradient_i·(x' − x).

    margins [k, M], zero where `wanted` [k, M] is false; slopes: the gradients of the wanted ones; errors [k, M]:
    members known to be fooled at the point itself.
    """

    margins: Tensor
    slopes: Slopes
    wanted: Tensor
    errors: Tensor

    @property
    def gradients(self) -> Tensor:
        """Of all members at all points [k, M, d], zero where `wanted` is false."""
        return self.slopes.table(self.wanted)

    def __getitem__(self, rows: Tensor) -> Linearisation:
        """Those of some points, by their numbers [j]."""
        return Linearisation(self.margins[rows], self.slopes[rows], self.wanted[rows], self.errors[rows])


Boundaries = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Ranks [p] and members [p], gaps [p, G], their gradients [p, G, d], and whether the member is fooled [p]."""


class Memory:
    """The members' linear models at one point per lane, `points` [L, ...], as far as they were computed there."""

    def __init__(self, points: Tensor, members: int) -> None:
        self.points = points.clone()
        self.which = torch.zeros(len(points), members, dtype=torch.bool, device=points.device)
        self.margins = points.new_zeros(self.which.shape)
        self.gradients = points.new_zeros(len(points), members, points[0].numel() if len(points) else 0)
        self.errors = torch.zeros_like(self.which)

    def known(self, lanes: Tensor, points: Tensor) -> Tensor:
        """Bool [k, M]: the members whose models at `points` [k, ...] are kept."""
        kept = self.which[lanes]
        if not bool(kept.any()):
            return kept
        return kept & _equal(points, take(self.points, lanes)).unsqueeze(1)

    def recall(self, lanes: Tensor, wanted: Tensor, into: Linearisation) -> Linearisation:
        """`into` with the models of the members `wanted` [k, M] at the lanes' points."""
        rank, member = wanted.nonzero(as_tuple=True)
        if not len(rank):
            return into
        at = lanes[rank], member
        into.margins[rank, member], into.errors[rank, member] = self.margins[at], self.errors[at]
        slopes = into.slopes.joined(rank, member, _pick(self.gradients, *at))
        return Linearisation(into.margins, slopes, into.wanted | wanted, into.errors)

    def keep(self, lanes: Tensor, points: Tensor, models: Linearisation) -> None:
        """Keep models [k, M] at `points`, and forget those of the points that the lanes were at before."""
        if not len(lanes):
            return
        elsewhere = ~_equal(points, take(self.points, lanes))
        self.which[lanes[elsewhere]] = False
        self.points[lanes] = points
        self.add(lanes, models.wanted, models)

    def add(self, lanes: Tensor, which: Tensor, models: Linearisation) -> None:
        """Keep the models `which` bool [k, M] at the points where the lanes are."""
        rank, member = which.nonzero(as_tuple=True)
        at = lanes[rank], member
        self.margins[at], self.errors[at] = models.margins[rank, member], models.errors[rank, member]
        self.gradients[at] = models.slopes.at(rank, member)
        self.which[at] = True


class Oracle(Ledger):
    """Evaluates the members of one ensemble on one batch and records the verdicts in the ledger.

    pool: witnesses known for this batch and these members. clean: the verdicts [n, M] on the inputs themselves, where
    they are known; they are not computed again. safe: bool [n, M], members that no legal perturbation fools, by proof.
    """

    def __init__(
        self,
        rec: RandomizedEnsemble,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        source: str = "",
        gradient_members: GradientMembers | None = None,
        drop_finished: bool = True,
        pool: WitnessPool | None = None,
        clean: Tensor | None = None,
        safe: Tensor | None = None,
    ) -> None:
        if x.dim() < 2:
            raise InputError(f"x has shape {tuple(x.shape)}; it must be [n, ...], one row per input")
        threat.check(x.detach())
        if y.dim() != 1 or len(y) != len(x):
            raise InputError(f"y has shape {tuple(y.shape)}; it must be [{len(x)}], one label per input")
        if y.is_floating_point() or y.dtype == torch.bool:
            raise InputError(f"y has dtype {y.dtype}; labels must be integers")
        first = next(rec.parameters(), None)
        dtype = first.dtype if first is not None and first.is_floating_point() else x.dtype
        # Rounding to the members' precision may leave the box by half a unit in the last place.
        moved = send(x.detach(), rec.device).to(dtype)
        moved = moved if threat.bounds is None else moved.clamp(*threat.bounds)
        self._gradient_members = gradient_members or GradientMembers(list(rec.members))
        self._gradient_members.verify(moved)
        super().__init__(self.laid(moved), rec.probs, source, drop_finished=drop_finished)
        self.rec, self.y = rec, y.to(self.device, torch.int64)
        self.threat = threat = _around_rounded(threat, self.x, x.detach())
        # For linf the legal set is an interval per coordinate, computed once.
        self._interval = threat.interval(self.x) if threat.norm == "linf" else None
        self._passes = [int(getattr(m, "passes", 1)) for m in rec.members]
        self.no_gradient = torch.zeros(self.n, self.members, dtype=torch.bool)
        self.nan_gradient = torch.zeros(self.n, self.members, dtype=torch.bool)
        self.unstable = torch.zeros(self.n, self.members, dtype=torch.bool)
        self._classes: int | None = None
        with self.one_thread():
            self.clean_errors = self._judge_clean() if clean is None else clean.to(self.device)
        self.begin_from(self.clean_errors, pool, safe)

    @property
    def float32(self) -> bool:
        """Whether gradients are taken in float32."""
        return self._gradient_members.exact

    def one_thread(self) -> contextlib.AbstractContextManager[None]:
        """Use compiled members, if all are, with threads of their own and one torch thread.

        For verdicts, and for gradients of margins and of losses in `OF_ENTROPIES`; torch takes those of other losses.
        """
        return self._gradient_members.one_thread()

    def laid(self, points: Tensor) -> Tensor:
        """Points in the layout that the members read: torch's, or that of ONNX Runtime if all are compiled."""
        return points.contiguous() if self._gradient_members.all_compiled else to_layout(points)

    def project(self, rows: Tensor, points: Tensor) -> Tensor:
        """Return the nearest legal points to `points`."""
        if self._interval is None:
            return self.laid(self.threat.project(points, take(self.x, rows)))
        low, high = (take(end, rows) for end in self._interval)
        return self.laid(torch.clamp(points, low, high))

    def judge(self, rows: Tensor, points: Tensor, first: Tensor | None = None) -> Tensor:
        """Return exact verdicts bool [k, M] for the projections of `points`; record and pool new witnesses.

        With `first` [k, M], those members are evaluated first, and the others only where the fooled ones
        already form a new set. Members that are not evaluated count as not fooled.
        """
        points = self.project(rows, points)
        errors = torch.zeros(len(rows), self.members, dtype=torch.bool, device=self.device)
        if first is None:
            self._fill(rows, points, errors, ~errors)
            self._record(rows, points, errors)
            return errors
        self._fill(rows, points, errors, first)
        return self._settle(rows, points, errors, first, ~self._dominated(rows, errors))

    def examine(self, rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Like `judge` on all members, with every member's margin [k, M] and its logits' spread over classes [k, M].

        A margin relative to the spread at the same point is constant where there are two classes: compare points by
        their margins relative to one point's spread.
        """
        points = self.project(rows, points)
        margin = self.x.new_zeros(len(rows), self.members)
        spread = torch.ones_like(margin)
        errors = torch.zeros(len(rows), self.members, dtype=torch.bool, device=self.device)
        self._fill(rows, points, errors, ~errors, margin, spread)
        self._record(rows, points, errors)
        return errors, margin, spread

    def verdicts(self, rows: Tensor, points: Tensor, wanted: Tensor) -> Tensor:
        """Exact verdicts of the members `wanted` [k, M] at legal `points`; others count as not fooled. Not recorded."""
        errors = torch.zeros_like(wanted)
        self._fill(rows, points, errors, wanted)
        return errors

    def settle(self, rows: Tensor, points: Tensor, errors: Tensor, known: Tensor) -> Tensor:
        """Complete verdicts [k, M] of the `known` members, and record them, where the fooled ones form a new set.

        The points of all searches that are under way are settled together: one wide pass costs less than many narrow
        ones. Of points of one input that fool the same known members, only the last is completed.
        """
        promising = ~self._dominated(rows, errors)
        chosen = promising.nonzero().flatten()
        if not len(chosen):
            return errors
        keys = torch.cat([rows[chosen].unsqueeze(1), errors[chosen].to(rows.dtype)], dim=1)
        _, same = torch.unique(keys, dim=0, return_inverse=True)
        last = torch.zeros_like(chosen).scatter_reduce(0, same, chosen, "amax")[same] == chosen
        promising[chosen] = last
        return self._settle(rows, points, errors, known, promising)

    def _promising(self, rows: Tensor, errors: Tensor, known: Tensor) -> Tensor:
        """Bool [k]: some member is fooled, and the set could be new once the members not `known` are
        evaluated.

        A point that fools none of the members evaluated so far is dropped; the other members have their own
        steps.
        """
        return errors.any(dim=1) & ~self._dominated(rows, errors | ~known)

    def _settle(
        self, rows: Tensor, points: Tensor, errors: Tensor, known: Tensor, promising: Tensor
    ) -> Tensor:
        """Complete and record partly `known` verdicts where they are `promising` [k]."""
        chosen = promising.nonzero().flatten()
        if len(chosen):
            complete = errors[chosen]
            self._fill(rows[chosen], points[chosen], complete, ~known[chosen])
            self._record(rows[chosen], points[chosen], complete)
            errors = errors.index_copy(0, chosen, complete)
        return errors

    def _fill(
        self,
        rows: Tensor,
        points: Tensor,
        errors: Tensor,
        wanted: Tensor,
        margin: Tensor | None = None,
        spread: Tensor | None = None,
    ) -> None:
        """Evaluate the members `wanted` [k, M]; write their verdicts, margins and spreads in place."""
        for rank, member, z in self._answers(points, wanted):
            y = self.y[rows[rank]]
            errors[rank, member] = self._fooled(z, y)
            if margin is not None and spread is not None:
                margin[rank, member] = margins(z.unsqueeze(0), y).squeeze(0).to(margin.dtype)
                spread[rank, member] = z.std(dim=1).clamp_min(1e-20).to(spread.dtype)

    def _answers(self, points: Tensor, wanted: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Logits z [p, C] for pairs of a point and a member that are `wanted` [k, M]: ranks [p], members [p], z."""
        if self._gradient_members.shares:
            whole = self._shared_logits(points, wanted)
            for rank, member in _pairs(wanted, together=False):
                yield rank, member, whole[int(member[0])][rank]
            return
        members = self._gradient_members
        for rank, member in _pairs(wanted, together=members.together):
            if not members.together:
                yield rank, member, self._forward(int(member[0]), points[rank])
                continue
            chosen = take(points, rank)
            if members.stack is not None:
                z = members.stack.at(chosen, member).z
            else:
                planned = [members.compiled_at(i).forward(chosen[part]) for i, part in _by_member(member)]
                (z,) = joined_passes(planned, members.threads)
            self.cost.forwards += len(member)
            self._check_logits(member, z)
            yield rank, member, z

    def _forward(self, index: int, points: Tensor) -> Tensor:
        with torch.no_grad():
            points = to_layout(points)
            # Folding and compiling change less than `_TIE` allows for.
            members = self._gradient_members
            if members.alone:
                z = members.compiled_at(index).logits(points)
            else:
                z = members(index, points) if members.exact else self.rec._ask(index, points)
        self.cost.forwards += len(points) * self._passes[index]
        self._check_logits(index, z)
        return z

    def _shared_logits(self, points: Tensor, wanted: Tensor) -> list[Tensor]:
        """Logits [k, C] of every member, right where `wanted` [k, M]; a network that several average is run once."""
        members = self._gradient_members
        needed = members.needed(wanted)
        outputs: list[Tensor] = []
        for network in range(needed.shape[1]):
            part = needed[:, network].nonzero().flatten()
            z = members.judge(network, points[part]) if len(part) else self.x.new_zeros(0, 1)
            self._check_logits(network, z)
            self.cost.forwards += len(part) * members.passes[network]
            outputs.append(z.new_zeros(len(points), z.shape[1]).index_copy(0, part, z))
        classes = max(z.shape[1] for z in outputs)
        filled = [z if z.shape[1] == classes else z.new_zeros(len(points), classes) for z in outputs]
        return [members.combined(i, [filled[b] for b in part]) for i, part in enumerate(members.parts)]

    @staticmethod
    def _check_logits(member: int | Tensor, z: Tensor) -> None:
        """`member` is one for all rows of z, or one per row."""
        # A sum is the cheapest test: it is finite only if all are. Where it overflows, all are looked at.
        if not math.isfinite(float(z.detach().sum())) and not bool(torch.isfinite(z).all()):
            bad = ~torch.isfinite(z).all(dim=1)
            index = member if isinstance(member, int) else int(member[bad][0])
            raise ModelError(f"member {index} returns NaN or infinite logits; it cannot be scored")

    @staticmethod
    def _fooled(z: Tensor, y: Tensor, margin: Tensor | None = None) -> Tensor:
        """Bool [k]: verdicts from the logits z [k, C], and from the margins [k] where they are known."""
        margin = margins(z.unsqueeze(0), y).squeeze(0) if margin is None else margin
        return margin < -_TIE * norms(z, torch.inf)

    def _judge_clean(self) -> Tensor:
        if not self.n:
            return torch.zeros(0, self.members, dtype=torch.bool, device=self.device)
        if self._gradient_members.shares:
            everyone = torch.ones(self.n, self.members, dtype=torch.bool, device=self.device)
            outputs = self._shared_logits(self.x, everyone)
        else:
            outputs = [self._forward(index, self.x) for index in range(self.members)]
        counts = {z.shape[1] for z in outputs}
        if len(counts) > 1:
            raise InputError(f"members have different class counts {sorted(counts)}; they must agree")
        self._classes = counts.pop()
        if int(self.y.min()) < 0 or int(self.y.max()) >= self.classes:
            raise InputError(
                f"y ranges over [{int(self.y.min())}, {int(self.y.max())}]; the members have {self.classes} "
                f"classes, so labels must be in [0, {self.classes - 1}]"
            )
        errors = torch.stack([z.argmax(dim=1) != self.y for z in outputs], dim=1)
        for index, z in enumerate(outputs):
            # The classes are closer than folding may have moved them, so the original member decides.
            gap = margins(z.unsqueeze(0), self.y).squeeze(0).abs()
            close = (gap <= _TIE * z.abs().amax(dim=1)).nonzero().flatten()
            if len(close):
                with torch.no_grad():
                    errors[close, index] = self.rec._ask(index, self.x[close]).argmax(dim=1) != self.y[close]
                self.cost.forwards += len(close) * self._passes[index]
        return errors

    @functools.cached_property
    def _clean_models(self) -> Memory:
        """The members' linear models at the inputs, as far as they were computed."""
        return Memory(self.x, self.members)

    @functools.cached_property
    def _right(self) -> Tensor:
        """[n, C]: 1 at the label, 0 elsewhere."""
        return F.one_hot(self.y, self.classes).to(self.x.dtype)

    @property
    def classes(self) -> int:
        """How many classes the members tell apart."""
        if self._classes is None:
            self._classes = self._forward(0, self.x[:1]).shape[1]
        return self._classes

    def conclude(self) -> Tensor:
        """Return verdicts bool [n, M] on the best points by `rec.errors`, so that a user's evaluation gives
        the same.

        Verdicts on unperturbed inputs and on points confirmed before are not computed again. `unstable` marks
        members that had been fooled and no longer are.
        """
        rows = (~self._best_checked).nonzero().flatten()
        if len(rows):
            again = self.rec.errors(self.best_x[rows], self.y[rows])
            self.unstable[rows] = (self.best_errors[rows] & ~again).cpu()
            self.best_errors[rows] = again
            self.cost.forwards += len(rows) * sum(self._gradient_members.passes)
            self._best_checked[rows] = True
        return self.best_errors

    def gradient(
        self, rows: Tensor, points: Tensor, loss: Loss, members: Sequence[int] | None = None
    ) -> Tensor:
        """∇_x loss of the chosen members (default: all that can be drawn) at `points`, [k, ...].

        The pass also yields verdicts, which are recorded.
        """
        chosen = list(members) if members is not None else self.probs.nonzero().flatten().tolist()
        alone = torch.full((len(chosen),), 1.0 / len(chosen), device=self.device)
        weights = self.probs[chosen] if members is None else alone
        if self._gradient_members.alone and len(rows) and loss in OF_ENTROPIES:
            return self._compiled_gradient(rows, points, OF_ENTROPIES[loss], chosen, weights)
        inputs = to_layout(points).detach().requires_grad_(True)
        if self._gradient_members.shares:
            return self._shared_gradient(rows, inputs, loss, chosen, weights)
        if self._gradient_members.stack is not None and len(rows):
            return self._stacked_gradient(self._gradient_members.stack, rows, points, loss, chosen, weights)
        # In the layout of the points: to add two layouts takes several times as long as to convert one.
        return self.laid(self._plain_gradient(rows, inputs, loss, chosen, weights))

    def _plain_gradient(
        self, rows: Tensor, inputs: Tensor, loss: Loss, chosen: Sequence[int], weights: Tensor
    ) -> Tensor:
        """`gradient` member by member, with torch's own derivatives."""
        outputs = self._outputs(inputs, chosen)
        z = torch.stack(outputs).detach().requires_grad_(True)
        value = loss(z, self.y[rows], weights.to(self.device))
        (slopes,) = torch.autograd.grad(value.sum(), z)
        usable = []
        # Member by member, at the same cost: a member with NaN gradients must not affect the others, and one
        # without any must be seen among them.
        for position, index in enumerate(chosen):
            own = _pull_back(outputs[position], slopes[position], inputs)
            # A loss may be flat by design where a member is already fooled; such a zero gradient is not
            # flagged.
            fooled = self._fooled(z[position].detach(), self.y[rows])
            usable.append(self._usable(rows, own, index, watched=~fooled))
        self.cost.backwards += len(inputs) * sum(self._passes[i] for i in chosen)
        self._learn_logits(rows, inputs.detach(), z.detach(), chosen)
        gradient = usable[0]
        for other in usable[1:]:
            gradient = gradient + other
        return gradient

    def _compiled_gradient(
        self,
        rows: Tensor,
        points: Tensor,
        of_entropies: Callable[[Tensor, Tensor], Tensor],
        chosen: Sequence[int],
        weights: Tensor,
    ) -> Tensor:
        """`gradient` of compiled members: their cross-entropies' gradients, each by its share in the loss."""
        members, y = self._gradient_members, self.y[rows]
        right = take(self._right, rows)
        planned = [members.compiled_at(index).entropy(points, right) for index in chosen]
        outputs, gradients = zip(*passes(planned, members.threads), strict=True)
        self.cost.forwards += len(rows) * len(chosen)
        self.cost.backwards += len(rows) * len(chosen)
        for index, z in zip(chosen, outputs, strict=True):
            self._check_logits(index, z)
        z = torch.stack(outputs)
        entropies = cross_entropies(z, y).requires_grad_(True)
        (shares,) = torch.autograd.grad(of_entropies(entropies, weights).sum(), entropies)
        total = torch.zeros_like(points)
        for index, own, share, answer in zip(chosen, gradients, shares, outputs, strict=True):
            own = own * share.reshape((-1,) + (1,) * (own.dim() - 1))
            total += self._usable(rows, own, index, watched=~self._fooled(answer, y))
        self._learn_logits(rows, points, z, chosen)
        return total

    def _stacked_gradient(
        self, stack: Stack, rows: Tensor, points: Tensor, loss: Loss, chosen: Sequence[int], weights: Tensor
    ) -> Tensor:
        """`gradient` of members that are run together: every member has a copy of the inputs, so none meets another."""
        count, k = len(chosen), len(rows)
        run = stack.at_each(points, sorted(chosen))
        member = torch.tensor(sorted(chosen), device=self.device).repeat_interleave(k)
        self._check_logits(member, run.z)
        z = torch.unflatten(run.z, 0, (count, k)).requires_grad_(True)
        order = torch.tensor(chosen, device=self.device).argsort()
        (slopes,) = torch.autograd.grad(loss(z, self.y[rows], weights[order]).sum(), z)
        own = run.gradient(slopes.flatten(0, 1))
        # A loss may be flat by design where a member is already fooled; such a zero gradient is not flagged.
        fooled = self._fooled(run.z, self.y[rows].repeat(count))
        own = self._usable(rows.repeat(count), own, member, watched=~fooled)
        self.cost.forwards += count * k
        self.cost.backwards += count * k
        self._learn_verdicts(rows, points, torch.unflatten(fooled, 0, (count, k)), sorted(chosen))
        return torch.unflatten(own, 0, (count, k)).sum(dim=0)

    def _shared_gradient(
        self, rows: Tensor, inputs: Tensor, loss: Loss, chosen: Sequence[int], weights: Tensor
    ) -> Tensor:
        """`gradient` of members that average the same networks: one pass per network."""
        members = self._gradient_members
        used = sorted({network for index in chosen for network in members.parts[index]})
        outputs = {network: members.run(network, inputs) for network in used}
        for network, output in outputs.items():
            self._check_logits(network, output)
        combined = [members.combined(i, [outputs[b].detach() for b in members.parts[i]]) for i in chosen]
        z = torch.stack(combined).requires_grad_(True)
        (slopes,) = torch.autograd.grad(loss(z, self.y[rows], weights).sum(), z)
        gradient = torch.zeros_like(inputs)
        passes = len(inputs) * sum(members.passes[network] for network in used)
        fooled = torch.stack([self._fooled(part.detach(), self.y[rows]) for part in z])
        for network in used:
            users = [p for p, index in enumerate(chosen) if network in members.parts[index]]
            slope = sum(members.share(chosen[p], network) * slopes[p] for p in users)
            assert isinstance(slope, Tensor)
            own = _pull_back(outputs[network], slope, inputs)
            # A loss may be flat by design where every average of this network is fooled already.
            watched = ~fooled[users].all(dim=0)
            usable = [self._usable(rows, own, chosen[p], watched=watched) for p in users]
            gradient += usable[0]
        self.cost.forwards += passes
        self.cost.backwards += passes
        self._learn_logits(rows, inputs.detach(), z.detach(), chosen)
        return gradient.detach()

    def linearise(self, rows: Tensor, points: Tensor, wanted: Tensor, classes: int = 1) -> Linearisation:
        """`models`, whose verdicts are completed and recorded at once where they are promising."""
        lin = self.models(rows, points, wanted, classes)
        if not self._gradient_members.exact_planes:
            return lin
        promising = self._promising(rows, lin.errors, wanted)
        return dataclasses.replace(lin, errors=self._settle(rows, points, lin.errors, wanted, promising))

    def models(self, rows: Tensor, points: Tensor, wanted: Tensor, classes: int = 1) -> Linearisation:
        """Margins and their gradients for the members `wanted` [k, M] at legal `points`: one pass per wanted member.

        With several `classes`, the margin is taken against the nearest of that many runners-up, at as many
        backward passes. The passes' verdicts are returned and not recorded: an attack collects those of several steps
        for `settle`. Those of bfloat16 passes are judged, and recorded, at once.
        """
        known = torch.zeros_like(wanted)
        margin, errors = self.x.new_zeros(wanted.shape), torch.zeros_like(wanted)
        slopes = Slopes.none(points.flatten(1), self.members)
        # Every climb starts at the clean inputs; known linearisations there are not computed again.
        clean = (
            _equal(points, take(self.x, rows)) if classes == 1 else torch.zeros_like(rows, dtype=torch.bool)
        )
        memory = self._clean_models if bool(clean.any()) else None
        if memory is not None:
            known = memory.which[rows] & clean.unsqueeze(1) & wanted
        asked = wanted & ~known
        if bool(asked.any()):
            parts: list[tuple[Tensor, Tensor, Tensor]] = []
            shares = self._gradient_members.shares
            found = (self._shared_boundaries if shares else self._boundaries)(rows, points, asked, classes)
            for rank, member, gaps, normals, fooled in found:
                gap, normal = gaps[:, 0], normals[:, 0]
                if gaps.shape[1] > 1:
                    sizes = norms(normals, self.threat.q).clamp_min(1e-20)
                    nearest = (gaps / sizes).argmin(dim=1)
                    first = torch.arange(len(rank), device=self.device)
                    gap, normal = gaps[first, nearest], _pick(normals, first, nearest)
                margin[rank, member], errors[rank, member] = gap.to(margin.dtype), fooled
                parts.append((rank, member, normal.to(margin.dtype)))
            # At once: joining them one by one would copy the first ones again and again.
            slopes = slopes.joined(
                *(each[0] if len(each) == 1 else torch.cat(each) for each in zip(*parts, strict=True))
            )
        models = Linearisation(margin, slopes, asked, errors)
        if memory is not None:
            memory.add(rows, asked & clean.unsqueeze(1), models)
            models = memory.recall(rows, known, models)
        return dataclasses.replace(models, errors=self._exact(rows, points, models.errors, wanted))

    def _boundaries(self, rows: Tensor, points: Tensor, wanted: Tensor, classes: int) -> Iterator[Boundaries]:
        """The nearest boundaries of the members `wanted` [k, M], member by member or all at once."""
        for rank, member in _pairs(wanted, together=self._gradient_members.together):
            gaps, normals, fooled = self._planes(rows[rank], take(points, rank), member, classes)
            yield rank, member, gaps, normals.flatten(2), fooled

    def _shared_boundaries(
        self, rows: Tensor, points: Tensor, wanted: Tensor, classes: int
    ) -> Iterator[Boundaries]:
        """`_boundaries` of members that average the same networks: their passes are shared."""
        planes = shared_planes(self._gradient_members, points, self.y[rows], wanted, classes)
        self.cost.forwards += planes.forwards
        self.cost.backwards += planes.backwards
        for rank, member in _pairs(wanted, together=False):
            index = int(member[0])
            z, found = planes.z[index], planes.gradients[index][rank]
            self._check_logits(index, z)
            normals = torch.stack(
                [self._usable(rows[rank], each, index) for each in found.unbind(dim=1)], dim=1
            )
            yield rank, member, planes.gaps[index][rank], normals, self._fooled(z[rank], self.y[rows[rank]])

    def _exact(self, rows: Tensor, points: Tensor, errors: Tensor, wanted: Tensor) -> Tensor:
        """The verdicts of a gradient pass if they are exact; otherwise promising points are judged, and recorded."""
        if self._gradient_members.exact_planes:
            return errors
        return self._judged(rows, points, self._promising(rows, errors, wanted))

    def hyperplanes(self, rows: Tensor, points: Tensor, index: int, count: int) -> tuple[Tensor, Tensor]:
        """The `count` smallest z_y − z_j of member `index` [k, G] and their gradients [k, G, ...].

        This takes one forward pass and G backward passes. With fewer classes than hyperplanes, all are
        returned.
        """
        gaps, gradients, fooled = self._planes(rows, points, torch.full_like(rows, index), count)
        errors = torch.zeros(len(rows), self.members, dtype=torch.bool, device=self.device)
        errors[:, index] = fooled
        seen = torch.zeros_like(errors)
        seen[:, index] = True
        # As in `judge`: the point's verdict was computed when the step was accepted.
        promising = ~self._dominated(rows, errors)
        if self._gradient_members.exact_planes:
            self._settle(rows, points, errors, seen, promising)
        else:
            self._judged(rows, points, promising)
        return gaps, gradients

    def _planes(
        self, rows: Tensor, points: Tensor, member: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gaps [k, G], their gradients [k, G, ...] and verdicts [k] of member[j] at points[j], nothing recorded.

        `member` [k] is ascending; all are the same, unless the members are run together.
        """
        stack = self._gradient_members.stack
        if stack is not None and len(rows):
            return self._stacked_planes(stack, rows, points, member, count)
        if self._gradient_members.alone and len(rows):
            return self._compiled_planes(rows, points, member, count)
        index = int(member[0]) if len(member) else 0
        inputs = to_layout(points).detach().requires_grad_(True)
        z, passes = self._gradient_members(index, inputs), len(inputs) * self._passes[index]
        self.cost.forwards += passes
        self._check_logits(member, z)
        y = self.y[rows].unsqueeze(1)
        gaps = z.gather(1, y) - z
        others = gaps.detach().scatter(1, y, torch.inf)
        near = others.topk(min(count, z.shape[1] - 1), dim=1, largest=False).indices
        chosen = gaps.gather(1, near)
        gradients = []
        for g in range(near.shape[1]):
            last = g == near.shape[1] - 1
            gradient = _pull_back(chosen[:, g], 1.0, inputs, keep=not last)
            gradients.append(self._usable(rows, gradient, member))
        self.cost.backwards += passes * near.shape[1]
        # The smallest gap is the margin.
        chosen = chosen.detach()
        fooled = self._fooled(z.detach(), self.y[rows], chosen[:, 0])
        return chosen, torch.stack(gradients, dim=1), fooled

    def _compiled_planes(
        self, rows: Tensor, points: Tensor, member: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`_planes` of compiled members, side by side."""
        members, y = self._gradient_members, self.y[rows]
        count = min(count, self.classes - 1)
        right = take(self._right, rows)
        planned = [
            members.compiled_at(index).planes(points[part], right[part], count)
            for index, part in _by_member(member)
        ]
        z, *gradients = joined_passes(planned, members.threads)
        self.cost.forwards += len(rows)
        self.cost.backwards += len(rows) * count
        self._check_logits(member, z)
        label = y.unsqueeze(1)
        gaps = (z.gather(1, label) - z).scatter_(1, label, torch.inf).topk(count, dim=1, largest=False).values
        usable = [self._usable(rows, each, member).unsqueeze(1) for each in gradients]
        normals = usable[0] if count == 1 else torch.cat(usable, dim=1)
        return gaps, normals, self._fooled(z, y, gaps[:, 0])

    def _stacked_planes(
        self, stack: Stack, rows: Tensor, points: Tensor, member: Tensor, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`_planes` of members that are run together; `member` [k] ascending."""
        run = stack.at(points, member)
        self._check_logits(member, run.z)
        y = self.y[rows].unsqueeze(1)
        gaps = (run.z.gather(1, y) - run.z).scatter_(1, y, torch.inf)
        chosen, near = gaps.topk(min(count, gaps.shape[1] - 1), dim=1, largest=False)
        planes = near.shape[1]
        slopes = run.z.new_zeros(len(rows), planes, run.z.shape[1])
        slopes.scatter_(2, y.unsqueeze(1).expand(-1, planes, 1), 1.0).scatter_(2, near.unsqueeze(2), -1.0)
        gradients = run.gradients(slopes)
        owner, input_ = (each.repeat_interleave(planes) for each in (member, rows))
        usable = self._usable(input_, gradients.flatten(0, 1), owner).reshape(gradients.shape)
        self.cost.forwards += len(rows)
        self.cost.backwards += len(rows) * planes
        return chosen, usable, self._fooled(run.z, self.y[rows], chosen[:, 0])

    def _outputs(self, inputs: Tensor, chosen: Sequence[int]) -> list[Tensor]:
        """The chosen members' logits, each with a graph of its own."""
        outputs = []
        for index in chosen:
            z = self._gradient_members(index, inputs)
            self._check_logits(index, z)
            outputs.append(z)
        self.cost.forwards += len(inputs) * sum(self._passes[i] for i in chosen)
        return outputs

    def _judged(self, rows: Tensor, points: Tensor, promising: Tensor) -> Tensor:
        """Exact verdicts [k, M], recorded, where those of a bfloat16 pass are `promising` [k]; none elsewhere."""
        exact = torch.zeros(len(rows), self.members, dtype=torch.bool, device=self.device)
        chosen = promising.nonzero().flatten()
        if len(chosen):
            exact[chosen] = self.judge(rows[chosen], points[chosen])
        return exact

    def _learn_logits(self, rows: Tensor, points: Tensor, z: Tensor, chosen: Sequence[int]) -> None:
        fooled = self._fooled(z.flatten(0, 1), self.y[rows].repeat(len(chosen)))
        self._learn_verdicts(rows, points, fooled.reshape(z.shape[:2]), chosen)

    def _learn_verdicts(self, rows: Tensor, points: Tensor, fooled: Tensor, chosen: Sequence[int]) -> None:
        """Record the verdicts `fooled` [m, k] of the m chosen members."""
        errors = torch.zeros(len(rows), self.members, dtype=torch.bool, device=self.device)
        seen = torch.zeros_like(errors)
        errors[:, chosen] = fooled.t()
        seen[:, chosen] = True
        promising = self._promising(rows, errors, seen)
        if self._gradient_members.exact:
            self._settle(rows, points, errors, seen, promising)
        else:
            self._judged(rows, points, promising)

    def _usable(
        self, rows: Tensor, gradient: Tensor, member: int | Tensor, watched: Tensor | None = None
    ) -> Tensor:
        """Flag inputs whose gradient is NaN, or exactly zero where `watched`; NaN becomes 0, which moves nothing.

        `member` is one for all rows, or one per row.
        """
        gradient = gradient.detach()
        # One pass over the gradient, in its own layout; NaN and infinity reach the norm.
        if not gradient[:1].numel():
            return gradient
        largest = gradient.abs().amax(dim=tuple(range(1, gradient.dim())))
        low, high = (float(end) for end in largest.aminmax())
        if low > 0 and math.isfinite(high):
            return gradient
        bad, zero = ~torch.isfinite(largest), largest == 0
        if watched is not None:
            zero &= watched
        if bool(bad.any()) or bool(zero.any()):
            owner = torch.full_like(rows, member) if isinstance(member, int) else member
            self.nan_gradient[rows[bad].cpu(), owner[bad].cpu()] = True
            self.no_gradient[rows[zero].cpu(), owner[zero].cpu()] = True
            gradient = torch.where(torch.isfinite(gradient), gradient, torch.zeros_like(gradient))
        return gradient


def _pairs(wanted: Tensor, *, together: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Ranks and members [p] of the true entries of `wanted` [k, M], sorted by member: at once, or member by member."""
    member, rank = wanted.t().nonzero(as_tuple=True)
    if not len(rank):
        return
    if together:
        yield rank, member
        return
    counts = wanted.sum(dim=0).tolist()
    parts = zip(torch.split(rank, counts), torch.split(member, counts), strict=True)
    yield from (part for part in parts if len(part[0]))


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """Bool [k]: which of the points a, b [k, ...] are the same. Most differ early: the rest is compared for few."""
    a, b = a.flatten(1), b.flatten(1)
    same = (a[:, :_FIRST] == b[:, :_FIRST]).all(dim=1)
    rows = same.nonzero().flatten()
    same[rows] = (take(a, rows) - take(b, rows)).abs().sum(dim=1) == 0
    return same


def _pick(values: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """values[rows, columns] for values [k, m, d]."""
    return take(values.flatten(0, 1), rows * values.shape[1] + columns)


def _by_member(member: Tensor) -> Iterator[tuple[int, slice]]:
    """The members in `member` [k], which is ascending, and where each stands."""
    found, counts = torch.unique_consecutive(member, return_counts=True)
    begin = 0
    for index, count in zip(found.tolist(), counts.tolist(), strict=True):
        yield index, slice(begin, begin + count)
        begin += count


def _around_rounded(threat: Threat, rounded: Tensor, x: Tensor) -> Threat:
    """Return the threat around `rounded` whose points are legal around `x` too: smaller by the rounding
    error.
    """
    if rounded.dtype == x.dtype:
        return threat
    moved = (rounded.cpu().double() - x.cpu().double()).flatten(1)
    distance = float(torch.linalg.vector_norm(moved, threat.p, dim=1).max()) if moved.numel() else 0.0
    if distance == 0:
        return threat
    left = 1 - 1e-12 - distance / threat.eps
    if left <= 0:
        raise InputError(
            f"eps is {threat.eps:g}; rounding x from {x.dtype} to the members' {rounded.dtype} moves it by "
            f"{distance:g} already (give x in the members' precision)"
        )
    return threat.scaled(left)


def _pull_back(output: Tensor, slope: Tensor | float, inputs: Tensor, *, keep: bool = False) -> Tensor:
    """slope·∂output/∂inputs; zero, which is flagged, where the output does not depend on the inputs."""
    if not output.requires_grad:
        return torch.zeros_like(inputs)
    # Without grad_outputs, because torch would check their shapes with a library that takes a second to
    # import.
    value = (output * slope).sum()
    (gradient,) = torch.autograd.grad(value, inputs, retain_graph=keep, allow_unused=True)
    return torch.zeros_like(inputs) if gradient is None else gradient
