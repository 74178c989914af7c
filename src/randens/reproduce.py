"""The paper's experiments, at three scales: on digits within minutes, on CIFAR-10 with two cores, and as published.

At the digits scale everything missing is trained here. At the others runs take hours to weeks: what is there is
measured, and what is missing is listed with the command that makes it, unless training is asked for.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from randens.errors import InputError, unknown
from randens.evaluation.measuring import Measured, Settings, measure
from randens.evaluation.reproduce import DATA, METHODS, NETWORKS, Table, Wanted, paper, tables
from randens.evaluation.reproduce_figures import figure1, figure5, points, save
from randens.files import write_atomic, write_json
from randens.progress import Progress, silent
from randens.runs import Run
from randens.training import Recipe, load_recipe, train

__all__ = ["SCALES", "Missing", "Planned", "Reproduction", "plan", "reproduce"]

_CURVES = {"barre-pgd": "trained with APGD", "barre-arc": "trained with ARC"}
_FORMAT = "randens-reproduction-1"


@dataclass(frozen=True)
class Planned:
    """A run that the tables need: its folder's name, and either a recipe or the file and settings that make it."""

    wanted: Wanted
    name: str
    recipe: Recipe | None = None
    file: str = ""
    settings: tuple[str, ...] = ()
    shares_first: bool = True

    def command(self, runs: Path, scale: str) -> str:
        """What to type to get the run."""
        if self.recipe is not None:
            return f"randens reproduce --scale {scale} --runs {shlex.quote(str(runs))} --train"
        words = ["randens", "train", self.file, "--out", str(runs / self.name)]
        settings = list(self.settings)
        if self.shares_first:
            settings.append(f"first={runs / first_name(self)}")
        for setting in settings:
            words += ["--set", setting]
        return shlex.join(words)


@dataclass(frozen=True)
class Missing:
    """A run that is not there, or not finished, and the command that makes or continues it."""

    name: str
    command: str


