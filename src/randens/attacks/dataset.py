"""Attack a whole data set: the one loop over batches, and the known witnesses of some inputs.

The data set is cut into fixed batches. The random numbers of a batch depend only on the seed and its number,
so the result is the same for one process, several processes, or a continued attack. With a store, finished
batches are read and not attacked again, and every new batch is added.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from randens.attacks.members import fast_members
from randens.attacks.result import AttackResult, Cost, join
from randens.attacks.run import attacking
from randens.attacks.search import Search
from randens.core.errors import FileError, InputError
from randens.core.progress import Progress, silent
from randens.ensemble import RandomizedEnsemble
from randens.models import in_precision, send
from randens.witness import WitnessPool
from randens.witness.store import Question, WitnessStore, Work, input_keys, member_key, rounded

if TYPE_CHECKING:
    from randens.attacks.base import Attack
    from randens.threat import Threat

__all__ = ["Found", "Knowledge", "as_attacks", "ask", "attack_data", "batches", "worst_inputs"]

_ROUNDING = 1e-12
_SAMPLE = 32  # stored witnesses that are checked whenever a store is read
_UNSTABLE = 0.01  # share of stored witnesses whose verdict may change (near ties, on another machine)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(AttackResult):
    """A result with its time, and the part of its cost that an earlier call paid."""

    seconds: float = 0.0
    reused: Cost = dataclasses.field(default_factory=Cost)

    def lean(self) -> Found:
        """Without the perturbed inputs: a few bytes per input."""
        return dataclasses.replace(self, x_adv=self.x_adv[:0].clone(), pool=self.pool.without_inputs())

    def shown_to(self, audience: Sequence[nn.Module], y: Tensor) -> Found:
        """With the verdicts of further members on every witness, as further columns of the pool."""
        if not audience:
            return self
        pool, others = self.pool, RandomizedEnsemble(list(audience))
        verdicts = np.zeros((len(pool), len(audience)), dtype=bool)
        if len(pool):
            assert pool.x_adv is not None
            labels = y.cpu()[torch.from_numpy(pool.points)].to(others.device)
            verdicts = others.errors(torch.from_numpy(pool.x_adv).to(others.device), labels).cpu().numpy()
        passes = sum(int(getattr(m, "passes", 1)) for m in audience)
        wider = pool.replace(
            members=pool.members + len(audience), fooled=np.concatenate([pool.fooled, verdicts], axis=1)
        )
        return dataclasses.replace(self, pool=wider, cost=self.cost + Cost(forwards=len(pool) * passes))

    def beside(self, rows: NDArray[np.int64], other: Found | None, others: NDArray[np.int64]) -> Found:
        """Combine this result on `rows` of a batch with `other` on the remaining rows."""
        found = self if other is None else joined([self, other])
        order = np.argsort(np.concatenate([rows, others]), kind="stable")
        chosen = torch.from_numpy(order)
        return dataclasses.replace(
            found,
            x_adv=found.x_adv[chosen] if len(found.x_adv) else found.x_adv,
            errors=found.errors[chosen],
            risk=found.risk[chosen],
            clean_errors=found.clean_errors[chosen],
            pool=found.pool.take(order),
            sources=tuple(found.sources[j] for j in order.tolist()),
        )


def joined(parts: Sequence[Found]) -> Found:
    """Results of consecutive parts of the data as one."""
    return Found(
        **vars(join(parts)),
        seconds=sum(part.seconds for part in parts),
        reused=sum((part.reused for part in parts), Cost()),
    )


def attack_data(
    attack: Attack,
    rec: RandomizedEnsemble,
    data: Any,
    *,
    audience: Sequence[nn.Module] = (),
    known: WitnessPool | None = None,
    clean: Tensor | None = None,
    safe: Tensor | None = None,
    store: WitnessStore | None = None,
    inputs: bool = True,
    shared: bool = True,
    progress: Progress = silent,
    task: str | None = None,
) -> Found:
    """Attack every batch of `data` once and put the parts together.

    Parameters
    ----------
    audience : modules
        Further members that are not attacked; the pool has their verdicts on every witness after those of
        rec.
    known, clean, safe : WitnessPool, bool [n, M], bool [n, M]
        Known witnesses and verdicts of these inputs and members; the attack starts from them. Without `known`
        it starts from the unperturbed inputs, and its result does not depend on earlier attacks.
    store : WitnessStore
        The store from which the same search is read, batch by batch, and which keeps finished batches.
    inputs : bool
        Keep the perturbed inputs in memory. Otherwise memory does not grow with the data.
    shared : bool
        Under torch.distributed, divide the batches among the processes, which must all make the same call.
    """
    several = shared and dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if several else (0, 1)
    desk = None if store is None else _Desk(store, attack, rec, audience, alone=known is None)
    total, name = _length(data), task or f"attack {attack.name}"
    parts: dict[int, Found] = {}
    done = 0
    with attacking(rec):
        prepared: list[nn.Module] | None = None
        for number, (x, y) in enumerate(batches(data, attack.batch_size)):
            if number % world == rank:
                rows = np.arange(done, done + len(x))
                start = None if known is None else known.take(rows)
                seen = None if clean is None else clean[done : done + len(x)]
                proved = None if safe is None else safe[done : done + len(x)]
                sample = in_precision(send(x[:4], rec.device), rec)
                prepared = fast_members(list(rec.members), sample) if prepared is None else prepared
                case = _Batch(attack, rec, prepared, audience, number, x, y, start, seen, proved)
                part = case.attacked() if desk is None else desk.answered(case)
                parts[number] = part if inputs else part.lean()
            done += len(x)
            progress(name, done, max(total or 0, done) if total else done + 1)
    if world > 1:
        gathered: list[Any] = [None] * world
        dist.all_gather_object(gathered, parts)
        parts = {number: part for each in gathered for number, part in each.items()}
        if store is not None and parts:
            store.refresh(attack.threat, x)
    if not parts:
        raise InputError("data is empty; there is nothing to attack")
    progress(name, done, done)
    return joined([parts[number] for number in sorted(parts)])


@dataclasses.dataclass(frozen=True)
class _Batch:
    """One batch about to be attacked."""

    attack: Attack
    rec: RandomizedEnsemble
    prepared: list[nn.Module]
    audience: Sequence[nn.Module]
    number: int
    x: Tensor
    y: Tensor
    known: WitnessPool | None
    clean: Tensor | None
    safe: Tensor | None

    def attacked(self, rows: NDArray[np.int64] | None = None) -> Found:
        """Attack the batch, or some rows of it; `Found.pool` holds the new witnesses."""
        begun = time.perf_counter()
        x, y, known = self.x, self.y, self.known
        index = np.arange(len(x)) if rows is None else rows
        if rows is not None:
            x, y = x[torch.from_numpy(rows)], y[torch.from_numpy(rows)]
            known = None if known is None else known.take(rows)
        attack = self.attack
        s = Search(
            self.rec,
            x,
            y,
            attack.threat,
            seed=attack.seed,
            index=(index + self.number * attack.batch_size).tolist(),
            source=attack.name,
            members=self.prepared,
            known=known,
        )
        attack.search(s)
        found = s.result()
        found = dataclasses.replace(found, pool=found.pool.replace(checked=True))
        return Found(**vars(found), seconds=time.perf_counter() - begun).shown_to(self.audience, y)


class _Desk:
    """Reads the results of earlier searches from a store and adds new ones."""

    def __init__(
        self,
        store: WitnessStore,
        attack: Attack,
        rec: RandomizedEnsemble,
        audience: Sequence[nn.Module],
        *,
        alone: bool,
    ) -> None:
        own = tuple(member_key(m) for m in rec.members)
        self.store, self.threat = store, attack.threat
        self.members = own + tuple(member_key(m) for m in audience)
        self.question = ask(attack, own, rec.probs.tolist(), alone=alone)
        self.alone, self.read = alone, False

    def answered(self, case: _Batch) -> Found:
        """Return the stored results of the batch, completed by attacking the remaining rows."""
        if self.alone and not self.read:
            self.store.refresh(self.threat, case.x)
            self.read = True
        keys = input_keys(case.x, case.y)
        answer = self.store.answer(self.question, keys, self.threat, case.x)
        todo, done = np.flatnonzero(~answer.done), np.flatnonzero(answer.done)
        new = case.attacked(None if not len(done) else todo) if len(todo) else None
        if new is not None:
            self._put(case, keys, todo, new)
        if not len(done):
            assert new is not None
            return new
        return self._recalled(case, keys, answer, done).beside(done, new, todo)

    def _put(self, case: _Batch, keys: NDArray[np.uint8], rows: NDArray[np.int64], found: Found) -> None:
        work = Work(
            self.question,
            keys[rows],
            found.errors.numpy(),
            found.sources,
            found.cost.forwards,
            found.cost.backwards,
            found.seconds,
            found.flags,
        )
        clean = found.clean_errors.numpy() if self.alone and len(self.members) == len(case.rec) else None
        chosen = torch.from_numpy(rows)
        self.store.extend(
            self.threat, case.x[chosen], keys[rows], self.members, found.pool, clean=clean, work=work
        )

    def _recalled(self, case: _Batch, keys: NDArray[np.uint8], answer: Any, done: NDArray[np.int64]) -> Found:
        own = len(case.rec)
        x = case.x[torch.from_numpy(done)]
        kept = self.store.recall(self.members, keys[done], x, self.threat, question=self.question)
        pool = WitnessPool(
            len(done),
            len(self.members),
            kept.points,
            kept.verdicts == 1,
            x_adv=kept.x_adv.numpy(),
            sources=kept.sources,
            checked=kept.checked,
        )
        clean = np.zeros((len(done), own), dtype=bool)
        clean[kept.points[kept.clean]] = kept.verdicts[kept.clean][:, :own] == 1
        outcome = torch.from_numpy(answer.outcome[done])
        cost = Cost(answer.forwards, answer.backwards)
        return Found(
            x_adv=worst_inputs(
                pool.take(np.arange(len(done)), np.arange(own)), case.rec.probs.cpu().numpy(), x
            ),
            errors=outcome,
            risk=outcome.double() @ case.rec.probs.cpu(),
            clean_errors=torch.from_numpy(clean)
            if case.clean is None
            else case.clean[torch.from_numpy(done)].cpu(),
            pool=pool,
            cost=cost,
            sources=tuple(answer.sources[j] for j in done.tolist()),
            flags={name: (values / len(done)).tolist() for name, values in answer.flags.items()},
            seconds=answer.seconds,
            reused=cost,
        )


def ask(attack: Attack, members: Sequence[str], probs: Sequence[float], *, alone: bool) -> Question:
    """Return the key of a search: an attack at these probabilities on these members."""
    fields = [f.name for f in dataclasses.fields(attack) if f.name != "threat" and f.compare]
    options = {name: getattr(attack, name) for name in fields}
    return Question(attack.name, options, attack.threat.eps, tuple(members), tuple(probs), alone)


class Knowledge:
    """What is known about n inputs: verdicts on the unperturbed inputs, the growing pool of witnesses, and
    the cost.

    `safe` [n, M] is where a certificate in the store says that no perturbation fools a member.

    `cost` and `seconds` are of everything that the answer rests on, in this call or an earlier one; `now` is what
    this call took. `flags` holds, per attack, the shares of inputs with unusable gradients; `unstable` is the largest
    share at which a member that had been fooled was not when an attack looked again.

    Parameters
    ----------
    store : WitnessStore
        Its witnesses of these members and inputs within the threat are used, after the verdicts of a random
        sample have been checked. New witnesses are added to it.
    verify : bool
        Check the verdicts of all stored witnesses.
    """

    def __init__(
        self,
        rec: RandomizedEnsemble,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        store: WitnessStore | None = None,
        verify: bool = False,
        progress: Progress = silent,
    ) -> None:
        self.rec, self.x, self.y, self.threat = rec, x, y, threat
        self.store, self.progress = store, progress
        self.cost, self.now, self.seconds = Cost(forwards=len(x) * len(rec.networks)), Cost(), 0.0
        self.flags: dict[str, dict[str, list[float]]] = {}
        self.verified = self.reused = 0
        self.unstable = 0.0
        self.pool = WitnessPool(len(x), len(rec), x_adv=np.zeros((0, *x.shape[1:]), dtype=np.float32))
        self._asked: dict[str, NDArray[np.bool_]] = {}
        self.keys = () if store is None else tuple(member_key(m) for m in rec.members)
        self.inputs = np.zeros((0, 16), dtype=np.uint8) if store is None else input_keys(x, y)
        self.safe: NDArray[np.bool_] = np.zeros((len(x), len(rec)), dtype=bool)
        clean = np.full((len(x), len(rec)), -1, dtype=np.int8)
        if store is not None:
            clean = self._recall(store, verify or store.verify)
            self.safe = self._proved(store)
        rows = np.flatnonzero((clean < 0).any(axis=1))
        if len(rows):
            clean[rows] = self._errors(rows, x[torch.from_numpy(rows)])
        self.clean: NDArray[np.bool_] = clean == 1
        everyone = np.arange(len(x))
        self._add(everyone, self.clean, rounded(x, self._dtype, threat), "clean", checked=True)
        if store is not None and len(rows) and _writes():
            none = WitnessPool(len(rows), len(rec))
            store.extend(
                threat,
                x[torch.from_numpy(rows)],
                self.inputs[rows],
                self.keys,
                none,
                clean=self.clean[rows],
            )
        if store is not None and dist.is_initialized():
            dist.barrier()  # every process has read the same store before any of them writes to it

    def attack(
        self, attack: Attack, probs: NDArray[np.float64], task: str, parent: Knowledge | None = None
    ) -> None:
        """Attack the inputs whose risk at `probs` can still increase, from the known witnesses, and pool new
        ones.

        Members with probability 0 are not attacked: the number of members affects step sizes, and gradients
        cost passes. Their verdicts on the witnesses are computed, like those of the members of `parent`,
        which receives the witnesses. Searches in the store are not repeated.
        """
        drawn = np.flatnonzero(probs)
        others = np.flatnonzero(probs == 0)
        found, rows = self._run(
            attack, drawn, probs, task, [] if parent is None else list(parent.rec.members)
        )
        if found is None:
            return
        self.unstable = max(self.unstable, *found.flags["unstable"])
        if not len(others):
            self.flags[attack.name] = {name: found.flags[name] for name in ("zero_gradient", "nan_gradient")}
        every = np.arange(len(rows))
        self.learn(rows, found.pool.take(every, np.argsort(np.concatenate([drawn, others]), kind="stable")))
        if parent is not None:
            parent.learn(rows, found.pool.take(every, np.arange(len(probs), found.pool.members)))

    def attacked_at(self, attacks: Sequence[Attack]) -> list[NDArray[np.float64]]:
        """Return the probabilities at which all of these attacks have been made before, on every input whose
        risk could increase there; in the order of the attacks."""
        if self.store is None:
            return []
        found: dict[tuple[float, ...], NDArray[np.float64]] = {}
        place = {key: index for index, key in enumerate(self.keys)}
        for search in self.store.asked(self.threat, self.x):
            if len(place) == len(self.keys) and set(search.members) <= set(place):
                alpha = np.zeros(len(self.rec))
                alpha[[place[name] for name in search.members]] = search.probs
                found.setdefault(tuple(alpha.tolist()), alpha)
        return [alpha for alpha in found.values() if all(self._settled(a, alpha) for a in attacks)]

    def _settled(self, attack: Attack, probs: NDArray[np.float64]) -> bool:
        drawn = np.flatnonzero(probs)
        question = ask(attack, [self.keys[i] for i in drawn], probs[drawn].tolist(), alone=False)
        assert self.store is not None
        done = self.store.answer(question, self.inputs, self.threat, self.x).done
        return bool((done | ~self._able(probs)).all())

    def _able(self, probs: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Bool [n]: inputs that can get worse at `probs`; members proved safe are never fooled."""
        able: NDArray[np.bool_] = self.pool.best(probs)[0] < (~self.safe) @ probs - _ROUNDING
        return able

    def _proved(self, store: WitnessStore) -> NDArray[np.bool_]:
        """Proofs in the store; one that a witness contradicts is worth nothing, and that is noted."""
        safe = store.proved(self.keys, self.inputs, self.x, self.threat)
        fooled = np.zeros_like(safe)
        np.logical_or.at(fooled, self.pool.points, self.pool.fooled)
        wrong = safe & fooled
        if wrong.any():
            store.notes.append(
                f"{int(wrong.sum())} stored certificates are contradicted by witnesses; not used"
            )
        return safe & ~fooled

    def learn(self, rows: NDArray[np.int64], pool: WitnessPool) -> None:
        """Merge a pool whose input j is `rows[j]` here."""
        self.pool = self.pool.merge(pool.replace(n=len(self.x), points=rows[pool.points]))

    def accept(self, pool: WitnessPool) -> None:
        """Merge a pool of the same inputs and members, and add its new witnesses to the store."""
        self.pool = self.pool.merge(pool)
        rows = np.flatnonzero(pool.located)
        if self.store is None or pool.x_adv is None or not len(rows):
            return
        known = self.store.lookup(
            self.keys, self.inputs[pool.points[rows]], torch.from_numpy(pool.x_adv[rows])
        )
        new = rows[(known < 0).any(axis=1)]
        if len(new) and _writes():
            self.store.extend(self.threat, self.x, self.inputs, self.keys, pool.rows(new))

    def show(self, rows: NDArray[np.int64], x_adv: Tensor, source: str) -> NDArray[np.bool_]:
        """Return the verdicts [k, M] of all members on perturbed inputs x_adv [k, ...] of `rows`; known ones
        are read.
        """
        fooled: NDArray[np.int8] = np.full((len(rows), len(self.rec)), -1, dtype=np.int8)
        if self.store is not None:
            fooled = self.store.lookup(self.keys, self.inputs[rows], x_adv)
        left = np.flatnonzero((fooled < 0).any(axis=1))
        if len(left):
            fooled[left] = self._errors(rows[left], x_adv[torch.from_numpy(left)])
            self._keep(rows[left], fooled[left] == 1, x_adv[torch.from_numpy(left)], source)
        wrong: NDArray[np.bool_] = fooled == 1
        self._add(rows, wrong, x_adv, source, checked=True)
        return wrong

    def confirm(self, probs: NDArray[np.float64]) -> tuple[NDArray[np.bool_], float]:
        """Compute the verdicts [n, M] on the worst inputs at `probs` by `rec.errors`, as a user would.

        Confirmed verdicts are not computed again. Also returns the share of inputs at which a member that had
        been fooled no longer is; such a witness is corrected.
        """
        rows = self.pool.best(probs)[1]
        worst = np.zeros((len(self.x), len(self.rec)), dtype=bool)
        found = np.flatnonzero(rows >= 0)
        worst[found] = self.pool.fooled[rows[found]]
        left = found[~self.pool.checked[rows[found]]]
        changed = 0
        if len(left):
            points = worst_inputs(self.pool, probs, self.x)[torch.from_numpy(left)].to(self._dtype)
            claimed, worst[left] = worst[left], self._errors(left, points)
            changed = int((claimed & ~worst[left]).any(axis=1).sum())
            self._keep(left, worst[left], points, "again")
            self.pool = _replaced(self.pool, rows[left], worst[left])
        return worst, changed / len(self.x)

    def _run(
        self,
        attack: Attack,
        drawn: NDArray[np.int64],
        probs: NDArray[np.float64],
        task: str,
        guests: list[nn.Module],
    ) -> tuple[Found | None, NDArray[np.int64]]:
        names = [self.keys[i] for i in drawn] if self.keys else [str(i) for i in drawn]
        question = ask(attack, names, probs[drawn].tolist(), alone=False)
        done = self._asked.get(question.key, np.zeros(len(self.x), dtype=bool))
        if self.store is not None:
            done = done | self.store.answer(question, self.inputs, self.threat, self.x).done
        # Inputs of stored searches and inputs whose risk can increase, so that batches of an interrupted call
        # are found.
        able = self._able(probs)
        seen = self._asked.get(question.key)
        rows = np.flatnonzero(done | able if seen is None else able & ~seen)
        self._asked[question.key] = done | able
        if not len(rows):
            self.progress(task, 1, 1)
            return None, rows
        chosen = torch.from_numpy(rows)
        self.progress(task, 0, len(rows))
        found = attack_data(
            attack,
            RandomizedEnsemble([self.rec.members[i] for i in drawn.tolist()], probs[drawn]),
            (self.x[chosen], self.y[chosen]),
            audience=[m for i, m in enumerate(self.rec.members) if i not in drawn] + guests,
            known=self.pool.take(rows, drawn),
            clean=torch.from_numpy(self.clean[np.ix_(rows, drawn)]),
            safe=torch.from_numpy(self.safe[np.ix_(rows, drawn)]),
            store=self.store,
            progress=self.progress,
            task=task,
        )
        self.cost = self.cost + found.cost
        self.now = self.now + (found.cost - found.reused)
        self.seconds += found.seconds
        return found, rows

    @property
    def _dtype(self) -> torch.dtype:
        first = next(self.rec.parameters(), None)
        return first.dtype if first is not None and first.is_floating_point() else self.x.dtype

    def _errors(self, rows: NDArray[np.int64], x_adv: Tensor) -> NDArray[np.bool_]:
        device = self.rec.device
        labels = self.y[torch.from_numpy(rows)].to(device)
        self.now = self.now + Cost(forwards=len(rows) * len(self.rec.networks))
        errors: NDArray[np.bool_] = self.rec.errors(x_adv.to(device), labels).cpu().numpy()
        return errors

    def _add(
        self, rows: NDArray[np.int64], fooled: NDArray[np.bool_], x_adv: Tensor, source: str, *, checked: bool
    ) -> None:
        points = x_adv.detach().cpu().contiguous().numpy()
        new = WitnessPool(
            len(self.x), len(self.rec), rows, fooled, x_adv=points, sources=source, checked=checked
        )
        self.pool = self.pool.merge(new)

    def _keep(self, rows: NDArray[np.int64], fooled: NDArray[np.bool_], x_adv: Tensor, source: str) -> None:
        """Add verdicts on some points to the store, including points that fool no member."""
        if self.store is not None and _writes():
            points = x_adv.detach().cpu().contiguous()
            self.store.judged(
                self.threat,
                self.x[torch.from_numpy(rows)],
                self.inputs[rows],
                self.keys,
                points,
                fooled,
                source,
            )

    def _recall(self, store: WitnessStore, verify: bool) -> NDArray[np.int8]:
        """Read the store's witnesses; return the verdicts [n, M] on the unperturbed inputs, −1 where
        unknown.
        """
        clean = np.full((len(self.x), len(self.rec)), -1, dtype=np.int8)
        store.refresh(self.threat, self.x)
        kept = store.recall(self.keys, self.inputs, self.x, self.threat)
        if not len(kept):
            return clean
        if not bool(self.threat.contains(kept.x_adv, self.x[torch.from_numpy(kept.points)]).all()):
            raise FileError(f"{store.folder} holds witnesses outside the perturbation set; remove the folder")
        verdicts, checked = kept.verdicts.copy(), kept.checked.copy()
        unknown = verdicts < 0
        for index in np.flatnonzero(unknown.any(axis=0)).tolist():
            rows = np.flatnonzero(unknown[:, index])
            alone = RandomizedEnsemble([self.rec.members[index]])
            labels = self.y[torch.from_numpy(kept.points[rows])].to(alone.device)
            points = kept.x_adv[torch.from_numpy(rows)]
            verdicts[rows, index] = alone.errors(points.to(alone.device), labels).cpu().numpy()[:, 0]
            self.now = self.now + Cost(forwards=len(rows))
            around = self.x[torch.from_numpy(kept.points[rows])]
            new = verdicts[rows][:, [index]] == 1
            key = self.inputs[kept.points[rows]]
            if _writes():
                store.judged(self.threat, around, key, self.keys[index : index + 1], points, new, "joined")
        changed = self._judged_again(kept.points, kept.x_adv, verdicts, checked, verify)
        if changed:
            store.notes.append(
                f"{changed} of {len(kept)} stored witnesses were judged otherwise now; corrected"
            )
        clean[kept.points[kept.clean]] = verdicts[kept.clean]
        self.reused = int((~kept.clean & (verdicts == 1).any(axis=1)).sum())
        self.pool = WitnessPool(
            len(self.x),
            len(self.rec),
            kept.points,
            verdicts == 1,
            x_adv=kept.x_adv.contiguous().numpy(),
            sources=kept.sources,
            checked=checked,
        )
        return clean

    def _judged_again(
        self,
        points: NDArray[np.int64],
        x_adv: Tensor,
        verdicts: NDArray[np.int8],
        checked: NDArray[np.bool_],
        verify: bool,
    ) -> int:
        """Check the verdicts of a sample of stored witnesses, or of all; if one has changed, check and
        correct all.
        """
        rows = np.arange(len(points))
        if not verify and len(rows) > _SAMPLE:
            rows = np.sort(np.random.default_rng().choice(len(points), _SAMPLE, replace=False))
        while True:
            now = self._errors(points[rows], x_adv[torch.from_numpy(rows)])
            self.verified = len(rows)
            wrong = ((verdicts[rows] == 1) & ~now).any(axis=1)
            if not wrong.any() or len(rows) == len(points):
                break
            rows = np.arange(len(points))
        if not wrong.any():
            return 0
        if wrong.mean() > _UNSTABLE and wrong.sum() > 1:
            raise FileError(
                f"{int(wrong.sum())} of {len(rows)} stored witnesses no longer fool the members they did: the "
                "members are not deterministic, or differ in something that is not in their weights; use --fresh"
            )
        verdicts[rows], checked[rows] = now, True
        self._keep(points[rows], now, x_adv, "again")
        return int(wrong.sum())


