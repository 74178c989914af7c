"""Attacks of other packages (Foolbox, torchattacks, ART, AutoAttack, adv_lib): they propose points, `Search` judges."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randens.attacks.base import Attack
from randens.attacks.search import Search
from randens.core.errors import InputError, ModelError, RandensError, unknown, whole
from randens.ensemble import RandomizedEnsemble
from randens.models import in_precision, logits_of
from randens.threat import Threat

_NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
_COMMON = ("restarts", "seed", "batch_size")  # options of every attack of randens
_PARTS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")  # of AutoAttack


class Mixture(nn.Module):
    """log Σ_i α_i softmax_i(x), [n, C]: the log-probabilities of a randomized ensemble's answers, as one module.

    Its argmax is *not* the randomized ensemble but a deterministic one that averages probabilities. Use it to attack,
    and ``rec.risk(x_adv, y)`` to measure; `from_autoattack` and similar functions do so.
    """

    def __init__(self, rec: RandomizedEnsemble) -> None:
        super().__init__()
        self.rec = rec
        self.passes = len(rec.networks)

    def forward(self, x: Tensor) -> Tensor:
        return self.rec.mixture(x)


class View(nn.Module):
    """What foreign attacks receive: a classifier of images in the box 0..1; passes are counted, weights hidden."""

    def __init__(self, s: Search, model: nn.Module) -> None:
        super().__init__()
        self._hidden = s, model
        self.passes = model.passes if isinstance(model, Mixture) else 1
        # Unbounded inputs get a box that holds every legal point.
        low, high = s.threat.bounds or (float(s.x.min()) - s.threat.eps, float(s.x.max()) + s.threat.eps)
        self._low, self._size = low, high - low
        self.threat = Threat(s.threat.norm, s.threat.eps / self._size)
        shape = tuple(s.x.shape[1:])
        self.shape = shape if len(shape) == 3 else (math.prod(shape), 1, 1)
        # Packages read the device from a parameter.
        self.place = nn.Parameter(torch.zeros((), device=s.device), requires_grad=False)
        with torch.no_grad():
            self.classes = self(self.show(s.x[:1])).shape[1]
        self.eval()

    def show(self, x: Tensor) -> Tensor:
        return ((x.detach().float().contiguous() - self._low) / self._size).clamp(0, 1).view(-1, *self.shape)

    def read(self, shown: Tensor) -> Tensor:
        s, _ = self._hidden
        return shown.to(s.device, s.x.dtype).reshape(-1, *s.x.shape[1:]) * self._size + self._low

    def forward(self, shown: Tensor) -> Tensor:
        s, model = self._hidden
        passes = len(shown) * self.passes
        s.cost.forwards += passes

        def count(gradient: Tensor) -> Tensor:
            s.cost.backwards += passes
            # Members work in channels_last, and packages call `view` on what they get.
            return gradient.contiguous()

        differentiated = shown.requires_grad and torch.is_grad_enabled()
        if differentiated:
            shown = shown.view_as(shown)
            shown.register_hook(count)  # type: ignore[no-untyped-call]
        z = logits_of(model(in_precision(self.read(shown), model)), len(shown), type(model).__name__)
        if differentiated and not z.requires_grad:
            # The member has no gradients; the search has flagged it, and the package continues with zeros.
            z = z + 0 * shown.flatten(1).sum(dim=1, keepdim=True)
        return z.to(shown.dtype)


Proposal = Callable[[View, Tensor, Tensor, Threat, int], Tensor]
"""(view, shown inputs, labels, threat in the view's units, seed) → perturbed shown inputs."""


@dataclass(frozen=True)
class Foreign(Attack):
    """Another package's attack on the mixture, then on each member that can be sampled.

    A member is attacked on the inputs at which it has not been fooled yet. The global random number generators are
    seeded for each call and restored after it. Stored witnesses know the attack by its `description`, "name(options)".
    """

    propose: Proposal = field(repr=False, compare=False)
    description: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threat.norm not in _NORMS:
            raise InputError(f"threat is {self.threat.norm}; other packages take {', '.join(_NORMS)}")

    @property
    def name(self) -> str:
        return self.description.partition("(")[0]

    def search(self, s: Search) -> None:
        drawn = s.probs.nonzero().flatten().tolist()
        members = [s.rec.members[i] for i in drawn]
        # One gradient of every member at the inputs flags those without usable gradients.
        s.linearize(s.open, s.x[s.open], (s.probs > 0).expand(len(s.open), -1))
        for seed in range(s.seed, s.seed + 31 * self.restarts, 31):
            if len(drawn) > 1:
                mixture = Mixture(RandomizedEnsemble(members, s.probs[drawn]))
                self._propose(s, mixture, s.open, seed)
            for number, member in zip(drawn, members, strict=True):
                self._propose(s, member, s.open[~s.foolable[s.open, number]], seed)

    def _propose(self, s: Search, model: nn.Module, rows: Tensor, seed: int) -> None:
        """Let the package attack `model` at these rows, and judge its points."""
        if not len(rows):
            return
        view = View(s, model)
        try:
            with _seeded(seed):
                shown = self.propose(view, view.show(s.x[rows]), s.y[rows], view.threat, seed).detach()
        except RandensError:
            raise
        except Exception as error:  # the packages' exceptions have no common base class
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:240]
            inputs = f"{len(rows)} inputs of shape {tuple(s.x.shape[1:])}"
            raise ModelError(f"{self.description} failed on {inputs}: {reason}") from error
        points = view.read(shown)
        s.judge(rows, torch.where(torch.isfinite(points), points, s.x[rows]))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python with `seed`, and restore them afterwards."""
    legacy, plain = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(plain)


def from_foolbox(attack: Any, threat: Threat, **common: int) -> Foreign:
    """A Foolbox attack for the threat's norm: ``from_foolbox(foolbox.attacks.LinfPGD(steps=20), threat)``.

    Common to all attacks are restarts, seed and batch_size.
    """
    from foolbox.attacks.base import Attack as FoolboxAttack
    from foolbox.models.pytorch import PyTorchModel

    if not isinstance(attack, FoolboxAttack):
        raise InputError(f"attack is {attack!r}; give an instance, e.g. foolbox.attacks.LinfPGD(steps=20)")
    name, measured = type(attack).__name__, getattr(getattr(attack, "distance", None), "p", threat.p)
    if measured != threat.p:
        raise InputError(f"attack is {name}, which measures l{measured:g}; threat is {threat.norm}")

    def propose(view: View, x: Tensor, y: Tensor, threat: Threat, _: int) -> Tensor:
        model = PyTorchModel(view, bounds=(0, 1), device=x.device)
        # A copy, because some attacks keep state between calls.
        return copy.deepcopy(attack)(model, x, y, epsilons=threat.eps)[1]

    options = re.sub(r" at 0x[0-9a-f]+", "", repr(vars(attack)))
    return Foreign(threat, propose, f"foolbox-{name}({options})", **common)


def from_torchattacks(attack: Any, threat: Threat, **options: Any) -> Foreign:
    """A class of torchattacks and its options, e.g. ``from_torchattacks(torchattacks.PGD, threat, steps=20)``.

    eps, norm, number of classes and seed come from the threat and the ensemble; the step `alpha` is eps / 4 unless
    given, in units of the box. A class with a norm of its own must fit the threat: PGD, PGDL2.
    """
    return _made(
        "torchattacks", attack, threat, options, lambda view, x, y, given: attack(view, **given)(x, y)
    )


def from_art(attack: Any, threat: Threat, **options: Any) -> Foreign:
    """An evasion attack of the Adversarial Robustness Toolbox and its options, untargeted, e.g.
    ``from_art(art.attacks.evasion.ProjectedGradientDescent, threat, max_iter=20)``; `eps_step` is eps / 4 unless given.
    """
    from art.estimators.classification import PyTorchClassifier

    def call(view: View, x: Tensor, y: Tensor, arguments: dict[str, Any]) -> Tensor:
        device = "cpu" if x.device.type == "cpu" else "gpu"
        classifier = PyTorchClassifier(
            view, nn.CrossEntropyLoss(), view.shape, view.classes, clip_values=(0.0, 1.0), device_type=device
        )
        labels = nn.functional.one_hot(y, view.classes).float().cpu().numpy()
        return torch.from_numpy(attack(classifier, **arguments).generate(x=x.cpu().numpy(), y=labels))

    return _made("art", attack, threat, options, call)


def from_adv_lib(attack: Any, threat: Threat, **options: Any) -> Foreign:
    """A function of adv_lib and its options, e.g. ``from_adv_lib(adv_lib.attacks.fmn, threat, steps=100)``.

    Attacks of a radius (apgd, pgd_linf) get the threat's; those of least distance (fmn, ddn, alma) get its norm where
    they take one, and points beyond the radius are projected.
    """
    return _made("adv_lib", attack, threat, options, lambda view, x, y, given: attack(view, x, y, **given))


def from_function(
    function: Callable[[nn.Module, Tensor, Tensor], Tensor], threat: Threat, **common: int
) -> Foreign:
    """A function f(model, x, y) → x_adv, which may call any package: ``from_function(f, Threat("linf", 8 / 255))``."""
    if not callable(function):
        raise InputError(f"function is {function!r}; give f(model, x, y) that returns perturbed inputs")
    name = getattr(function, "__qualname__", type(function).__name__)
    # What is stored about a function is not what another one would find.
    code = getattr(function, "__code__", None)
    said = f"{name}({zlib.crc32(repr((code.co_code, code.co_consts)).encode()) if code else ''})"
    return Foreign(threat, lambda view, x, y, *_: function(view, x, y), said, **common)


def from_autoattack(
    threat: Threat,
    attacks: Sequence[str] | None = None,
    *,
    steps: int = 100,
    queries: int = 5000,
    **common: int,
) -> Foreign:
    """AutoAttack (the package pyautoattack): the parts named in `attacks`, or its standard version.

    The standard version is apgd-ce, apgd-t (with fewer than four classes, for which its loss is not defined, apgd-dlr
    where it is), fab-t and square. The version for randomized models is not offered: it samples an expectation that
    the mixture computes exactly.
    """
    from pyautoattack import AutoAttack

    named = [attacks] if isinstance(attacks, str) else list(attacks or ())
    for part in named:
        if part not in _PARTS:
            unknown("part of AutoAttack", part, _PARTS)
    whole("steps", steps)
    said = f"autoattack(attacks={named or 'standard'!r}, steps={steps}, queries={whole('queries', queries)})"

    def propose(view: View, x: Tensor, y: Tensor, threat: Threat, seed: int) -> Tensor:
        targeted: list[str] = {2: [], 3: ["apgd-dlr"]}.get(view.classes, ["apgd-t"])
        parts = list(dict.fromkeys(named)) or ["apgd-ce", *targeted, "fab-t", "square"]
        # The standard version has fewer restarts than parts of one's own choice.
        chosen = {"version": "custom", "attacks": named} if named else {"version": "standard"}
        norm = _NORMS[threat.norm]
        made = AutoAttack(view, norm=norm, eps=threat.eps, seed=seed, device=x.device, **chosen)
        made.attacks_to_run = parts
        made.apgd.n_iter = made.apgd_targeted.n_iter = made.fab.n_iter = steps
        made.square.n_queries = queries
        for attack in (made.apgd_targeted, made.fab):
            attack.n_target_classes = min(attack.n_target_classes, view.classes - 1)
        return made.run_standard_evaluation(x, y, batch_size=len(x))[0]

    return Foreign(threat, propose, said, **common)


def _made(
    package: str,
    attack: Any,
    threat: Threat,
    options: dict[str, Any],
    call: Callable[[View, Tensor, Tensor, dict[str, Any]], Tensor],
) -> Foreign:
    """The attack of a class or function: what threat and ensemble decide, where it takes that, and the options."""
    if not hasattr(attack, "__name__"):
        raise InputError(f"attack is {attack!r}; give a class or function of {package}, and its options")
    common = {name: options.pop(name) for name in _COMMON if name in options}

    def propose(view: View, x: Tensor, y: Tensor, threat: Threat, seed: int) -> Tensor:
        norm = _NORMS[threat.norm] if package == "torchattacks" else threat.p
        known = {"norm": norm, "n_classes": view.classes, "seed": seed, "batch_size": len(x)}
        known |= {"targeted": False, "verbose": False, "eps": threat.eps, "ε": threat.eps}
        known |= {"alpha": threat.eps / 4, "eps_step": threat.eps / 4}
        takes = inspect.signature(attack).parameters
        return call(view, x, y, {name: value for name, value in known.items() if name in takes} | options)

    said = ", ".join(f"{option}={value!r}" for option, value in sorted(options.items()))
    return Foreign(threat, propose, f"{package}-{attack.__name__}({said})", **common)
