"""Other libraries' stronger attacks: Auto-PGD and FMN on one model, AutoAttack `rand` on the drawn ensemble.

On one ResNet-20: Auto-PGD of 20 steps (AutoAttack's and adv_lib's) against ours, and adv_lib's FMN and PGD; FMN also
against our two attacks on margins, of 20 steps and the saddle climber. On the
ensemble the others see a model that draws a member for every input and average 20 gradients per step (EOT), which is
how a randomised model is attacked without knowing its members; ours is the saddle climber. A minimum-norm attack's
point counts if it lies in the ball. Robust accuracies are exact expectations over the draw.

    python -m benchmarks.peers
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import randens
from benchmarks import harness, machine, members, runner
from benchmarks.attacks import Subject, channels_first, clock, side
from benchmarks.harness import Row, Settings, as_fast, interleaved, left_out
from randens import RandomizedEnsemble, Threat

STEPS, DRAWS = 20, 20
STAND_IN = runner.ROOT / "tests" / "interop" / "stand_in"
_PACKAGES = {"pyautoattack": ("AutoAttack", "pyautoattack"), "adv_lib.attacks": ("adv_lib", "adv-lib")}


def autoattack_apgd(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    from pyautoattack.autopgd_base import APGDAttack

    attack = APGDAttack(model, n_iter=STEPS, norm="Linf", eps=eps, loss="ce", n_restarts=1, device="cpu")
    found: Tensor = attack.perturb(x, y)
    return found


def autoattack_rand(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    from pyautoattack import AutoAttack

    attack = AutoAttack(model, norm="Linf", eps=eps, version="rand", device="cpu", seed=0)
    found = attack.run_standard_evaluation(x, y, batch_size=len(x))
    return found if isinstance(found, Tensor) else found[0]


def adv_lib_apgd(model: nn.Module, x: Tensor, y: Tensor, eps: float, draws: int = 1) -> Tensor:
    from adv_lib.attacks import apgd

    found: Tensor = apgd(
        model, x, y, eps=eps, norm=math.inf, n_iter=STEPS, loss_function="ce", eot_iter=draws
    )
    return found


def adv_lib_fmn(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    from adv_lib.attacks import fmn

    return _inside(fmn(model, x, y, norm=math.inf, steps=STEPS), x, eps)


def adv_lib_pgd(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
    from adv_lib.attacks import pgd_linf

    found: Tensor = pgd_linf(model, x, y, ε=eps, steps=STEPS, random_init=False)
    return found


Peer = Callable[[nn.Module, Tensor, Tensor, float], Tensor]
SINGLE: dict[str, tuple[str, Peer]] = {
    "Auto-PGD": ("pyautoattack", autoattack_apgd),
    "Auto-PGD (adv_lib)": ("adv_lib.attacks", adv_lib_apgd),
    "FMN": ("adv_lib.attacks", adv_lib_fmn),
    "PGD": ("adv_lib.attacks", adv_lib_pgd),
}
DRAWN: dict[str, tuple[str, Peer]] = {
    "AutoAttack rand": ("pyautoattack", autoattack_rand),
    "Auto-PGD with EOT": ("adv_lib.attacks", partial(adv_lib_apgd, draws=DRAWS)),
}


def _missing(package: str) -> str:
    """Why a package cannot be used here; empty if it can. Some import more than they install."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        return str(error)
    return ""


def _inside(points: Tensor, x: Tensor, eps: float) -> Tensor:
    """Points of the ball as they are; others become the input."""
    near = (points - x).flatten(1).abs().amax(dim=1) <= eps + 1e-6
    return torch.where(near.reshape(-1, 1, 1, 1), points, x)


def _compared(
    subject: Subject, name: str, options: dict[str, Any], peers: dict[str, tuple[str, Peer]], model: nn.Module
) -> Iterator[Row]:
    """Our attack `name` against every peer that is installed, on the same images."""
    x = subject.x.contiguous()
    cases: dict[str, Callable[[], Any]] = {
        name: partial(subject.attack, name, precision="float32", **options)
    }
    for label, (package, attack) in peers.items():
        if not _missing(package):
            cases[label] = partial(attack, model, x, subject.y, subject.threat.eps)
    subject.part(2).attack(name, precision="float32", **options)
    measured = interleaved(cases, repeats=1, clock=clock())
    ours = side(name, measured[name], subject)
    size = f"{len(x)} images, {len(subject.rec.members)} members"
    for label, (package, _) in peers.items():
        title, distribution = _PACKAGES[package]
        if label not in cases:
            yield left_out(f"{name} and {label}, {size}", title, f"{_missing(package)}: left out")
            continue
        theirs = side(
            f"{label}, {title} {machine.installed(distribution) or ''}".strip(), measured[label], subject
        )
        yield as_fast(f"{name} and {label}, {size}", ours, theirs)


def rows(settings: Settings) -> Iterator[Row]:
    if importlib.util.find_spec("torchvision") is None:
        sys.path.append(str(STAND_IN))  # adv_lib imports it for a distance that nothing here uses.
    rec, _ = members.locate(settings.ensemble)
    single, drawn = (4, 2) if settings.quick else (settings.images or 64, 8)
    threat = rec.threat or Threat("linf", 8 / 255)
    x, y = randens.data.load("cifar10", "validation")[torch.arange(single)]
    plain = [channels_first(member) for member in rec.members]
    alone = Subject(RandomizedEnsemble([rec.members[0]]), x, y, threat, plain[:1])
    yield from _compared(alone, "apgd", {"steps": STEPS}, SINGLE, plain[0])
    # FMN follows a difference of logits, which finds more on these members than cross-entropy; so do these two of ours.
    by_margin = {"FMN": SINGLE["FMN"]}
    yield from _compared(alone, "margin", {"steps": STEPS}, by_margin, plain[0])
    yield from _compared(alone, "saddle", {}, by_margin, plain[0])
    together = Subject(rec, x[:drawn], y[:drawn], threat, plain)
    model = RandomizedEnsemble(plain).eval()
    yield from _compared(
        together, "saddle", {}, dict(list(DRAWN.items())[: 0 if settings.quick else None]), model
    )


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
