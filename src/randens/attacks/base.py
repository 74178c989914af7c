"""The frame around every attack: options, batches, data sets, results. No attack repeats any of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from randens.attacks.members import GradientMembers
from randens.attacks.search import Cost, Search, attacking
from randens.attacks.survey import Survey, batches, survey
from randens.ensemble import RandomizedEnsemble
from randens.errors import InputError, unknown
from randens.progress import Progress
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = ["Attack", "Found", "as_ensemble", "create", "names", "register"]

_REGISTRY: dict[str, type[Attack]] = {}
AttackType = TypeVar("AttackType", bound="type[Attack]")


@dataclass(frozen=True)
class Found:
    """What an attack found on n inputs.

    `x_adv` [n, ...] the worst perturbed inputs, `errors` bool [n, M] their verdicts, exactly what
    ``rec.errors(x_adv, y)`` gives, `risk` float64 [n] = errors·α, `pool` every maximal fooled set met on the
    way, `sources` the attack that found each worst case, `flags` shares of inputs with unusable gradients.
    """

    x_adv: Tensor
    errors: Tensor
    risk: Tensor
    clean_errors: Tensor
    pool: WitnessPool
    cost: Cost
    sources: tuple[str, ...]
    flags: dict[str, Any] = field(default_factory=dict)

    @property
    def robust_accuracy(self) -> float:
        """1 − mean risk."""
        return 1.0 - float(self.risk.mean()) if len(self.risk) else 1.0


@dataclass(frozen=True)
class Attack:
    """Base of all attacks. A subclass is a frozen dataclass whose fields are its options, and a `search`.

    `search(s)` proposes points to the `Search` s; it runs once per restart, the first from the clean input.
    `seed` decides every random choice: same seed, same bits on one machine. `precision` is that of gradients only.
    """

    threat: Threat
    restarts: int = field(default=1, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    precision: str = field(default="auto", kw_only=True)
    batch_size: int = field(default=128, kw_only=True)
    drop_finished: bool = field(default=True, kw_only=True)

    name: ClassVar[str] = ""
    exact: ClassVar[bool] = False  # true only where the optimum is proven
    norms: ClassVar[tuple[str, ...]] = ("linf", "l2", "l1")  # balls that the attack can search

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Threat):
            raise InputError(f"threat is {self.threat!r}; give a Threat, e.g. Threat('linf', 8/255)")
        for part in self.threat.parts:
            if part.norm not in self.norms:
                able = ", ".join(name for name in names() if part.norm in _REGISTRY[name].norms)
                raise InputError(
                    f"attack {self.name!r} cannot search the norm {part.norm}; attacks that can: {able}"
                )
        for option in (
            "restarts",
            "batch_size",
            "steps",
            "orders",
            "relinearisations",
            "hyperplanes",
            "queries",
        ):
            value = getattr(self, option, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{option} is {value!r}; it must be a whole number ≥ 1")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed is {self.seed!r}; it must be a whole number")
        step = getattr(self, "step", None)
        if step is not None and not 0 < step < float("inf"):
            raise InputError(f"step is {step!r}; it must be a number > 0, in units of eps")

    def search(self, s: Search) -> None:
        """Propose points for the batch that `s` owns."""
        raise InputError(f"{type(self).__name__} defines no search; it cannot attack {s.n} inputs")

    def __call__(self, rec: nn.Module, x: Tensor, y: Tensor) -> Found:
        """Attack `rec` (or a single classifier: an ensemble of one) on inputs x with labels y."""
        ensemble = as_ensemble(rec)
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError(
                f"x is {type(x).__name__} and y is {type(y).__name__}; both must be tensors (survey takes loaders)"
            )
        if len(x) == 0:
            return self._empty(ensemble, x)
        parts = []
        with attacking(ensemble):
            prepared = GradientMembers(list(ensemble.members), self.precision)
            for number, (xs, ys) in enumerate(batches((x, y), self.batch_size)):
                parts.append(self.attack_batch(ensemble, xs, ys, number, prepared))
        return join(parts)

    def survey(
        self,
        rec: nn.Module,
        data: Any,
        *,
        folder: str | os.PathLike[str] | None = None,
        inputs: bool = False,
        progress: Progress | None = None,
    ) -> Survey:
        """Attack a whole data set: a loader, a data set of the data room, or an (x, y) pair of tensors.

        With `folder`, the perturbed inputs are kept there and an interrupted call is continued by the same call;
        with `inputs` they stay in memory, too.
        Under torch.distributed the batches are shared out; every rank gets the whole result.
        """
        ensemble = as_ensemble(rec)
        with attacking(ensemble):
            prepared = GradientMembers(list(ensemble.members), self.precision)
            return survey(
                self,
                ensemble,
                data,
                lambda number, x, y: self.attack_batch(ensemble, x, y, number, prepared),
                folder=folder,
                inputs=inputs,
                progress=progress,
            )

    def attack_batch(
        self,
        rec: RandomizedEnsemble,
        x: Tensor,
        y: Tensor,
        number: int = 0,
        prepared: GradientMembers | None = None,
    ) -> Found:
        """Attack one batch; `number` is its position in the data set and decides its random numbers."""
        if len(self.threat.parts) > 1:
            each = [dataclasses.replace(self, threat=part) for part in self.threat.parts]
            return _pooled([one.attack_batch(rec, x, y, number, prepared) for one in each])
        s = Search(
            rec,
            x,
            y,
            self.threat,
            seed=self.seed + 104_729 * number,
            source=self.name,
            gradient_members=prepared,
            drop_finished=self.drop_finished,
        )
        for restart in range(self.restarts):
            s.begin(restart)
            if len(s.unfinished):
                self.search(s)
        return _conclude(s)

    def _empty(self, rec: RandomizedEnsemble, x: Tensor) -> Found:
        none = torch.zeros(0, len(rec.members), dtype=torch.bool)
        pool = WitnessPool(0, len(rec.members), x_adv=x.detach().cpu().numpy())
        nobody = [0.0] * len(rec.members)
        flags = {"zero_gradient": nobody, "nan_gradient": list(nobody)}
        return Found(x.detach(), none, torch.zeros(0, dtype=torch.float64), none, pool, Cost(), (), flags)


def as_ensemble(model: nn.Module) -> RandomizedEnsemble:
    """A single classifier (a deterministic ensemble too) is a randomized ensemble of one."""
    if isinstance(model, RandomizedEnsemble):
        return model
    if not isinstance(model, nn.Module):
        raise InputError(f"rec is {type(model).__name__}; give a RandomizedEnsemble or a torch.nn.Module")
    return RandomizedEnsemble([model])


def register(name: str) -> Callable[[AttackType], AttackType]:
    """Class decorator: make an attack available to `create`, the command line and recipes under `name`."""

    def add(cls: AttackType) -> AttackType:
        if name in _REGISTRY and _REGISTRY[name].__qualname__ != cls.__qualname__:
            raise InputError(f"an attack named {name!r} exists already: {_REGISTRY[name].__qualname__}")
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return add


def names() -> tuple[str, ...]:
    """Names that `create` knows, sorted."""
    return tuple(sorted(_REGISTRY))


def create(name: str, threat: Threat, **options: Any) -> Attack:
    """The attack called `name` against `threat`; options are the fields of its class."""
    if name not in _REGISTRY:
        unknown("attack", name, _REGISTRY)
    cls = _REGISTRY[name]
    valid = [f.name for f in dataclasses.fields(cls) if f.name != "threat"]
    for option in options:
        if option not in valid:
            unknown(f"option of attack {name!r}", option, valid)
    return cls(threat, **options)


def join(parts: Iterable[Found]) -> Found:
    """Results of consecutive batches as one."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    cost = Cost()
    for part in found:
        cost = cost + part.cost
    return Found(
        torch.cat([f.x_adv for f in found]),
        torch.cat([f.errors for f in found]),
        torch.cat([f.risk for f in found]),
        torch.cat([f.clean_errors for f in found]),
        WitnessPool.concat([f.pool for f in found]),
        cost,
        tuple(s for f in found for s in f.sources),
        _flags([(len(f.risk), f.flags) for f in found]),
    )


