"""The base class of all attacks, and the table of their names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from randens.attacks.result import AttackResult, join
from randens.attacks.run import run_batches
from randens.attacks.search import Search
from randens.core.devices import is_dense
from randens.core.errors import InputError, number, shown, typed, unknown, whole
from randens.core.progress import Progress
from randens.data import as_data
from randens.ensemble import RandomizedEnsemble
from randens.random_model import RandomizedModel, expanded
from randens.threat import FiniteThreat, Threat, norm_name
from randens.witness import WitnessPool

# Name: class and the options that it stands for.
REGISTRY: dict[str, tuple[type[Attack], dict[str, Any]]] = {}
AttackType = TypeVar("AttackType", bound="type[Attack]")
_MOST = 1_000_000  # steps, restarts, queries: more would take years


@dataclass(frozen=True)
class Attack:
    """Base of all attacks. A subclass is a frozen dataclass whose fields are its options, and a `search`.

    `search(s)` proposes points to the `Search` s, which scores and records them.

    Parameters
    ----------
    threat : Threat
        What the attack may do.
    restarts : int
        How often the search begins anew, the first time from the clean input.
    seed : int
        Determines every random choice, whatever the batch size and the number of processes.
    batch_size : int
        Inputs attacked together.

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
    batch_size: int = field(default=128, kw_only=True)

    exact: ClassVar[bool] = False  # true only where the optimum is proven
    enumerates: ClassVar[bool] = False  # whether it tries all of a finite set, and so needs one

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Threat):
            raise InputError(f"threat is {shown(self.threat)}; give a Threat, e.g. Threat('linf', 8/255)")
        if isinstance(self.threat, FiniteThreat) != self.enumerates:
            if self.enumerates:
                raise InputError(f"threat is a ball; the attack {self.name!r} needs a randens.FiniteThreat")
            raise InputError(
                f"threat is a finite set, of which all are tried; leave the attack {self.name!r} out, or give 'finite'"
            )
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            _check_option(option, value)
            if isinstance(
                value, np.generic
            ):  # of another text, by which random numbers and searches are known
                object.__setattr__(self, option.name, value.item())

    @property
    def name(self) -> str:
        """The registered name that stands for this class and most of these options."""
        found = [
            (len(options), name)
            for name, (cls, options) in REGISTRY.items()
            if cls is type(self) and all(getattr(self, key) == value for key, value in options.items())
        ]
        return max(found)[1] if found else type(self).__name__.lower()

    def to_dict(self) -> dict[str, Any]:
        """The name and the options that are plain values."""
        simple = {k: v for k, v in vars(self).items() if v is None or isinstance(v, (str, int, float, bool))}
        return {"name": self.name, **simple}

    def on_draws(self) -> tuple[list[Attack], list[tuple[Attack, int]]]:
        """For a random model: attacks on more and more of its draws, and those made once, on at most so many."""
        return [self], []

    def search(self, s: Search) -> None:
        """Propose points for the batch that `s` owns."""
        raise InputError(f"{type(self).__name__} defines no search; it cannot attack {s.n} inputs")

    def __call__(self, rec: nn.Module, x: Tensor, y: Tensor) -> AttackResult:
        """Attack `rec` (or a single classifier: an ensemble of one) on inputs x with labels y."""
        ensemble = as_ensemble(rec)
        _check_pair(x, y)
        if not len(x):
            return Search(ensemble, x, y, self.threat).result()
        return join([found for _, found in run_batches(self, ensemble, (x, y), shared=False)])

    def batches(
        self,
        rec: nn.Module,
        data: Any,
        *,
        rows: ArrayLike | None = None,
        start: WitnessPool | None = None,
        progress: Progress | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], AttackResult]]:
        """Attack batch after batch; yield the rows of each and its result. Arguments as for `run`."""
        pair = isinstance(data, tuple) and [isinstance(part, Tensor) for part in data] == [True, True]
        if pair:
            _check_pair(*data)
        return run_batches(self, as_ensemble(rec), data if pair else as_data(data), rows, start, progress)

    @typed(start=WitnessPool | None, progress=Callable | None)
    def run(
        self,
        rec: nn.Module,
        data: Any,
        *,
        rows: ArrayLike | None = None,
        start: WitnessPool | None = None,
        progress: Progress | None = None,
    ) -> AttackResult:
        """Attack the inputs `rows` of a data set, in their order; under torch.distributed, processes share the batches.

        data: anything that `randens.evaluate` takes. start: known witnesses of all inputs, from which the attack
        begins; the result holds the new ones. progress: called as ``progress(task, done, total)``.
        """
        parts = [found for _, found in self.batches(rec, data, rows=rows, start=start, progress=progress)]
        if not parts:
            raise InputError("rows is empty; give at least one input to attack")
        return join(parts)


