"""The one loop: attack what can still get worse, keep every witness, in memory and in a store.

`evaluate`, `curve`, `optimize_sampling`, `advise`, `audit` and `certify` are this loop with other members, α or
radii. Nothing is attacked twice: a search is skipped on inputs where it was made before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from randens._version import __version__
from randens.attacks import Attack, Cost
from randens.core.errors import FileError
from randens.core.progress import Progress, silent
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, evaluating
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.fingerprints import digest, input_keys, member_key
from randens.witness.store import Scope, Spent, WitnessStore

_ROUNDING = 1e-12
_FAILED = 0.01  # share of stored witnesses that may fail to fool again (near ties, on another machine)


class Witnesses:
    """What is known about an ensemble on n inputs: errors on the unperturbed inputs, and a growing pool.

    pool (argument): witnesses known before, of the same inputs and members, within the threat.
    clean: bool [n, M]. cost: the passes behind the pool, whichever call made them; now: those of this call. flags:
    per attack and member, shares of inputs. verified: how many stored witnesses were scored again, and how many hold.
    """

    def __init__(
        self,
        rec: RandomizedEnsemble,
        data: Data,
        threat: Threat,
        *,
        store: WitnessStore | None = None,
        pool: WitnessPool | None = None,
        progress: Progress = silent,
    ) -> None:
        self.rec, self.data, self.threat, self.store, self.progress = rec, data, threat, store, progress
        self.cost, self.now = Cost(), Cost()
        self.flags: dict[str, dict[str, list[float]]] = {}
        self.verified: tuple[int, int] | None = None
        self.x, self.y = data.x, data.y
        everyone = np.arange(len(data))
        self.clean = self._errors(rec, everyone, self.x)
        self.cost += Cost(forwards=len(data) * len(rec.networks))
        self.pool = self._witnesses(everyone, self.x, self.clean, ["clean"] * len(data))
        self._reached: dict[bytes, NDArray[np.float64]] = {}
        self._earlier: dict[bytes, Spent] = {}
        self._members = [str(i).encode() for i in range(len(rec))]
        if store is not None:
            self._members = [member_key(member) for member in rec.members]
            self._scope = Scope(self.x, input_keys(self.x, self.y), self._members, threat)
            self._earlier = store.searched(self._scope)
            self._load(store)
        if pool is not None:
            self.pool = self.pool.merge(pool)
        if store is not None and dist.is_initialized():
            dist.barrier()  # every process has read the same store before any of them writes a search

    @property
    def classes(self) -> int:
        """How many classes the members know."""
        with evaluating(self.rec), torch.no_grad():
            return int(self.rec.logits(self.x[:1].to(self.rec.device)).shape[2])

    @property
    def doubts(self) -> list[str]:
        """What the flags say against the result."""
        who = _flagged(self.flags, len(self.rec), ("unstable",), _FAILED)
        unstable = f"Answers differ when they are computed again (member {who}): the members may be random"
        missing = missing_gradients(self.flags, len(self.rec))
        return [*([missing] if missing else []), *([unstable] if who else [])]

    def attack(self, attack: Attack, probs: NDArray[np.float64], task: str) -> None:
        """Attack the inputs whose risk at `probs` can still increase, starting from the known witnesses.

        Members with probability 0 are not attacked; the others' witnesses are shown to them.
        """
        if attack.enumerates:  # all fooled sets of all members, once
            probs = np.full(len(self.rec), 1 / len(self.rec))
        if self.threat.eps == 0 and not attack.enumerates:  # the inputs themselves are known
            return
        drawn, others = np.flatnonzero(probs), np.flatnonzero(probs == 0)
        risks = self.pool.best(probs)[0]
        search, reached = self._search(attack, drawn, probs)
        # A search without the witness that it found, by damage or by hand, counts as not made.
        rows = np.flatnonzero((risks < 1 - _ROUNDING) & ~(risks >= reached - _ROUNDING))
        part = RandomizedEnsemble([self.rec.members[int(i)] for i in drawn], probs[drawn])
        rest = RandomizedEnsemble([self.rec.members[int(i)] for i in others]) if len(others) else None
        start = self.pool.take(np.arange(len(self.data)), drawn)

        def report(_: str, done: float, total: float) -> None:
            self.progress(task, done, total)

        report(task, 0, max(1, len(rows)))
        new: list[WitnessPool] = []
        batches = attack.batches(part, self.data, rows=rows, start=start, progress=report)
        for chunk, found in batches if len(rows) else ():
            inputs, points = chunk[found.pool.points], torch.from_numpy(found.pool.x_adv)
            fooled = np.zeros((len(inputs), len(self.rec)), dtype=bool)
            fooled[:, drawn] = found.pool.fooled
            if rest is not None and len(inputs):
                fooled[:, others] = self._errors(rest, inputs, points)
            reached[chunk] = np.maximum(risks[chunk], found.pool.best(probs[drawn])[0])
            spent = Spent(chunk, reached[chunk], found.cost.forwards, found.cost.backwards, found.flags)
            self.now += found.cost
            self._count(attack, drawn, spent)
            self._keep(inputs, points, fooled, found.pool.sources, search, spent)
            new.append(self._witnesses(inputs, points, fooled, found.pool.sources))
        self.pool = self.pool.merge(*new)
        report(task, 1, 1)

    def judge(self, rows: NDArray[np.int64], x_adv: Tensor, sources: Sequence[str]) -> NDArray[np.bool_]:
        """Errors [k, M] of all members on perturbed inputs of `rows`, which join the pool; known ones are read."""
        verdicts: NDArray[np.int8] = np.full((len(rows), len(self.rec)), -1, dtype=np.int8)
        if self.store is not None:
            verdicts = self.store.verdicts(self._scope, rows, x_adv)
        fooled = self._complete(rows, x_adv, verdicts, sources)
        self.cost += Cost(forwards=len(rows) * len(self.rec.networks))
        self.pool = self.pool.merge(self._witnesses(rows, x_adv, fooled, sources))
        return fooled

    def show(self, other: WitnessPool) -> None:
        """Judge the witnesses of another pool of the same inputs, e.g. of other members."""
        if len(other):
            self.judge(other.points, torch.from_numpy(other.x_adv), other.sources)

    def confirm(self, probs: NDArray[np.float64]) -> None:
        """Compute the errors on the worst inputs at `probs` once more, as a user would; correct what has changed."""
        held = False
        while not held:
            rows = self.pool.best(probs)[1]
            rows = rows[rows >= 0]
            held = self._score_again(rows) == len(rows)

    def note(self, *about: str) -> Any:
        """What was noted about these members, inputs and this threat; None if nothing was."""
        return None if self.store is None else self.store.note(self._note_key(about))

    def add_note(self, value: Any, *about: str) -> None:
        """Note a JSON value in the store, if there is one."""
        if self.store is not None and _writes():
            self.store.add_note(self._note_key(about), value)

    def _note_key(self, about: tuple[str, ...]) -> bytes:
        return digest(repr((about, self.threat)).encode(), *self._members, *self._scope.inputs)

    def _search(
        self, attack: Attack, drawn: NDArray[np.int64], probs: NDArray[np.float64]
    ) -> tuple[bytes, NDArray[np.float64]]:
        """The address of a search, and the risks [n] that it reached before (NaN: it was not made there)."""
        said = repr((__version__, attack.name, attack, probs[drawn].tolist()))
        key = digest(said.encode(), *(self._members[i] for i in drawn))
        if key not in self._reached:
            self._reached[key] = np.full(len(self.data), np.nan)
            if (earlier := self._earlier.get(key)) is not None:
                self._reached[key][earlier.rows] = earlier.risks
                self._count(attack, drawn, earlier)
        return key, self._reached[key]

    def _score_again(self, rows: NDArray[np.int64]) -> int:
        """Score witnesses of the pool again; returns how many hold."""
        assert self.pool.x_adv is not None
        inputs, points = self.pool.points[rows], torch.from_numpy(self.pool.x_adv[rows])
        errors = self._errors(self.rec, inputs, points)
        wrong = np.flatnonzero((self.pool.fooled[rows] & ~errors).any(axis=1))
        if len(wrong):
            share = len(wrong) / len(self.data)
            self.flags.setdefault("scored again", {})["unstable"] = [share] * len(self.rec)
            sources = [self.pool.sources[row] for row in rows[wrong].tolist()]
            fooled = self.pool.fooled.copy()
            fooled[rows] = errors
            self.pool = self.pool.replace(fooled=fooled)
            self._keep(inputs[wrong], points[torch.from_numpy(wrong)], errors[wrong], sources)
        return len(rows) - len(wrong)

    def _load(self, store: WitnessStore) -> None:
        """Read the store's witnesses of these members and inputs; an added member is judged on them."""
        rows, verdicts, points, sources = store.load(self._scope)
        fooled = self._complete(rows, points, verdicts, sources)
        clean, self.pool = self.pool, self._witnesses(rows, points, fooled, sources)
        if store.verify:
            count = len(self.pool)
            self.verified = (count, self._score_again(np.arange(count)))
            failed = count - self.verified[1]
            if failed > max(1, _FAILED * count):
                raise FileError(
                    f"{failed} of {count} witnesses in {store.path} do not fool the members they are stored for: the "
                    "members differ in something that is not in their weights; use --fresh"
                )
        self.pool = clean.merge(self.pool)

    def _complete(
        self, rows: NDArray[np.int64], x_adv: Tensor, verdicts: NDArray[np.int8], sources: Sequence[str]
    ) -> NDArray[np.bool_]:
        """Errors [k, M] on points of which some verdicts are known; the others (-1) are computed and kept."""
        left = np.flatnonzero((verdicts < 0).any(axis=1))
        if len(left):
            points = x_adv[torch.from_numpy(left)]
            verdicts[left] = self._errors(self.rec, rows[left], points)
            self._keep(rows[left], points, verdicts[left] == 1, [sources[i] for i in left.tolist()])
        fooled: NDArray[np.bool_] = verdicts == 1
        return fooled

    def _count(self, attack: Attack, drawn: NDArray[np.int64], spent: Spent) -> None:
        """Add the passes and flags of a search, or of a batch of it."""
        self.cost += Cost(round(spent.forwards), round(spent.backwards))
        share = len(spent.rows) / len(self.data)
        for name, values in spent.flags.items():
            known = self.flags.setdefault(attack.name, {}).setdefault(name, [0.0] * len(self.rec))
            for member, value in zip(drawn.tolist(), values, strict=True):
                known[member] = min(1.0, known[member] + share * value)

    def _errors(self, rec: RandomizedEnsemble, rows: NDArray[np.int64], x_adv: Tensor) -> NDArray[np.bool_]:
        labels = self.y[torch.from_numpy(rows)].to(rec.device)
        self.now += Cost(forwards=len(rows) * len(rec.networks))
        errors: NDArray[np.bool_] = rec.errors(x_adv.to(rec.device), labels).cpu().numpy()
        return errors

    def _witnesses(
        self, rows: NDArray[np.int64], x_adv: Tensor, fooled: NDArray[np.bool_], sources: Sequence[str]
    ) -> WitnessPool:
        points = x_adv.detach().cpu().contiguous().numpy()
        return WitnessPool(len(self.data), len(self.rec), rows, fooled, x_adv=points, sources=sources)

    def _keep(self, *entry: Any) -> None:
        if self.store is not None and _writes():
            self.store.add(self._scope, *entry)