def _writes() -> bool:
    """Whether this process writes the results of all processes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def _replaced(pool: WitnessPool, rows: NDArray[np.int64], fooled: NDArray[np.bool_]) -> WitnessPool:
    """The pool with confirmed sets in place of those of `rows`."""
    sets, checked = pool.fooled.copy(), pool.checked.copy()
    sets[rows], checked[rows] = fooled, True
    return pool.replace(fooled=sets, checked=checked)


def as_attacks(attack: Attack | Sequence[Attack]) -> tuple[Attack, ...]:
    """One attack or several, all against the same threat."""
    chosen = tuple(attack) if isinstance(attack, Sequence) else (attack,)
    if not chosen or not all(hasattr(a, "search") for a in chosen):
        raise InputError(
            f"attack is {attack!r}; give one made by randens.attacks.create, or a list of them, not empty"
        )
    threats = {a.threat for a in chosen}
    if len(threats) > 1:
        raise InputError(
            f"the attacks have different threats {sorted(map(str, threats))}; they must share one"
        )
    return chosen


def worst_inputs(pool: WitnessPool, probs: Any, x: Tensor) -> Tensor:
    """Return, for each input, its worst known perturbation at `probs`, or the input itself if no member is
    fooled.

    Parameters
    ----------
    pool : WitnessPool
        With perturbed inputs.
    probs : array
        α.
    x : Tensor
        The unperturbed inputs.

    Returns
    -------
    Tensor
        Like `x`.

    Examples
    --------
    >>> import numpy as np
    >>> pool = WitnessPool(2, 1, [1], [[True]], x_adv=np.ones((1, 3), dtype=np.float32))
    >>> worst_inputs(pool, [1.0], torch.zeros(2, 3)).tolist()
    [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    rows = pool.best(probs)[1]
    found = np.flatnonzero(rows >= 0)
    worst = x.detach().cpu().clone()
    if len(found):
        if pool.x_adv is None or not pool.located[rows[found]].all():
            raise InputError("pool holds sets only; the perturbed inputs are needed, to look at them again")
        worst = worst.to(torch.from_numpy(pool.x_adv[:0]).dtype)
        worst[torch.from_numpy(found)] = torch.from_numpy(pool.x_adv[rows[found]])
    return worst


def batches(data: Any, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (x, y) batches of exactly `size` inputs (the last may be smaller) from any kind of data.

    Takes a pair of tensors, anything with ``.batches(size)`` (the data room's sets), a torch loader, or any
    iterable of (x, y) batches.
    """
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], Tensor):
        x, y = data
        if len(x) != len(y):
            raise InputError(f"y has {len(y)} labels; there are {len(x)} inputs")
        if len(x):
            yield from zip(torch.split(x, size), torch.split(y, size), strict=True)
        return
    source: Iterable[Any] = data.batches(size) if hasattr(data, "batches") else data
    waiting: list[tuple[Tensor, Tensor]] = []
    count = 0
    for item in source:
        try:
            x, y = item
        except (TypeError, ValueError):
            raise InputError(
                f"data yields {type(item).__name__}; it must yield (inputs, labels) pairs"
            ) from None
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError("data yields a pair that is not two tensors; labels are needed to attack")
        waiting.append((x, y))
        count += len(x)
        while count >= size:
            xs, ys = torch.cat([w[0] for w in waiting]), torch.cat([w[1] for w in waiting])
            yield xs[:size], ys[:size]
            waiting, count = [(xs[size:], ys[size:])], len(xs) - size
    if count:
        yield torch.cat([w[0] for w in waiting]), torch.cat([w[1] for w in waiting])


def _length(data: Any) -> int | None:
    """Return the number of inputs if it is known beforehand."""
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], Tensor):
        return len(data[0])
    if hasattr(data, "batches") and hasattr(data, "__len__"):
        return len(data)
    dataset = getattr(data, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else None
