"""The base class of all attacks: options, batches, data sets, results."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from randens.attacks.dataset import attack_data
from randens.attacks.found import Cost, Found, pooled
from randens.attacks.members import GradientMembers
from randens.attacks.search import Search
from randens.core.errors import InputError, unknown, whole
from randens.core.progress import Progress, silent
from randens.ensemble import RandomizedEnsemble
from randens.random_model import RandomizedModel, expanded
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore

__all__ = ["Attack", "Found", "as_ensemble", "create", "current_name", "names", "register"]

_REGISTRY: dict[str, type[Attack]] = {}
_EARLIER = {
    "apgd-l": "adaptive-pgd-l",
    "apgd-s": "adaptive-pgd-s",
    "apgd-z": "adaptive-pgd-z",
    "apgd-margin": "adaptive-pgd-margin",
    "apgd-mce": "adaptive-pgd-mce",
    "auto-pgd": "apgd",
}
_WHOLE = (
    "restarts",
    "batch_size",
    "steps",
    "orders",
    "relinearisations",
    "iterations",
    "hyperplanes",
    "queries",
    "constants",
    "samples",
)
_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "step": (lambda v: 0 < v < math.inf, "a number > 0, in units of eps"),
    "rate": (lambda v: 0 < v < math.inf, "a number > 0"),
    "constant": (lambda v: 0 < v < math.inf, "a number > 0"),
    "kappa": (lambda v: 0 <= v < math.inf, "a number ≥ 0"),
    "trust": (lambda v: 0 < v <= 1, "a number > 0 and ≤ 1"),
    "hopeless": (lambda v: v > 0, "a number > 0"),
}
AttackType = TypeVar("AttackType", bound="type[Attack]")


@dataclass(frozen=True)
class Attack:
    """Base of all attacks. A subclass is a frozen dataclass whose fields are its options, and a `search`.

    `search(s)` proposes points to the `Search` s; it runs once per restart, the first time from the clean
    input.
    `seed` determines every random choice: the same seed gives the same bits on one machine. `precision`
    applies to gradients only.

    Parameters
    ----------
    threat : Threat
        What the attack may do.
    restarts : int
        How often the search runs, the first time from the clean input.
    seed : int
        Determines every random choice.
    precision : str
        Of gradients: ``"auto"``, ``"float32"`` or ``"bfloat16"``.
    batch_size : int
        Inputs attacked together.
    drop_finished : bool
        Stop working on inputs whose risk cannot increase.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.PGD(randens.Threat("linf", 0.1), steps=5)
    >>> net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    >>> x, y = randens.data.load("digits", "validation")[:4]
    >>> attack(net, x, y).errors.shape
    torch.Size([4, 1])
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
    side_by_side: ClassVar[bool] = False  # whether `search` takes several restarts at once
    margins_only: ClassVar[bool] = False  # whether `search` needs no gradients but those of margins
    entropies_only: ClassVar[bool] = False  # whether it needs none but those of losses in `OF_ENTROPIES`

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Threat):
            raise InputError(f"threat is {self.threat!r}; give a Threat, e.g. Threat('linf', 8/255)")
        for part in self.threat.parts:
            if part.norm not in self.norms:
                able = ", ".join(name for name in names() if part.norm in _REGISTRY[name].norms)
                raise InputError(
                    f"attack {self.name!r} cannot search the norm {part.norm}; attacks that can: {able}"
                )
        for option in _WHOLE:
            whole(option, getattr(self, option, 1))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed is {self.seed!r}; it must be a whole number")
        for option, (valid, description) in _NUMBERS.items():
            value = getattr(self, option, None)
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if value is not None and not (number and valid(float(value))):
                raise InputError(f"{option} is {value!r}; it must be {description}")

    def search(self, s: Search) -> None:
        """Propose points for the batch that `s` owns."""
        raise InputError(f"{type(self).__name__} defines no search; it cannot attack {s.n} inputs")

    def run(self, s: Search, restarts: range, stream: int = 0, *, width: int) -> None:
        """Search once per restart, the last ones side by side if `search` can and no pass gets wider than `width`.

        Most inputs are decided by the first restart. The few that are left would make small batches, whose passes
        cost more per input.
        """
        s.width = width
        while restarts and len(left := s.unfinished):
            several = width // len(left) if self.side_by_side and restarts[0] else 1
            count = max(1, min(several, len(restarts)))
            s.begin(restarts[0], stream, count)
            # In bfloat16, torch's passes are the faster ones where batches are wide, as those of losses are.
            compiled = self.margins_only or (self.entropies_only and s.float32)
            with s.one_thread() if compiled else contextlib.nullcontext():
                self.search(s)
            restarts = restarts[count:]

    def __call__(self, rec: nn.Module, x: Tensor, y: Tensor) -> Found:
        """Attack `rec` (or a single classifier: an ensemble of one) on inputs x with labels y."""
        ensemble = as_ensemble(rec)
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError(
                f"x is {type(x).__name__} and y is {type(y).__name__}; both must be tensors (survey takes loaders)"
            )
        return attack_data(self, ensemble, (x, y), shared=False) if len(x) else self._empty(ensemble, x)

    def survey(
        self,
        rec: nn.Module,
        data: Any,
        *,
        folder: WitnessStore | str | os.PathLike[str] | None = None,
        inputs: bool = False,
        progress: Progress | None = None,
    ) -> Found:
        """Attack a whole data set: a loader, a data set of the data room, or an (x, y) pair of tensors.

        Under torch.distributed the batches are divided among the ranks; every rank gets the whole result.

        Parameters
        ----------
        folder : path or WitnessStore
            A witness store: it keeps finished batches, which are then read and not attacked again.
        inputs : bool
            Keep the perturbed inputs in memory, too.
        """
        store = folder if isinstance(folder, WitnessStore) or folder is None else WitnessStore(folder)
        report = silent if progress is None else progress
        return attack_data(self, as_ensemble(rec), data, store=store, inputs=inputs, progress=report)

    def attack_batch(
        self,
        rec: RandomizedEnsemble,
        x: Tensor,
        y: Tensor,
        number: int = 0,
        prepared: GradientMembers | None = None,
        known: WitnessPool | None = None,
        clean: Tensor | None = None,
        safe: Tensor | None = None,
    ) -> Found:
        """Attack one batch; `number` is its position in the data set and decides its random numbers.

        `known` are witnesses and `clean` are verdicts [n, M] on the unperturbed inputs. If given, the attack
        starts from them, and the pool of the result holds the new witnesses only. It spends nothing on
        members `safe` [n, M] by proof.
        """
        if len(self.threat.parts) > 1:
            each = [dataclasses.replace(self, threat=part) for part in self.threat.parts]
            return pooled([one.attack_batch(rec, x, y, number, prepared, known, clean, safe) for one in each])
        s = Search(
            rec,
            x,
            y,
            self.threat,
            seed=self.seed + 104_729 * number,
            source=self.name,
            gradient_members=prepared,
            drop_finished=self.drop_finished,
            pool=known,
            clean=clean,
            safe=safe,
        )
        self.run(s, range(self.restarts), width=self.batch_size)
        errors = s.conclude().cpu()
        count = max(1, s.n)
        flags = {"zero_gradient": s.no_gradient, "nan_gradient": s.nan_gradient, "unstable": s.unstable}
        return Found(
            s.best_x.cpu(),
            errors,
            errors.double() @ rec.probs,
            s.clean_errors.cpu(),
            s.pool(new=known is not None),
            s.cost,
            tuple(s.best_source),
            {name: [float(v) / count for v in table.sum(dim=0).tolist()] for name, table in flags.items()},
        )

    def _empty(self, rec: RandomizedEnsemble, x: Tensor) -> Found:
        none = torch.zeros(0, len(rec.members), dtype=torch.bool)
        pool = WitnessPool(0, len(rec.members), x_adv=x.detach().cpu().numpy())
        flags = {name: [0.0] * len(rec.members) for name in ("zero_gradient", "nan_gradient", "unstable")}
        return Found(x.detach(), none, torch.zeros(0, dtype=torch.float64), none, pool, Cost(), (), flags)