Flags = Mapping[str, Mapping[str, Sequence[float]]]


def missing_gradients(flags: Flags, members: int) -> str:
    """A headline if attacks met zero or NaN gradients, else nothing."""
    who = _flagged(flags, members, ("zero_gradient", "nan_gradient"), 0.0)
    return f"Gradients are missing (member {who}): these robust accuracies are upper bounds" if who else ""


def _flagged(flags: Flags, members: int, names: Sequence[str], least: float) -> str:
    """The members with such flags at more than `least` of the inputs, and the largest share by any attack."""
    shares = [found[name] for found in flags.values() for name in names if name in found]
    worst = [max((share[i] for share in shares), default=0.0) for i in range(members)]
    return ", ".join(f"{i} at {share:.2g} of the inputs" for i, share in enumerate(worst) if share > least)


def attack_options(attack: Attack) -> dict[str, Any]:
    """An attack's name and its options as plain values."""
    found = {option.name: getattr(attack, option.name) for option in dataclasses.fields(attack)}
    plain = {k: v for k, v in found.items() if v is None or isinstance(v, (str, int, float, bool))}
    return {"name": attack.name, **plain}


def _writes() -> bool:
    """Whether this is the process that writes to the store."""
    return not dist.is_initialized() or dist.get_rank() == 0
