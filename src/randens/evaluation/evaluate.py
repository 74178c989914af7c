"""Evaluate any classifier or ensemble, by the one loop: attack what can still get worse, keep every witness.

`curve`, `optimize_sampling`, `advise`, `audit` and `certify` are this loop with other members, α or radii. Nothing is
attacked twice: a search is skipped on inputs where it was made before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from randens import __version__, models
from randens.attacks import Attack, Cost
from randens.attacks.base import AttackLike
from randens.core.errors import FileError, InputError, RandensWarning, expect
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, check_probs, evaluating, networks_of
from randens.evaluation.conflict import known_conflict
from randens.evaluation.inputs import Case, Settings, prepare
from randens.evaluation.random_models import RandomEvaluation, evaluate_random
from randens.evaluation.result import Evaluation
from randens.risk.sets import as_attempts
from randens.witness import WitnessPool
from randens.witness.fingerprints import digest, input_keys, member_key
from randens.witness.store import Noted, Scope, Spent, WitnessStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Sets = NDArray[np.bool_]
_ROUNDING = 1e-12
_FAILED = 0.01  # share of stored witnesses that may fail to fool again (near ties, on another machine)


def evaluate(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    attempts: float | Sequence[float] = (),
    also: Mapping[str, ArrayLike | Tensor | None] | None = None,
    **settings: Unpack[Settings],
) -> Evaluation | RandomEvaluation:
    """Measure natural and robust accuracy of any classifier or ensemble, as exact expectations over the draw.

    The attacks are run on the ensemble at its probabilities and at those in `also`, on each member alone, and on
    the average of all logits. Every perturbation found is tested on all of them. Inputs whose risk cannot increase
    are not attacked again.

    Parameters
    ----------
    model : nn.Module, sequence of nn.Module, RandomizedEnsemble, RandomizedModel, str or path
        One classifier or several; also a run folder, a name of the zoo, ``torchscript:PATH``, ``onnx:PATH`` or
        ``package.module:factory``. These last three are code: name only what you trust.
    data : tuple, Dataset, DataLoader, datasets.Dataset, Data, str or path
        Inputs with labels, as `randens.data.as_data` takes them. None: the test data of a run folder.
    attack : Attack, str, sequence of these, optional
        An attack, its name, several that work one after the other, or a preset (``"fast"``, ``"standard"``,
        ``"thorough"``) of the suite. Default: ``"standard"``.
    attempts : int, inf or sequence of these
        Numbers of attempts that the table shows, too; `result.after` gives any other.
    also : mapping, optional
        Further probabilities to attack, by name; None stands for uniform.
    eps, norm : float or str, optional
        Radius of the perturbations, e.g. ``8/255`` or ``"8/255"``, in ``"linf"``, ``"l2"`` or ``"l1"``. Default: the
        attack's, else the ensemble's own, else 8/255 in linf.
    threat : Threat, optional
        Instead of `eps` and `norm`: also sets the bounds of valid inputs, or a finite set.
    device : str or torch.device, optional
        ``"auto"``, ``"cpu"``, ``"cuda:0"``; members are moved there and back. Default: where the members are if that
        is a GPU, else ``"auto"``.
    preprocessing : optional
        ``(mean, std)`` that the classifiers expect; a configuration of timm or an image processor of transformers;
        ``"auto"`` for timm's models; or a list with one entry per member. Perturbations stay in pixels.
    probs : array, optional
        α of several modules; uniform by default.
    split, limit : str, int, optional
        Which split of a named data set (the test split by default), and how many of the first inputs.
    seed : int
        Determines every random choice of attacks given by name.
    folder : path or WitnessStore, optional
        A witness store: its searches are not repeated, and every finished batch is added, so that the same call
        continues an interrupted one.
    progress : callable, optional
        ``progress(task, done, total)``; by default bars in a terminal or notebook.

    Returns
    -------
    Evaluation, or RandomEvaluation of a random model
        ``float(result.natural)``, ``float(result.robust)``, ``result.robust.low``, ``.high``, ``result.after(10)``.

    Examples
    --------
    >>> import randens
    >>> nets = [randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    >>> result = randens.evaluate(nets, "digits", "pgd", eps="8/255", limit=8)
    >>> 0 <= float(result.robust) <= float(result.natural) <= 1
    True
    """
    expect("also", also, Mapping | None)
    tries = tuple(map(as_attempts, attempts if isinstance(attempts, Sequence) else [attempts]))
    with prepare(model, data, attack, **settings) as case:
        if not case.rec.stochastic:
            return evaluate_case(case, also, attempts=tries)
        if also or case.store is not None:
            raise InputError("also and folder cannot be given for a random model; leave them out")
        return evaluate_random(case, tries)


def evaluate_case(
    case: Case,
    also: Mapping[str, ArrayLike | Tensor | None] | None = None,
    *,
    attempts: tuple[float, ...] = (),
    average: bool = True,
) -> Evaluation:
    """`evaluate` for deterministic members that are prepared; average: also attack the average of all logits."""
    rec = case.rec
    for what, split in case.chosen_on.items():
        if split == "test":
            raise InputError(f"{what} was chosen on test data; choose it on validation data, then evaluate")
    probs = rec.probs.cpu().numpy().copy()
    extra = {name: check_probs(value, len(rec)).numpy() for name, value in (also or {}).items()}
    known = Witnesses(case)
    known.attack_all([probs, *extra.values()])
    mean = known.attack_average() if average and len(rec) > 1 else known
    known.confirm(probs)
    return Evaluation(
        conflict=known_conflict(known),
        **known.head(),
        clean=known.clean,
        pool=known.pool,
        average=(mean.clean[:, 0], mean.pool.foolable[:, 0]) if average else None,
        classes=known.classes,
        flops=known.flops,
        chosen_on=dict(case.chosen_on),
        also=extra,
        flags=known.flags,
        verified=known.verified,
        attempts=attempts,
        x=known.x,
    )


def average_of(rec: RandomizedEnsemble) -> DeterministicEnsemble:
    """The mean of all members' logits; of members that are averages themselves, over the networks behind them."""
    networks, parts = networks_of(rec.members)
    weights = np.zeros(len(networks))
    for member, part in zip(rec.members, parts, strict=True):
        own = member.weights.tolist() if isinstance(member, DeterministicEnsemble) else [1.0]
        np.add.at(weights, part, np.array(own) / len(parts))
    return DeterministicEnsemble(list(networks), weights)


class Witnesses:
    """What is known about an ensemble on n inputs: errors on the unperturbed inputs, bool [n, M], and a growing pool.

    pool (argument): witnesses known before. cost: the passes behind the pool, whichever call made them; now: those of
    this call. flags: per attack and member, shares of inputs. verified: how many stored witnesses were scored again,
    and how many hold.
    """

    def __init__(self, case: Case, pool: WitnessPool | None = None) -> None:
        self.case, self.rec, self.threat, self.store = case, case.rec, case.threat, case.store
        self._target = None if dist.is_initialized() and dist.get_rank() else self.store  # one process writes
        self.x, self.y = case.data.x, case.data.y
        self.cost, self.now = Cost(forwards=len(self.x) * len(self.rec.networks)), Cost()
        self.flags: dict[str, dict[str, list[float]]] = {}
        self.verified: tuple[int, int] | None = None
        everyone = np.arange(len(self.x))
        self.clean = self._errors(self.rec, everyone, self.x)
        self.pool = self._witnesses(everyone, self.x, self.clean, ["clean"] * len(self.x))
        self._reached: dict[bytes, Array] = {}
        self._earlier: dict[bytes, Spent] = {}
        keys = list(map(member_key, self.rec.members))
        self._scope = Scope(self.x, input_keys(self.x, self.y), keys, self.threat)
        if self.store is not None:
            self._earlier = self.store.searched(self._scope)
            self._load(self.store)
        if pool is not None:
            self.pool = self.pool.merge(pool)
        if self.store is not None and dist.is_initialized():
            dist.barrier()  # every process has read the same store before any of them writes a search

    @property
    def flops(self) -> tuple[int, ...]:
        """Floating-point operations of one inference of each member."""
        return tuple(models.flops(member, self.x.shape[1:]) for member in self.rec.members)

    @property
    def classes(self) -> int:
        """How many classes the members know."""
        with evaluating(self.rec), torch.no_grad():
            return int(self.rec.logits(self.x[:1].to(self.rec.device)).shape[2])

    def head(self, *others: Witnesses) -> dict[str, Any]:
        """The fields that all results share; missing gradients and unstable answers become warnings and notes."""
        several = (self, *others)
        doubts = tuple(dict.fromkeys(doubt for one in several for doubt in one._doubts()))[:2]
        for sentence in doubts:
            warnings.warn(sentence, RandensWarning, stacklevel=4)
        cost, now = (sum((getattr(one, name) for one in several), Cost()) for name in ("cost", "now"))
        return {"about": self.case.about, "notes": (*self.case.notes, *doubts), "cost": cost, "now": now}

    def _doubts(self) -> list[str]:
        """What the flags say against the result."""
        blind = self._flagged(0.0, "zero_gradient", "nan_gradient")
        random = self._flagged(_FAILED, "unstable")
        said = {
            f"Gradients are missing (member {blind}): these robust accuracies are upper bounds": blind,
            f"Answers differ when they are computed again (member {random}): the members may be random": random,
        }
        return [sentence for sentence, who in said.items() if who]

    def _flagged(self, least: float, *names: str) -> str:
        """The members with such flags at more than `least` of the inputs, and the largest share by any attack."""
        shares = [found[name] for found in self.flags.values() for name in names if name in found]
        worst = enumerate(np.max([[0.0] * len(self.rec), *shares], axis=0).tolist())
        return ", ".join(f"{i} at {share:.0%} of the inputs" for i, share in worst if share > least)

    def attack_all(self, several: Sequence[Array]) -> None:
        """The loop: every attack, on the ensemble at several probabilities and on each member alone."""
        members = len(self.rec)
        for attack in self.case.attacks:
            for probs in several:
                self.attack(attack, probs, f"{attack.name} on the ensemble")
            for index, probs in enumerate(np.eye(members) if members > 1 else ()):
                self.attack(attack, probs, f"{attack.name} on member {index}")

    def attack_average(self, pool: WitnessPool | None = None) -> Witnesses:
        """Attack the average of all logits, also by the worst cases here; its witnesses are tested on the members."""
        mean = Witnesses(replace(self.case, rec=RandomizedEnsemble([average_of(self.rec)])), pool)
        worst = torch.from_numpy(self.pool.worst(self.rec.probs, self.x.numpy()))
        mean.judge(np.arange(len(worst)), worst, ["transfer"] * len(worst))
        for attack in self.case.attacks:
            mean.attack(attack, np.ones(1), f"{attack.name} on the average")
        self.show(mean.pool)
        self.cost, self.now = self.cost + mean.cost, self.now + mean.now
        return mean

    def attack(self, attack: Attack, probs: Array, task: str) -> None:
        """Attack the inputs whose risk at `probs` can still increase, starting from the known witnesses."""
        if attack.enumerates:  # all fooled sets of all members, once
            probs = np.full(len(self.rec), 1 / len(self.rec))
        if self.threat.eps == 0 and not attack.enumerates:  # the inputs themselves are known
            return
        # Members with probability 0 are not attacked; the others' witnesses are shown to them.
        drawn, others = np.flatnonzero(probs), np.flatnonzero(probs == 0)
        risks = self.pool.best(probs)[0]
        search, reached = self._search(attack, drawn, probs)
        # A search without the witness that it found, by damage or by hand, counts as not made.
        rows = np.flatnonzero((risks < 1 - _ROUNDING) & ~(risks >= reached - _ROUNDING))
        part = RandomizedEnsemble([self.rec.members[int(i)] for i in drawn], probs[drawn])
        rest = RandomizedEnsemble([self.rec.members[int(i)] for i in others]) if len(others) else None
        start, report = self.pool.take(np.arange(len(self.x)), drawn), self.case.progress
        report(task, 0, max(1, len(rows)))
        new: list[WitnessPool] = []
        options: Any = {"rows": rows, "start": start, "progress": lambda _, *count: report(task, *count)}
        batches = attack.batches(part, self.case.data, **options)
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

    def judge(self, rows: Rows, x_adv: Tensor, sources: Sequence[str]) -> Sets:
        """Errors [k, M] of all members on perturbed inputs of `rows`, which join the pool; known ones are read."""
        unknown = np.full((len(rows), len(self.rec)), -1, dtype=np.int8)
        verdicts = unknown if self.store is None else self.store.verdicts(self._scope, rows, x_adv)
        fooled = self._complete(rows, x_adv, verdicts, sources)
        self.cost += Cost(forwards=len(rows) * len(self.rec.networks))
        self.pool = self.pool.merge(self._witnesses(rows, x_adv, fooled, sources))
        return fooled

    def show(self, other: WitnessPool) -> None:
        """Judge the witnesses of another pool of the same inputs, e.g. of other members."""
        if len(other):
            self.judge(other.points, torch.from_numpy(other.x_adv), other.sources)

    def confirm(self, probs: Array) -> None:
        """Compute the errors on the worst inputs at `probs` once more, as a user would; correct what has changed."""
        worst = self.pool.best(probs)[1]
        while self._score_again(worst[worst >= 0]) < (worst >= 0).sum():
            worst = self.pool.best(probs)[1]

    def note(self, read: Callable[[Any], Noted], *about: str) -> Noted | None:
        """What `read` makes of a note about these members, inputs and this threat; None if there is none."""
        return None if self.store is None else self.store.note(self._note_key(about), read)

    def add_note(self, value: Any, *about: str) -> None:
        """Note a JSON value in the store, if there is one."""
        if self._target is not None:
            self._target.add_note(self._note_key(about), value)

    def _note_key(self, about: tuple[str, ...]) -> bytes:
        return digest(repr((about, self.threat)).encode(), *self._scope.members, *self._scope.inputs)

    def _search(self, attack: Attack, drawn: Rows, probs: Array) -> tuple[bytes, Array]:
        """The address of a search, and the risks [n] that it reached before (NaN: it was not made there)."""
        said = repr((__version__, attack.name, attack, probs[drawn].tolist()))
        key = digest(said.encode(), *(self._scope.members[i] for i in drawn))
        if key not in self._reached:
            self._reached[key] = np.full(len(self.x), np.nan)
            if (earlier := self._earlier.get(key)) is not None:
                self._reached[key][earlier.rows] = earlier.risks
                self._count(attack, drawn, earlier)
        return key, self._reached[key]

    def _score_again(self, rows: Rows) -> int:
        """Score witnesses of the pool again; returns how many hold."""
        assert self.pool.x_adv is not None
        inputs, points = self.pool.points[rows], torch.from_numpy(self.pool.x_adv[rows])
        errors = self._errors(self.rec, inputs, points)
        wrong = np.flatnonzero((self.pool.fooled[rows] & ~errors).any(axis=1))
        if len(wrong):
            share = len(wrong) / len(self.x)
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
        self, rows: Rows, x_adv: Tensor, verdicts: NDArray[np.int8], sources: Sequence[str]
    ) -> Sets:
        """Errors [k, M] on points of which some verdicts are known; the others (-1) are computed and kept."""
        left = np.flatnonzero((verdicts < 0).any(axis=1))
        if len(left):
            points = x_adv[torch.from_numpy(left)]
            verdicts[left] = self._errors(self.rec, rows[left], points)
            self._keep(rows[left], points, verdicts[left] == 1, [sources[i] for i in left.tolist()])
        return np.asarray(verdicts == 1)

    def _count(self, attack: Attack, drawn: Rows, spent: Spent) -> None:
        """Add the passes and flags of a search, or of a batch of it."""
        self.cost += Cost(round(spent.forwards), round(spent.backwards))
        share = len(spent.rows) / len(self.x)
        for name, values in spent.flags.items():
            known = self.flags.setdefault(attack.name, {}).setdefault(name, [0.0] * len(self.rec))
            for member, value in zip(drawn.tolist(), values, strict=False):
                known[member] = min(1.0, known[member] + share * value)

    def _errors(self, rec: RandomizedEnsemble, rows: Rows, x_adv: Tensor) -> Sets:
        labels = self.y[torch.from_numpy(rows)].to(rec.device)
        self.now += Cost(forwards=len(rows) * len(rec.networks))
        return np.asarray(rec.errors(x_adv.to(rec.device), labels).cpu())

    def _witnesses(self, rows: Rows, x_adv: Tensor, fooled: Sets, sources: Sequence[str]) -> WitnessPool:
        points = x_adv.detach().cpu().contiguous().numpy()
        return WitnessPool(len(self.x), len(self.rec), rows, fooled, x_adv=points, sources=sources)

    def _keep(self, *entry: Any) -> None:
        if self._target is not None:
            self._target.add(self._scope, *entry)
