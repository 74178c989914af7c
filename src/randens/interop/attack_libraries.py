"""Attacks of other packages as attacks of randens: Foolbox, torchattacks, ART, AutoAttack.

Such an attack only proposes points. It attacks one deterministic classifier, a `View`: a member, or the
mixture log Σ α_i softmax_i of all members that can be drawn. `Search` projects the points onto the threat,
computes the exact verdicts of every member and pools the witnesses. The package's random numbers come from
the global generators, which are seeded for each call and restored after it. The package cannot change the
members' modes, gradients or devices.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict, cast

import numpy as np
import torch
from torch import Tensor, nn

from randens.attacks.base import Attack
from randens.attacks.search import Search
from randens.core.errors import InputError, ModelError, RandensError, unknown, whole
from randens.threat import Threat

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Foreign", "View", "from_art", "from_autoattack", "from_foolbox", "from_torchattacks"]

_TARGETS = ("both", "members", "mixture")
# AutoAttack's parts, and the fewest classes that their losses are defined for.
_AUTOATTACK_PARTS = {"apgd-ce": 2, "apgd-dlr": 3, "apgd-t": 4, "fab": 2, "fab-t": 2, "square": 2}
_AUTOATTACK_VERSIONS = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
}


class View(nn.Module):
    """What a foreign attack receives as classifier: logits of a member, or the mixture's log-probabilities, [k, C].

    Members are hidden from `parameters`, `train`, `zero_grad` and `to`. Every pass is counted in the search's
    cost. Inputs are given in the box `low`..`high`. With `unit` they are scaled to 0..1, and vectors become
    images [k, d, 1, 1], because some packages take nothing else.
    """

    def __init__(self, s: Search, members: Sequence[int], *, unit: bool = False) -> None:
        super().__init__()
        self._search, self._chosen = (s,), tuple(members)
        s.cost.forwards += int(getattr(s.rec.members[members[0]], "passes", 1))
        with torch.no_grad():
            self.classes = s.rec.members[members[0]](s.x[:1]).shape[1]
        # Unbounded inputs get a box that holds every legal point.
        eps = s.threat.eps
        self.low, self.high = s.threat.bounds or (float(s.x.min()) - eps, float(s.x.max()) + eps)
        self._offset, self._scale = (self.low, self.high - self.low) if unit else (0.0, 1.0)
        shape = tuple(s.x.shape[1:])
        self.shape = shape if not unit or len(shape) == 3 else (math.prod(shape), 1, 1)
        # Packages read the device from a parameter.
        self.place = nn.Parameter(torch.zeros((), device=s.device), requires_grad=False)
        self.eval()

    def length(self, value: float) -> float:
        """Convert a length between inputs to the package's units."""
        return value / self._scale

    def show(self, x: Tensor) -> Tensor:
        """Convert inputs to the package's units."""
        if self._scale == 1 and self._offset == 0:
            return x.detach().float().clone().reshape(len(x), *self.shape)
        return ((x.detach().float() - self._offset) / self._scale).clamp(0, 1).reshape(len(x), *self.shape)

    def read(self, shown: Tensor) -> Tensor:
        """Inverse of `show`, in the members' precision."""
        (s,) = self._search
        x = shown.to(s.device, s.x.dtype).reshape(len(shown), *s.x.shape[1:])
        return x if self._scale == 1 and self._offset == 0 else x * self._scale + self._offset

    def forward(self, shown: Tensor) -> Tensor:
        (s,) = self._search
        x = self.read(shown)
        passes = len(x) * sum(int(getattr(s.rec.members[i], "passes", 1)) for i in self._chosen)

        def count_backward(_: Tensor) -> None:
            s.cost.backwards += passes

        if x.requires_grad:
            x = x.view_as(x)
            x.register_hook(count_backward)  # type: ignore[no-untyped-call]
        s.cost.forwards += passes
        outputs = [s.rec.members[i](x) for i in self._chosen]
        if len(outputs) == 1:
            z: Tensor = outputs[0]
        else:
            weights = s.probs[list(self._chosen)].log().to(x.dtype).reshape(-1, 1, 1)
            z = torch.logsumexp(torch.stack(outputs).log_softmax(dim=2) + weights, dim=0)
        if x.requires_grad and not z.requires_grad:
            # The member has no gradients; the search has flagged it, and the package continues with zeros.
            z = z + 0 * x.flatten(1).sum(dim=1, keepdim=True)
        return z.to(shown.dtype)


