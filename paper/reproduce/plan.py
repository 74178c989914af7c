"""Which runs the paper's tables need, at four scales, and the commands that make them.

digits: small networks, minutes. cpu: ResNet-20 on CIFAR-10 on two cores. paper: the text's settings. released: those of
the authors' program where it differs from the text.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paper.reproduce.tables import DATA, METHODS, NETWORKS, Names, Wanted, paper, paper_names
from randens import RandomizedEnsemble, attacks, data, models
from randens.core.devices import pick_device
from randens.core.errors import InputError, unknown
from randens.training import Recipe, load_recipe
from randens.training.train import plan as training_plan

ATTACK_PASSES = 50
"""Forward and backward passes of a member on an image under ARC-R with 20 steps, about."""
_WEIGHT_COPIES = 6
"""Weights, their average, momentum, the best checkpoint, the checkpoint being written, the ensemble."""


@dataclass(frozen=True)
class Planned:
    """A run that the tables need: its folder's name, the file of its recipe, and the settings that change it."""

    wanted: Wanted
    name: str
    file: str
    settings: tuple[str, ...] = ()

    @property
    def first(self) -> str | None:
        """The folder of the adversarially trained network that the run begins with; None for AT itself."""
        if self.wanted.method == "at":
            return None
        return self.name.rsplit(f"-{self.wanted.method}", 1)[0] + "-at"

    def load(self, settings: Sequence[str] = ()) -> Recipe:
        """The recipe with further settings."""
        return load_recipe(self.file, [*self.settings, *settings])

    def command(self, runs: Path, settings: Sequence[str] = ()) -> str:
        """What to type to get the run."""
        first = [] if self.first is None else [f"first={runs / self.first}"]
        changed = [word for setting in (*self.settings, *settings, *first) for word in ("--set", setting)]
        return shlex.join(["randens", "train", self.file, "--out", str(runs / self.name), *changed])


@dataclass(frozen=True)
class Scale:
    """What replaces the paper's data and networks, and how α is chosen by default."""

    networks: tuple[str, ...]
    data: tuple[str, ...]
    alpha: str
    about: str
    planned: Callable[[Wanted], Planned]
    names: Names


def plan(scale: str, only: Sequence[str] = ()) -> tuple[Planned, ...]:
    """Every run that a scale needs, first members first; `only`: those whose names begin with one of these."""
    chosen = SCALES[scale]
    wanted = [Wanted(d, n, m) for d in chosen.data for n in chosen.networks for m in ("at", *METHODS)]
    runs = [chosen.planned(each) for each in (*wanted, Wanted("cifar10", "resnet20", "barre-arc"))]
    if not only:
        return tuple(runs)
    for start in only:
        if not any(run.name.startswith(start) for run in runs):
            unknown("run", start, [run.name for run in runs])
    named = [run for run in runs if run.name.startswith(tuple(only))]
    firsts = {run.first for run in named}
    return tuple(run for run in runs if run in named or run.name in firsts)


def check(runs: Sequence[Planned], folder: Path, device: str, settings: Sequence[str] = ()) -> None:
    """Refuse to begin what could not be finished: recipes, data, device, and space for weights and witnesses."""
    pick_device(device)
    present, recipes = data.present(), [run.load(settings) for run in runs]
    if absent := sorted({recipe.data.name for recipe in recipes if not present.get(recipe.data.name)}):
        fetch = " && ".join(f"randens data fetch {name}" for name in absent)
        raise InputError(f"the data sets {', '.join(absent)} are not here; first: {fetch}")
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    weights = sum(recipe.members * p.numel() for recipe in recipes for p in network(recipe).parameters())
    free, needed = shutil.disk_usage(existing).free, 4 * weights * _WEIGHT_COPIES
    if free < needed:
        raise InputError(f"runs needs about {needed / 1e9:.1f} GB; {existing} has {free / 1e9:.1f} GB")


def hours(run: Planned, device: str, settings: Sequence[str] = ()) -> tuple[float, float]:
    """Hours to train a run and to measure it, at the speed of the device just now."""
    recipe, where = run.load(settings), pick_device(device)
    sizes, members, planned = data.entry(recipe.data.name).sizes, recipe.members, training_plan(recipe)
    held = planned.validations * planned.held + planned.choices * planned.chosen_on
    # All members at two α, each alone, the attacks of Table 5, and the choice of α on validation data.
    measured = (2 + members + 6) * sizes["test"] + 10 * sizes["validation"]
    rate = _passes_per_second(recipe, where)
    training, measuring = (
        images * members * (ATTACK_PASSES / rate + _own_work(recipe, attack, where))
        for images, attack in ((held, recipe.validation.attack), (measured, "arc-r"))
    )
    return (2 * (planned.crafting + planned.training) / rate + training) / 3600, measuring / 3600


def network(recipe: Recipe) -> torch.nn.Module:
    """One member of a recipe."""
    known, part = data.entry(recipe.data.name), recipe.model
    return models.create(part.name, classes=len(known.classes), input_shape=known.shape, **part.sizes)


