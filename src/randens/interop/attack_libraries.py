"""Attacks of other packages: Foolbox, torchattacks, ART, AutoAttack, adv_lib."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from randens.attacks.proposals import NORMS, Foreign, View
from randens.core.errors import InputError, unknown, whole
from randens.threat import Threat

_COMMON = ("restarts", "seed", "batch_size")  # options of every attack of randens
_PARTS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")  # of AutoAttack


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
        norm = NORMS[threat.norm]
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
        norm = NORMS[threat.norm] if package == "torchattacks" else threat.p
        known = {"norm": norm, "n_classes": view.classes, "seed": seed, "batch_size": len(x)}
        known |= {"targeted": False, "verbose": False, "eps": threat.eps, "ε": threat.eps}
        known |= {"alpha": threat.eps / 4, "eps_step": threat.eps / 4}
        takes = inspect.signature(attack).parameters
        return call(view, x, y, {name: value for name, value in known.items() if name in takes} | options)

    said = ", ".join(f"{option}={value!r}" for option, value in sorted(options.items()))
    return Foreign(threat, propose, f"{package}-{attack.__name__}({said})", **common)