Proposal = Callable[[View, Tensor, Tensor, Threat, int], Tensor]
"""(view, shown inputs, labels, threat, seed) → perturbed shown inputs."""


@dataclass(frozen=True)
class Foreign(Attack):
    """Another package's attack on the mixture, on each member that can be drawn, or on both in turn.

    A member is attacked on the inputs at which it has not been fooled yet. Gradients are float32.

    Parameters
    ----------
    threat : Threat
        The perturbation set.
    propose : callable
        (view, shown inputs, labels, threat, seed) to perturbed shown inputs; they are projected and judged afterwards.
    description : str
        The attack with its options, which identifies it when an interrupted survey is continued.
    target : str
        "mixture", "members" or "both".
    label : str
        Its name in tables.
    unit : bool
        The package takes images from 0 to 1 only.

    Examples
    --------
    >>> import torch, randens
    >>> def brighter(view, x, y, threat, seed):
    ...     return x + threat.eps
    >>> attack = Foreign(randens.Threat("linf", 0.1), brighter, "brighter")
    >>> rec = randens.RandomizedEnsemble([torch.nn.Linear(4, 3)])
    >>> found = attack(rec, torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1]))
    >>> tuple(found.errors.shape)
    (5, 1)
    """

    propose: Proposal = field(repr=False, compare=False)
    description: str
    target: str = "both"
    label: str = ""
    unit: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in _TARGETS:
            unknown("target", self.target, _TARGETS)

    @property
    def name(self) -> str:
        return self.label

    def search(self, s: Search) -> None:
        drawn = s.probs.nonzero().flatten().tolist()
        _look_for_gradients(s, drawn)
        for restart in range(self.restarts):
            self._search_once(s, drawn, s.seed + 31 * restart)

    def _search_once(self, s: Search, drawn: list[int], seed: int) -> None:
        if self.target != "members" and len(drawn) > 1:
            self._run(s, drawn, s.open, seed)
        if self.target != "mixture" or len(drawn) == 1:
            for member in drawn:
                rows = s.open
                self._run(s, [member], rows[~s.foolable[rows, member]], seed)

    def _run(self, s: Search, members: list[int], rows: Tensor, seed: int) -> None:
        if not len(rows):
            return
        view = View(s, members, unit=self.unit)
        try:
            with _seeded(seed):
                shown = self.propose(view, view.show(s.x[rows]), s.y[rows], s.threat, seed)
        except RandensError:
            raise
        except Exception as error:
            # The package's exceptions have no common base class.
            reason = " ".join(str(error).split())[:200] or "no reason given"
            raise ModelError(
                f"{self.description} failed on {len(rows)} inputs of shape {tuple(s.x.shape[1:])}: "
                f"{type(error).__name__}: {reason}"
            ) from error
        if len(shown) != len(rows) or shown[0].numel() != s.x[0].numel():
            raise ModelError(
                f"{self.description} returned shape {tuple(shown.shape)} for {len(rows)} inputs of shape "
                f"{tuple(s.x.shape[1:])}"
            )
        points = view.read(shown.detach())
        s.judge(rows, torch.where(torch.isfinite(points), points, s.x[rows]))