def _own_work(recipe: Recipe, name: str, where: torch.device) -> float:
    """Seconds that an attack takes per image and member besides passes: all that it takes with tiny networks."""
    known = data.entry(recipe.data.name)
    shape: Any = {"classes": len(known.classes), "input_shape": known.shape, "width": 8}
    rec = RandomizedEnsemble([models.create("mlp", seed=seed, **shape) for seed in (0, 1)]).to(where)
    x, begun = torch.rand(64, *known.shape, device=where), time.perf_counter()
    attacks.create(name, recipe.threat.build())(rec, x, rec(x).argmax(dim=1))
    return (time.perf_counter() - begun) / (len(x) * len(rec))


def _passes_per_second(recipe: Recipe, where: torch.device) -> float:
    member = network(recipe).to(where).eval()
    x = torch.rand(64, *data.entry(recipe.data.name).shape, device=where, requires_grad=True)
    member(x).sum().backward()
    begun, passes = time.perf_counter(), 0
    while time.perf_counter() - begun < 0.2:
        float(torch.autograd.grad(member(x).sum(), x)[0].sum())
        passes += 2 * len(x)
    return passes / (time.perf_counter() - begun)


_DIGITS_NETWORKS: dict[str, dict[str, Any]] = {
    "resnet20": {"name": "convnet", "width": 8, "hidden": 32},
    "mobilenetv1": {"name": "mlp", "width": 64},
    "resnet18": {"name": "convnet", "width": 16, "hidden": 64},
}
_DIGITS = "paper/reproduce/digits.toml"
_DIGITS_EPS = {"cifar10": 0.1, "cifar100": 0.15}
_DIGITS_NAMES = Names(
    {
        network: f"{model['name']} {model['width']} (for {paper()['networks'][network]})"
        for network, model in _DIGITS_NETWORKS.items()
    },
    {name: f"ε = {eps:g} (for {paper_names().data[name]})" for name, eps in _DIGITS_EPS.items()},
)


def _digits(wanted: Wanted) -> Planned:
    model = _DIGITS_NETWORKS[wanted.network]
    arc = wanted.method == "barre-arc"
    most = paper()["best"][wanted.network]["barre"]["members"]
    # Figure 4 compares the second members of two runs, after every epoch.
    in_figure4 = wanted in [Wanted("cifar10", "resnet20", method) for method in ("barre", "barre-arc")]
    settings = {
        "method": "barre" if arc else wanted.method,
        "members": {"at": 1, "barre-arc": 2}.get(wanted.method, most),
        "threat.eps": _DIGITS_EPS[wanted.data],
        **{f"model.{key}": value for key, value in model.items()},
        **({"adversary.name": "arc", "adversary.loss": "cross-entropy"} if arc else {}),
        **({"validation.attack": "arc-r", "validation.every": 1} if in_figure4 else {}),
    }
    name = f"digits-{_DIGITS_EPS[wanted.data]:g}-{model['name']}{model['width']}-{wanted.method}"
    return Planned(wanted, name, _DIGITS, tuple(f"{key}={value}" for key, value in settings.items()))


def _cifar(folder: str, wanted: Wanted) -> Planned:
    name = f"{wanted.data}-{wanted.network}-{wanted.method}"
    file = f"recipes/{folder}/{name.removesuffix('-arc')}.toml"
    arc = ("members=2", "adversary.name=arc", "adversary.loss=cross-entropy", "validation.attack=arc-r")
    return Planned(wanted, name, file, arc if wanted.method == "barre-arc" else ())


SCALES: dict[str, Scale] = {
    "digits": Scale(
        networks=tuple(_DIGITS_NETWORKS),
        data=DATA,
        alpha="careful",
        about=(
            "Small networks and images replace large ones: convolutional networks of 8 and 16 channels for ResNet-20 "
            "and ResNet-18, a perceptron for MobileNetV1; 8×8 digits at ε = 0.1 for CIFAR-10 at 8/255, and at ε = 0.15 "
            "for CIFAR-100; eight epochs for a hundred, PGD-4 with warm-up, a cyclic learning rate, averaged weights "
            "(0.95), checkpoints by adaptive PGD (for Figure 4 by ARC-R). Ensembles are as large as the paper's. What "
            "can be compared is the order of the methods and the effect of size and attack, not the numbers' level."
        ),
        planned=_digits,
        names=_DIGITS_NAMES,
    ),
    "cpu": Scale(
        networks=("resnet20",),
        data=("cifar10",),
        alpha="careful",
        about="ResNet-20 on CIFAR-10 by the recipes of `recipes/cpu`, made for two CPU cores; nothing else.",
        planned=partial(_cifar, "cpu"),
        names=paper_names(),
    ),
    **{
        name: Scale(
            networks=NETWORKS,
            data=DATA,
            alpha="osp",
            about=f"The paper's networks, data, number of members and training, as {source}.",
            planned=partial(_cifar, name),
            names=paper_names(),
        )
        for name, source in {"paper": "its text says", "released": "its authors' program has them"}.items()
    },
}