def _pooled(found: list[Found]) -> Found:
    """Results on the same inputs, in the parts of a union of sets, as one: the worst for every input, all witnesses."""
    worst = torch.stack([f.risk for f in found]).argmax(dim=0).tolist()
    pool, cost = found[0].pool, found[0].cost
    for part in found[1:]:
        pool, cost = pool.merge(part.pool), cost + part.cost
    return Found(
        torch.stack([found[k].x_adv[row] for row, k in enumerate(worst)]),
        torch.stack([found[k].errors[row] for row, k in enumerate(worst)]),
        torch.stack([found[k].risk[row] for row, k in enumerate(worst)]),
        found[0].clean_errors,
        pool,
        cost,
        tuple(found[k].sources[row] for row, k in enumerate(worst)),
        _flags([(len(f.risk), f.flags) for f in found]),
    )


def _conclude(s: Search) -> Found:
    # One last look at what is returned, by the very call a user would make: reported is what re-evaluates.
    errors = s.clean_errors.clone()
    moved = (s.best_x != s.x).flatten(1).any(dim=1).nonzero().flatten()
    if len(moved):
        errors[moved] = s.rec.errors(s.best_x[moved], s.y[moved])
        s.cost.forwards += len(moved) * sum(s._passes)
    risk = errors.double() @ s.probs
    count = max(1, s.n)
    flags = {
        "zero_gradient": [float(v) / count for v in s.no_gradient.sum(dim=0).tolist()],
        "nan_gradient": [float(v) / count for v in s.nan_gradient.sum(dim=0).tolist()],
    }
    rows = torch.arange(s.n, device=s.device)
    s._record(rows, s.best_x, errors)
    return Found(
        s.best_x.cpu(),
        errors.cpu(),
        risk.cpu(),
        s.clean_errors.cpu(),
        s.pool(),
        s.cost,
        tuple(s.best_source),
        flags,
    )


def _flags(parts: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Shares per member, averaged over batches by their size."""
    total = sum(n for n, _ in parts)
    merged: dict[str, Any] = {}
    for key in ("zero_gradient", "nan_gradient"):
        columns = [[n * v / total for v in flags[key]] for n, flags in parts] if total else []
        merged[key] = [sum(c) for c in zip(*columns, strict=True)]
    return merged