def _look_for_gradients(s: Search, drawn: list[int]) -> None:
    """Take one gradient of every member at the inputs, to flag members without usable gradients."""
    rows = s.open
    for member in drawn:
        wanted = torch.zeros(len(rows), s.members, dtype=torch.bool, device=s.device)
        wanted[:, member] = True
        try:
            s.linearize(rows, s.x[rows], wanted)
        except ModelError:
            s.zero_gradient[rows, member] = True


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python with `seed`, and restore them afterwards."""
    legacy, plain, gradients = np.random.get_state(), random.getstate(), torch.is_grad_enabled()  # noqa: NPY002
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            with torch.enable_grad():
                yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(plain)
            torch.set_grad_enabled(gradients)


# ---- the packages ------------------------------------------------------------------------------------------------


class Common(TypedDict, total=False):
    """Options of every attack."""

    restarts: int
    seed: int
    batch_size: int


def _common(options: dict[str, Any]) -> Common:
    """Take the options of every attack out of `options`; the others belong to the package's class."""
    return cast("Common", {name: options.pop(name) for name in Common.__annotations__ if name in options})


def from_foolbox(attack: Any, threat: Threat, *, target: str = "both", **common: Unpack[Common]) -> Foreign:
    """A Foolbox attack, e.g. ``from_foolbox(foolbox.attacks.LinfPGD(steps=20), threat)``.

    Its radius and bounds are the threat's. `target`: "mixture", each of the "members", or "both".

    Parameters
    ----------
    attack : foolbox.attacks.Attack
        An instance, for the norm of `threat`.
    threat, target, **common
        As for `Foreign`; common to all attacks are restarts, seed and batch_size.

    Returns
    -------
    Foreign
        An attack like those of randens.
    """
    foolbox = _package("foolbox", "foolbox", "from_foolbox")
    base = foolbox.attacks.base.Attack
    if inspect.isclass(attack) and issubclass(attack, base):
        raise InputError(f"attack is the class {attack.__name__}; give an instance, {attack.__name__}()")
    if not isinstance(attack, base):
        raise InputError(
            f"attack is {_shown(attack)}; give a Foolbox attack, e.g. foolbox.attacks.LinfPGD(steps=20)"
        )
    _threat(threat)
    measured = getattr(getattr(attack, "distance", None), "p", None)
    if measured is not None and measured != threat.p:
        raise InputError(
            f"attack is {type(attack).__name__}, which measures l{measured:g}; the threat is {threat.norm}, "
            f"so give an attack for that norm"
        )
    kept = copy.deepcopy(attack)

    def propose(view: View, x: Tensor, y: Tensor, threat: Threat, _: int) -> Tensor:
        model = foolbox.PyTorchModel(view, bounds=(view.low, view.high), device=x.device)
        # A copy, because some attacks keep state between calls.
        _, clipped, _ = copy.deepcopy(kept)(model, x, y, epsilons=threat.eps)
        return clipped

    said = f"foolbox {re.sub(r' at 0x[0-9a-f]+', '', repr(attack))}"
    return Foreign(threat, propose, said, target, f"foolbox-{type(attack).__name__}", **common)


def from_torchattacks(attack: Any, threat: Threat, *, target: str = "both", **options: Any) -> Foreign:
    """A class of torchattacks and its options, e.g. ``from_torchattacks(torchattacks.PGD, threat, steps=20)``.

    eps, norm, the number of classes and the seed come from the threat and the ensemble. A step `alpha` that is not
    given keeps the package's proportion to eps; one that is given is in units of the inputs. The package takes
    images from 0 to 1 only, so that other inputs are shown to it scaled.

    Parameters
    ----------
    attack : type
        A class of torchattacks.
    threat, target
        As for `Foreign`.
    **options
        Of the class, and restarts, seed and batch_size, as for every attack.

    Returns
    -------
    Foreign
        An attack like those of randens.
    """
    package = _package("torchattacks.attack", "torchattacks", "from_torchattacks")
    common = _common(options)
    _check_class(
        attack, package.Attack, "torchattacks.PGD", options, ("eps", "max_epsilon", "norm", "n_classes")
    )
    _threat(threat)
    takes = inspect.signature(attack).parameters
    measures = "l2" if attack.__name__.endswith("L2") else "linf"  # those without a norm to choose
    if "norm" not in takes and ("eps" in takes or "max_epsilon" in takes) and measures != threat.norm:
        raise InputError(
            f"attack is {attack.__name__}, which measures {measures}; the threat is {threat.norm}, so give an attack "
            "for that norm"
        )

    def propose(view: View, x: Tensor, y: Tensor, threat: Threat, seed: int) -> Tensor:
        eps = view.length(threat.eps)
        norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
        known = {"eps": eps, "max_epsilon": eps, "norm": norm, "n_classes": view.classes, "seed": seed}
        given = {k: view.length(v) if k == "alpha" else v for k, v in options.items()}
        return attack(view, **_arguments(attack, known, given, step="alpha"))(x, y)

    said, label = f"torchattacks {_called(attack.__name__, options)}", f"torchattacks-{attack.__name__}"
    return Foreign(threat, propose, said, target, label, unit=True, **common)