def _check_pair(x: Tensor, y: Tensor) -> None:
    """Refuse what is not a dense tensor of inputs and one of as many labels."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InputError(f"x is {type(x).__name__} and y is {type(y).__name__}; both must be tensors")
    if not is_dense(x) or not is_dense(y):
        kinds = (f"{part.layout} {part.dtype} on {part.device}" for part in (x, y))
        raise InputError(f"x and y are {' and '.join(kinds)}; both must be dense numbers")
    if not x.dim() or y.dim() != 1 or len(y) != len(x):
        raise InputError(f"y has shape {tuple(y.shape)}; it must be {list(x.shape[:1])}, one label per input")


def _check_option(option: dataclasses.Field[Any], value: object) -> None:
    """Whole numbers are at least 1, others positive and finite; a field's metadata may give `range` or `choices`."""
    if option.name == "seed":
        whole("seed", value, 0, 2**63 - 1)
    elif "choices" in option.metadata:
        if not isinstance(value, str) or value not in option.metadata["choices"]:
            unknown(option.name, value, option.metadata["choices"])
    elif option.type in ("int", int):  # text where annotations are postponed
        whole(option.name, value, 1, _MOST)
    elif option.type in ("bool", bool):
        if not isinstance(value, bool):
            raise InputError(f"{option.name} is {shown(value)}; it must be True or False")
    elif option.type in ("float", float) or (option.type == "float | None" and value is not None):
        low, high = option.metadata.get("range", (0.0, math.inf))
        found = number(option.name, None if isinstance(value, str) else value)
        if not low <= found <= high or (found == 0 and "range" not in option.metadata):
            least = f"≥ {low:g}" if "range" in option.metadata else "> 0"
            valid = least if high == math.inf else f"from {low:g} to {high:g}"
            raise InputError(f"{option.name} is {found:g}; it must be a number {valid}")


def as_ensemble(model: nn.Module) -> RandomizedEnsemble:
    """A classifier as a randomized ensemble of one; a random model as the ensemble of its draws."""
    if isinstance(model, (RandomizedEnsemble, RandomizedModel)) and model.stochastic:
        return expanded(model)
    if isinstance(model, RandomizedEnsemble):
        return model
    if not isinstance(model, nn.Module):
        raise InputError(f"rec is {type(model).__name__}; give a RandomizedEnsemble or a torch.nn.Module")
    return RandomizedEnsemble([model])


@typed(name=str)
def register(name: str, **defaults: Any) -> Callable[[AttackType], AttackType]:
    """Class decorator: `create`, command line and recipes know the attack, with the options `defaults`, as `name`."""

    key = name.strip().lower()

    def add(cls: AttackType) -> AttackType:
        known = REGISTRY.get(key)
        if known is not None and known[0].__qualname__ != cls.__qualname__:
            raise InputError(f"an attack named {key!r} exists already: {known[0].__qualname__}")
        REGISTRY[key] = cls, defaults
        return cls

    return add


def names() -> tuple[str, ...]:
    """Names that `create` knows, sorted."""
    return tuple(sorted(REGISTRY))


def create(name: str, threat: Threat | None = None, **options: Any) -> Attack:
    """The attack called `name` against `threat`; options are the fields of its class.

    Parameters
    ----------
    name : str
        One of `names()`, in any case, or a preset of the suite: ``"fast"``, ``"standard"``, ``"thorough"``.
    threat : Threat, optional
        What the attack may do; or give `eps` (and `norm`, ``"linf"`` by default).
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
    >>> create("standard", eps="8/255").preset
    'standard'
    """
    if threat is None:
        if "eps" not in options:
            raise InputError(f"the attack {name!r} needs a threat: threat=Threat('linf', 8/255) or eps=8/255")
        threat = Threat(options.pop("norm", "linf"), options.pop("eps"))
    if "auto" in str(name).lower():
        raise InputError(f"unknown attack {name!r}; randens.interop.from_autoattack(threat) makes it one")
    cls, defaults = REGISTRY.get(str(name).strip().lower()) or unknown("attack", name, REGISTRY)
    valid = [option.name for option in dataclasses.fields(cls) if option.name != "threat"]
    for option in options:
        if option not in valid:
            unknown(f"option of attack {name!r}", option, valid)
    return cls(threat, **(defaults | options))


AttackLike = Attack | str | Sequence[Attack | str] | None


def as_attacks(
    attack: AttackLike,
    *,
    eps: float | str | None = None,
    norm: str | float | None = None,
    threat: Threat | None = None,
    known: Threat | None = None,
    seed: int = 0,
) -> tuple[Attack, ...]:
    """Attacks from attacks, names, presets or nothing, against one threat; `known`, the ensemble's, is the default."""
    several = isinstance(attack, Sequence) and not isinstance(attack, str)
    default = "finite" if isinstance(threat, FiniteThreat) else "standard"
    given: list[Any] = [default] if attack is None else list(attack) if several else [attack]  # type: ignore[arg-type]
    if not given or not all(isinstance(item, (Attack, str)) for item in given):
        raise InputError(
            f"attack is {shown(attack)}; give names, attacks of randens.attacks.create, or of a function f(model, x, "
            "y) randens.attacks.from_function(f, threat)"
        )
    own = {item.threat for item in given if isinstance(item, Attack)}
    if len(own) > 1:
        raise InputError(f"the attacks have different threats {sorted(map(str, own))}; they must share one")
    radius = None if eps is None else number("eps", eps)
    name = None if norm is None else norm_name(norm)
    whose, chosen = ("attack", own.pop()) if own else ("threat", threat)
    if chosen is not None:
        has = {"threat": chosen, "eps": getattr(chosen, "eps", None), "norm": chosen.norm}
        for key, said in {"threat": threat, "eps": radius, "norm": name}.items():
            if said is not None and said != has[key]:
                raise InputError(f"{key} is {said!r}, but the {whose} has {has[key]!r}; say it once")
    else:
        if radius is None and name not in (None, "linf" if known is None else known.norm):
            raise InputError(f"norm is {shown(norm)}; give its radius too, e.g. eps=0.5")
        like = known if known is not None and name in (None, known.norm) else Threat(name or "linf", 8 / 255)
        size = like.eps if radius is None else radius
        # No threat is made with the radius 0, at which nothing is perturbed.
        chosen = Threat(like.norm, size or 1e-9, like.bounds).with_radius(size)
    return tuple(item if isinstance(item, Attack) else create(item, chosen, seed=seed) for item in given)