def as_ensemble(model: nn.Module) -> RandomizedEnsemble:
    """Wrap a classifier as a randomized ensemble of one; a random model becomes the ensemble of its draws."""
    if isinstance(model, (RandomizedEnsemble, RandomizedModel)) and model.stochastic:
        return expanded(model)
    if isinstance(model, RandomizedEnsemble):
        return model
    if not isinstance(model, nn.Module):
        raise InputError(f"rec is {type(model).__name__}; give a RandomizedEnsemble or a torch.nn.Module")
    return RandomizedEnsemble([model])


def register(name: str) -> Callable[[AttackType], AttackType]:
    """Class decorator: make an attack available to `create`, the command line and recipes under `name`.

    Parameters
    ----------
    name : str
        The attack's name for `create`.

    Returns
    -------
    callable
        A class decorator.

    Examples
    --------
    >>> import randens
    >>> register("pgd")(randens.attacks.PGD).name  # as a decorator: @register("pgd")
    'pgd'
    """

    def add(cls: AttackType) -> AttackType:
        if name in _REGISTRY and _REGISTRY[name].__qualname__ != cls.__qualname__:
            raise InputError(f"an attack named {name!r} exists already: {_REGISTRY[name].__qualname__}")
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return add


def current_name(name: str) -> str:
    """Return the current name of an attack; names of earlier releases are translated.

    Parameters
    ----------
    name : str
        The name in a file or a recipe of any release.

    Returns
    -------
    str
        The name that `create` knows it by.

    Examples
    --------
    >>> current_name("apgd-s"), current_name("pgd")
    ('adaptive-pgd-s', 'pgd')
    """
    return _EARLIER.get(name, name)


def names() -> tuple[str, ...]:
    """Names that `create` knows, sorted.

    Returns
    -------
    tuple of str
        For `create`, the command line and recipes.

    Examples
    --------
    >>> "saddle" in names()
    True
    """
    return tuple(sorted(_REGISTRY))


def create(name: str, threat: Threat, **options: Any) -> Attack:
    """The attack called `name` against `threat`; options are the fields of its class.

    Parameters
    ----------
    name : str
        One of `names()`; a name of an earlier release works with a warning.
    threat : Threat
        What the attack may do.
    **options
        The fields of the attack's class.

    Returns
    -------
    Attack
        Call it as ``attack(rec, x, y)``.

    Examples
    --------
    >>> import randens
    >>> create("pgd", randens.Threat("linf", 0.1), steps=5).steps
    5
    """
    if name in _EARLIER:
        warnings.warn(
            f"the attack {name!r} is now called {_EARLIER[name]!r}; the next release will refuse the earlier name",
            FutureWarning,
            stacklevel=2,
        )
    cls = _REGISTRY.get(current_name(name)) or unknown("attack", name, _REGISTRY)
    valid = [f.name for f in dataclasses.fields(cls) if f.name != "threat"]
    for option in options:
        if option not in valid:
            unknown(f"option of attack {name!r}", option, valid)
    return cls(threat, **options)