def from_art(attack: Any, threat: Threat, *, target: str = "both", **options: Any) -> Foreign:
    """An evasion attack of the Adversarial Robustness Toolbox and its options.

    E.g. ``from_art(art.attacks.evasion.ProjectedGradientDescent, threat, max_iter=20)``. eps and norm are the
    threat's; an `eps_step` that is not given keeps the package's proportion to eps. Attacks are untargeted.

    Parameters
    ----------
    attack : type
        A class of ART.
    threat, target, **options
        As for `from_torchattacks`.

    Returns
    -------
    Foreign
        An attack like those of randens.
    """
    evasion = _package("art.attacks.attack", "adversarial-robustness-toolbox", "from_art")
    common = _common(options)
    example = "art.attacks.evasion.ProjectedGradientDescent"
    _check_class(attack, evasion.EvasionAttack, example, options, ("eps", "norm", "targeted"))
    _threat(threat)
    estimators = _package("art.estimators.classification", "adversarial-robustness-toolbox", "from_art")

    def propose(view: View, x: Tensor, y: Tensor, threat: Threat, _: int) -> Tensor:
        classifier = estimators.PyTorchClassifier(
            model=view,
            loss=nn.CrossEntropyLoss(),
            input_shape=view.shape,
            nb_classes=view.classes,
            clip_values=(view.low, view.high),
            device_type="cpu" if x.device.type == "cpu" else "gpu",
        )
        norm = np.inf if threat.norm == "linf" else 2
        known = {"eps": threat.eps, "norm": norm, "targeted": False, "verbose": False, "batch_size": len(x)}
        made = attack(classifier, **_arguments(attack, known, options, step="eps_step"))
        labels = nn.functional.one_hot(y, view.classes).float().cpu().numpy()
        return torch.from_numpy(made.generate(x=x.cpu().float().numpy(), y=labels))

    said = f"art {_called(attack.__name__, options)}"
    return Foreign(threat, propose, said, target, f"art-{attack.__name__}", **common)