@dataclass(frozen=True)
class Reproduction:
    """Tables and figures, what is missing, and what it took."""

    scale: str
    stand_ins: str
    tables: tuple[Table, ...]
    figure1: dict[str, list[dict[str, Any]]]
    curves: dict[str, list[tuple[int, float, float]]]
    missing: tuple[Missing, ...]
    settings: Settings
    budget: dict[str, Any]
    seconds: float
    folder: Path
    figures: tuple[Path, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {
            "format": _FORMAT,
            "scale": self.scale,
            "stand_ins": self.stand_ins,
            "tables": [table.to_json() for table in self.tables],
            "figure1": self.figure1,
            "figure5": {name: [list(p) for p in curve] for name, curve in self.curves.items()},
            "missing": [vars(m) for m in self.missing],
            "settings": vars(self.settings),
            "budget": self.budget,
            "seconds": self.seconds,
            "figures": [path.name for path in self.figures],
        }

    def markdown(self) -> str:
        """All of it as one page."""
        lines = [
            f"# The paper's tables at the {self.scale} scale",
            "",
            self.stand_ins,
            "",
            f"Attack: {self.settings.attack}. Each cell: ours (the paper's, ours minus the paper's), in per cent; "
            "– where a run is missing. Robust accuracies are pointwise worst cases over the attacks on the ensemble "
            "and on each member, on test data; probabilities and checkpoints were chosen on validation data. The first "
            "member is the same network in all methods, but each run shows it the perturbations found there.",
            "",
        ]
        for table in self.tables:
            lines += [f"## {table.title}", "", table.markdown(), ""]
        for path in self.figures:
            lines += [f"![{path.stem}]({path.name})", ""]
        lines += [
            "## Budget",
            "",
            "| run | members | epochs | test inputs | member passes to train | to measure |",
        ]
        lines.append("|---|---|---|---|---|---|")
        for name, spent in self.budget["runs"].items():
            numbers = (
                spent[k] for k in ("members", "epochs", "inputs", "training_passes", "measuring_passes")
            )
            lines.append(f"| {name} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
        lines += [
            "",
            "The paper trains 100 epochs per member with PGD-10 and attacks 10,000 test images.",
            "",
        ]
        if self.missing:
            lines += ["## Missing runs", ""]
            lines += [f"- {m.name}: `{m.command}`" for m in self.missing]
            lines.append("")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Scale:
    """What stands for the paper's data and networks, and where runs come from."""

    networks: tuple[str, ...]
    data: tuple[str, ...]
    trains: bool
    stand_ins: str
    planned: Callable[[Wanted], Planned]
    label: Callable[[str, str], str]


def plan(scale: str) -> tuple[Planned, ...]:
    """Every run that a scale's tables and figures need, first members first."""
    return tuple(_plan(_scale(scale)))


def first_name(planned: Planned) -> str:
    """The folder of the adversarially trained network that a run begins with."""
    return planned.name.rsplit(f"-{planned.wanted.method}", 1)[0] + "-at"


def reproduce(
    scale: str,
    runs: str | os.PathLike[str] | None = None,
    *,
    training: bool | None = None,
    limit: int | None = None,
    attack: str = "arc-r",
    seed: int = 0,
    progress: Progress | None = None,
) -> Reproduction:
    """Regenerate the paper's tables from the run folders below `runs` (None: runs/<scale>).

    training: train what is missing; by default only at the digits scale. limit: the number of test inputs. Writes
    reproduction.md, reproduction.json and the figures into `runs`. Interrupted, the same call continues.
    """
    begun = time.perf_counter()
    report = silent if progress is None else progress
    chosen = _scale(scale)
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be a whole number ≥ 1")
    folder = Path("runs") / scale if runs is None else Path(runs)
    trains = chosen.trains if training is None else training
    settings = Settings(attack, test=limit, validation=limit, seed=seed)
    found: dict[Wanted, Measured] = {}
    missing: list[Missing] = []
    planned = list(_plan(chosen))
    for number, run in enumerate(planned):
        report("runs", number, len(planned))
        if trains and not _finished(folder / run.name):
            _train(run, folder, seed, _named(run.name, report))
        if not _finished(folder / run.name):
            missing.append(Missing(run.name, run.command(folder, scale)))
            continue
        found[run.wanted] = measure(Run.open(folder / run.name), settings, _named(run.name, report))
    report("runs", len(planned), len(planned))
    curves = {
        text: found[Wanted("cifar10", "resnet20", method)]
        for method, text in _CURVES.items()
        if Wanted("cifar10", "resnet20", method) in found
    }
    result = Reproduction(
        scale=scale,
        stand_ins=chosen.stand_ins,
        tables=tables(found, chosen.networks, chosen.label),
        figure1=points(found, chosen.networks),
        curves={name: list(have.curve) for name, have in curves.items()},
        missing=tuple(missing),
        settings=settings,
        budget=_budget({p.name: found[p.wanted] for p in planned if p.wanted in found}),
        seconds=time.perf_counter() - begun,
        folder=folder,
        figures=(
            save(figure1(found, chosen.networks, "Cost and robustness (Figure 1)"), folder / "figure1.png"),
            save(figure5(curves, "BARRE's second member by training attack"), folder / "figure5.png"),
        ),
    )
    write_json(folder / "reproduction.json", result.to_json())
    write_atomic(folder / "reproduction.md", result.markdown().encode())
    return result


def _plan(scale: _Scale) -> Iterator[Planned]:
    for data in scale.data:
        for network in scale.networks:
            for method in ("at", *METHODS):
                yield scale.planned(Wanted(data, network, method))
    for method in _CURVES:
        yield scale.planned(Wanted("cifar10", "resnet20", method))


def _scale(name: str) -> _Scale:
    if name not in SCALES:
        unknown("scale", name, SCALES)
    return SCALES[name]


def _train(run: Planned, folder: Path, seed: int, progress: Progress) -> None:
    """Train a run, or continue it. Every method begins with the same adversarially trained network."""
    recipe = load_recipe(run.file, run.settings) if run.recipe is None else run.recipe
    changes: dict[str, Any] = {"seed": seed}
    if run.shares_first:
        changes["first"] = str(folder / first_name(run))
    train(recipe.model_copy(update=changes), folder / run.name, progress=progress)


def _finished(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "ensemble" / "ensemble.json").is_file()


def _budget(found: dict[str, Measured]) -> dict[str, Any]:
    runs = {
        name: {
            "members": have.members,
            "epochs": have.epochs,
            "inputs": have.n,
            "training_passes": have.training_passes,
            "training_seconds": have.training_seconds,
            "measuring_passes": have.measuring_passes,
        }
        for name, have in found.items()
    }
    return {
        "runs": runs,
        "training_passes": sum(have.training_passes for have in found.values()),
        "measuring_passes": sum(have.measuring_passes for have in found.values()),
        "training_seconds": sum(have.training_seconds for have in found.values()),
    }


def _named(name: str, progress: Progress) -> Progress:
    return lambda task, done, total: progress(f"{name}: {task}", done, total)


# ---- digits ----------------------------------------------------------------------------------------------------------

_DIGITS_NETWORKS: dict[str, dict[str, Any]] = {
    "resnet20": {"name": "convnet", "width": 8, "hidden": 32},
    "mobilenetv1": {"name": "mlp", "width": 64},
}
_DIGITS_EPS = {"cifar10": 0.1, "cifar100": 0.15}


def _digits(wanted: Wanted) -> Planned:
    model = _DIGITS_NETWORKS[wanted.network]
    curve = wanted.method in _CURVES
    method = "barre" if curve else wanted.method
    members = {"at": 1, "barre-pgd": 2, "barre-arc": 2}.get(wanted.method, 3)
    recipe = Recipe.model_validate(
        {
            "method": method,
            "members": members,
            "epochs": 10,
            "batch_size": 64,
            "ema": 0.95,
            "model": model,
            "data": {"name": "digits"},
            "threat": {"norm": "linf", "eps": _DIGITS_EPS[wanted.data]},
            "adversary": {
                "name": "arc" if wanted.method == "barre-arc" else "pgd",
                "steps": 5,
                "warmup": 2,
            },
            "optimizer": {"lr": 0.1},
            "sampling": {"every": 5},
            "validation": {
                "attack": "arc-r" if curve else "adaptive-pgd-s",
                "steps": 10,
                "every": 1 if curve else 2,
            },
        }
    )
    eps = f"{_DIGITS_EPS[wanted.data]:g}"
    name = f"digits-{eps}-{model['name']}-{wanted.method}"
    return Planned(wanted, name, recipe, shares_first=wanted.method != "at")


def _digits_label(data: str, network: str) -> str:
    model = _DIGITS_NETWORKS[network]["name"]
    return f"{model}, ε = {_DIGITS_EPS[data]:g} (for {paper()['networks'][network]}, {data.upper()})"


# ---- CIFAR -----------------------------------------------------------------------------------------------------------


def _cifar(folder: str) -> Callable[[Wanted], Planned]:
    def planned(wanted: Wanted) -> Planned:
        base = "barre" if wanted.method in _CURVES else wanted.method
        settings: tuple[str, ...] = ()
        if wanted.method in _CURVES:
            attack = "arc" if wanted.method == "barre-arc" else "pgd"
            settings = ("members=2", f"adversary.name={attack}", "validation.attack=arc-r")
        return Planned(
            wanted,
            f"{wanted.data}-{wanted.network}-{wanted.method}",
            file=f"recipes/{folder}/{wanted.data}-{wanted.network}-{base}.toml",
            settings=settings,
            shares_first=wanted.method != "at",
        )

    return planned


def _cifar_label(data: str, network: str) -> str:
    return f"{paper()['networks'][network]}, {data.upper().replace('CIFAR', 'CIFAR-')}"


SCALES: dict[str, _Scale] = {
    "digits": _Scale(
        networks=tuple(_DIGITS_NETWORKS),
        data=DATA,
        trains=True,
        stand_ins=(
            "Small things stand for large ones: a convolutional network of 8 channels for ResNet-20, a perceptron for "
            "MobileNetV1, nothing for ResNet-18; 8×8 digits at ε = 0.1 for CIFAR-10 at 8/255, and at ε = 0.15 for "
            "CIFAR-100; three members for five, ten epochs for a hundred. What can be compared is the order of the "
            "methods and the effect of size and attack, not the level of the numbers."
        ),
        planned=_digits,
        label=_digits_label,
    ),
    "cpu": _Scale(
        networks=("resnet20",),
        data=("cifar10",),
        trains=False,
        stand_ins=(
            "ResNet-20 on CIFAR-10 with three members, trained with a single-step adversary for 15 epochs each: made "
            "for two CPU cores. CIFAR-100 and the other networks are left out."
        ),
        planned=_cifar("cpu"),
        label=_cifar_label,
    ),
    "paper": _Scale(
        networks=NETWORKS,
        data=DATA,
        trains=False,
        stand_ins="The paper's own networks, data, number of members and training.",
        planned=_cifar("paper"),
        label=_cifar_label,
    ),
}