def from_autoattack(
    threat: Threat,
    *,
    version: str = "standard",
    attacks: Sequence[str] | None = None,
    steps: int = 100,
    queries: int = 5000,
    target: str = "both",
    **common: Unpack[Common],
) -> Foreign:
    """AutoAttack (the package pyautoattack): `version` "standard" or "plus", or the parts named in `attacks`.

    Its version for randomized models is not offered, because it samples an expectation that the mixture computes
    exactly. Parts whose loss needs more classes than there are refused.

    Parameters
    ----------
    threat, target, **common
        As for `from_foolbox`.
    version : str
        Of AutoAttack.
    attacks : sequence of str, optional
        Its parts, instead of a version's.
    steps, queries : int, optional
        Of APGD and FAB, and of Square.

    Returns
    -------
    Foreign
        An attack like those of randens.
    """
    package = _package("pyautoattack", "pyautoattack", "from_autoattack")
    _threat(threat)
    if version not in _AUTOATTACK_VERSIONS:
        unknown("version", version, _AUTOATTACK_VERSIONS)
    if isinstance(attacks, str) or (attacks is not None and not len(attacks)):
        raise InputError(
            f"attacks is {attacks!r}; give a list of AutoAttack's parts, e.g. ['apgd-ce', 'square']"
        )
    parts = _AUTOATTACK_VERSIONS[version] if attacks is None else tuple(attacks)
    for part in parts:
        if part not in _AUTOATTACK_PARTS:
            unknown("part of AutoAttack", part, _AUTOATTACK_PARTS)
    for option, value in (("steps", steps), ("queries", queries)):
        whole(option, value)

    def propose(view: View, x: Tensor, y: Tensor, threat: Threat, seed: int) -> Tensor:
        short = [part for part in parts if _AUTOATTACK_PARTS[part] > view.classes]
        if short:
            fit = [part for part in parts if part not in short] or ["apgd-ce", "fab-t", "square"]
            raise InputError(
                f"AutoAttack's {short[0]} takes {_AUTOATTACK_PARTS[short[0]]} classes or more, the members have "
                f"{view.classes}; give attacks={fit}"
            )
        if "square" in parts and threat.norm == "l2" and min(x.shape[2:]) < 3:
            raise InputError(
                f"AutoAttack's square needs images of at least 3 × 3 pixels in l2, the inputs have shape "
                f"{view.shape}; give attacks={[part for part in parts if part != 'square']}"
            )
        made = package.AutoAttack(
            view,
            norm={"linf": "Linf", "l2": "L2"}[threat.norm],
            eps=view.length(threat.eps),
            seed=seed,
            device=x.device,
            version="custom" if attacks is not None else version,
            attacks=list(parts) if attacks is not None else None,
        )
        made.apgd.n_iter = made.apgd_targeted.n_iter = made.fab.n_iter = steps
        made.square.n_queries = queries
        made.apgd_targeted.n_target_classes = made.fab.n_target_classes = min(9, view.classes - 1)
        return made.run_standard_evaluation(x, y, batch_size=len(x))[0]

    settings = {"attacks": parts, "queries": queries, "steps": steps, "version": version}
    said = f"pyautoattack {_called('AutoAttack', settings)}"
    return Foreign(threat, propose, said, target, "autoattack", unit=True, **common)


def _package(module: str, name: str, caller: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModelError(
            f"{caller} needs {name}, which cannot be imported ({error}); docs/interop.md says how to install it"
        ) from error


def _threat(threat: Threat) -> None:
    if not isinstance(threat, Threat):
        raise InputError(f"threat is {threat!r}; give a Threat, e.g. Threat('linf', 8/255)")
    if threat.norm not in ("linf", "l2"):
        raise InputError(f"threat is {threat.norm}; other packages' attacks are run in linf and l2 here")


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"


def _check_class(
    attack: Any, base: type, example: str, options: Mapping[str, Any], decided: Sequence[str]
) -> None:
    """Check for a class, because these packages bind an attack instance to one model."""
    if isinstance(attack, base):
        raise InputError(
            f"attack is a {type(attack).__name__} made for one model; give the class, {type(attack).__name__}, and its "
            "options"
        )
    if not inspect.isclass(attack) or not issubclass(attack, base):
        raise InputError(f"attack is {_shown(attack)}; give a class such as {example}")
    valid = [*inspect.signature(attack).parameters][1:]
    for option, value in options.items():
        if option in decided:
            raise InputError(
                f"{option} is {value!r} in the options; leave it out, the threat and the ensemble decide it"
            )
        if option not in valid:
            unknown(f"option of {attack.__name__}", option, [v for v in valid if v not in decided])


def _arguments(
    attack: type, known: Mapping[str, Any], options: Mapping[str, Any], step: str
) -> dict[str, Any]:
    """The options, what the signature asks for and is `known`, and a step in the package's proportion to eps."""
    signature = inspect.signature(attack).parameters
    arguments = {name: value for name, value in known.items() if name in signature} | dict(options)
    if step in signature and step not in options and "eps" in signature:
        usual, eps = signature[step].default, signature["eps"].default
        if isinstance(usual, (int, float)) and isinstance(eps, (int, float)) and eps > 0:
            arguments[step] = usual / eps * known["eps"]
    return arguments


def _called(name: str, options: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{option}={options[option]!r}' for option in sorted(options))})"
