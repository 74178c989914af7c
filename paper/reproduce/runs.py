"""The paper's experiments, at three scales: on digits within minutes, on CIFAR-10 with two cores, and as published.

At the digits scale everything missing is trained here. At the others runs take hours to weeks: what is there is
measured, and what is missing is listed with the command that makes it, unless training is asked for.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paper.reproduce.figures import figure1, figure4, points, save
from paper.reproduce.measure import Measured, Settings, measure
from paper.reproduce.tables import (
    DATA,
    METHODS,
    NETWORKS,
    Names,
    Table,
    Wanted,
    paper,
    paper_names,
    tables,
)
from randens import zoo
from randens.core.errors import InputError, unknown
from randens.core.files import write_atomic, write_json
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.training import Recipe, load_recipe, train

__all__ = ["SCALES", "Missing", "Planned", "Reproduction", "plan", "reproduce"]

_CURVES = {"barre-pgd": "trained with APGD", "barre-arc": "trained with ARC"}
_FORMAT = "randens-reproduction-2"


_PAGE = Path(__file__).with_name("page.md").read_text(encoding="utf-8")


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
            return f"python -m paper.reproduce --scale {scale} --runs {shlex.quote(str(runs))} --train"
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
    """Tables and figures, the missing runs, and the cost."""

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
            "figure4": {name: [list(p) for p in curve] for name, curve in self.curves.items()},
            "missing": [vars(m) for m in self.missing],
            "settings": vars(self.settings),
            "budget": self.budget,
            "seconds": self.seconds,
            "figures": [path.name for path in self.figures],
        }

    def markdown(self) -> str:
        """All of it as one page."""
        lines = [f"# The paper's tables at the {self.scale} scale", "", *self._body()]
        for path in self.figures:
            lines += [f"![{path.stem}]({path.name})", ""]
        return "\n".join([*lines, *self._budget_lines(), *self._missing_lines()])

    def page(self) -> str:
        """The page of the documentation: how to call the command, then its results at this scale."""
        return "\n".join(
            [_PAGE, *self._body(), *self._curve_lines(), *self._budget_lines(), *self._missing_lines()]
        )

    def _body(self) -> list[str]:
        lines = [
            f"Made by `python -m paper.reproduce --scale {self.scale}`; no number is typed by hand. {self.stand_ins}",
            "",
            f"Attack: {self.settings.attack}. Each cell: ours (the paper's), accuracies in per cent; – where a run is "
            "missing. Robust accuracies are pointwise worst cases over the attacks on the ensemble and on each member, "
            "on test data. One rule for α in all tables: cutting planes on validation data under the same attack, for "
            "every method and size; only † and Table 5 sample with equal probabilities, as the paper does.",
            "",
            *self.findings(),
            "",
        ]
        for table in self.tables:
            lines += [f"## {table.title}", "", table.markdown(), ""]
        return lines

    def latex(self) -> str:
        """The tables in LaTeX, in the paper's layout; needs booktabs and multirow."""
        return "\n\n".join(table.latex() for table in self.tables) + "\n"

    def findings(self) -> list[str]:
        """What the tables say, in numbers that are computed from them."""
        # Here, for the package is imported by `python -m paper.reproduce.noise`, too.
        from paper.reproduce.noise import noise

        best = self.tables[0]
        robust = [i for i, (_, name) in enumerate(best.columns) if name == "A_rob"]
        rows = {row.labels[:2]: row for row in best.rows}
        said = []
        for other in ("AT", "IAT", "MRBoost-R"):
            ahead = [
                (row.cells[i].ours or 0.0) - (rival.cells[i].ours or 0.0)
                for (network, method), row in rows.items()
                if method == "BARRE" and (rival := rows.get((network, other))) is not None
                for i in robust
                if row.cells[i].ours is not None and rival.cells[i].ours is not None
            ]
            if ahead:
                listed = ", ".join(f"{value:+.1f}" for value in ahead)
                said.append(
                    f"- BARRE − {other}, robust accuracy: {listed}; mean {sum(ahead) / len(ahead):+.1f} points."
                )
        said += self._later_members()
        n = max((spent["inputs"] for spent in self.budget["runs"].values()), default=0)
        if said:
            sampling = 100 * 1.96 * (0.5 / n) ** 0.5
            text = f"- With {n:,} test images the difference of two accuracies is known to ±{sampling:.0f} points."
            said.append(f"{text} {noise().sentence}" if self.scale == "digits" else text)
        return said

    def _later_members(self) -> list[str]:
        """How BARRE's last member compares with the first, alone: here and in the paper."""
        ours, theirs = [], []
        for table in (t for t in self.tables if t.name in ("table3", "table4")):
            robust = [i for i, (_, name) in enumerate(table.columns) if name == "A_rob"]
            for row in (row for row in table.rows if row.labels[1] == "BARRE"):
                cells = [row.cells[i] for i in robust]
                measured = [cell.ours for cell in cells if cell.ours is not None]
                printed = [cell.paper for cell in cells if cell.paper is not None]
                if len(measured) > 1:
                    ours.append(measured[-1] - measured[0])
                    theirs.append(printed[-1] - printed[0])
        if not ours:
            return []
        return [
            f"- BARRE's last member alone minus the first, robust accuracy: {', '.join(f'{v:+.1f}' for v in ours)} "
            f"(the paper's {', '.join(f'{v:+.1f}' for v in theirs)}). Each member continues the training of the one "
            "before it, so where this is positive, part of BARRE's lead is longer training."
        ]

    def _curve_lines(self) -> list[str]:
        """Figure 4 as a table: both runs have the same first member and the same validation after every epoch."""
        if len(self.curves) < 2:
            return []
        names = list(self.curves)
        lines = [
            "## Figure 4. BARRE's second member by training attack, the pair on validation data",
            "",
            "| epoch | " + " | ".join(f"{name}: A_nat | A_rob" for name in names) + " |",
            "|---|" + "---:|" * (2 * len(names)),
        ]
        for pair in zip(*self.curves.values(), strict=False):
            shares = " | ".join(f"{100 * natural:.2f} | {100 * robust:.2f}" for _, natural, robust in pair)
            lines.append(f"| {pair[0][0]} | {shares} |")
        without, with_arc = (np.mean([point[1:] for point in self.curves[name]], axis=0) for name in names)
        natural, robust = 100 * (with_arc - without)
        return [
            *lines,
            "",
            f"ARC minus APGD, mean over the epochs: natural {natural:+.1f}, robust {robust:+.1f} points. In the paper "
            "ARC gives the higher natural and the lower robust accuracy.",
            "",
        ]

    def _budget_lines(self) -> list[str]:
        lines = [
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
        return [
            *lines,
            "",
            "The paper trains 100 epochs per member with PGD-10 and attacks 10,000 test images.",
            "",
        ]

    def _missing_lines(self) -> list[str]:
        if not self.missing:
            return []
        return ["## Missing runs", "", *(f"- {m.name}: `{m.command}`" for m in self.missing), ""]


@dataclass(frozen=True)
class _Scale:
    """What replaces the paper's data and networks, and where runs come from."""

    networks: tuple[str, ...]
    data: tuple[str, ...]
    trains: bool
    stand_ins: str
    planned: Callable[[Wanted], Planned]
    names: Names
    zoo: dict[str, str] = field(default_factory=dict)


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
    device: str = "auto",
    seed: int = 0,
    names: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Regenerate the paper's tables from the run folders below `runs` (None: runs/<scale>).

    training: train what is missing; by default only at the digits scale. limit: the number of test inputs. device:
    where members are trained and attacked. names: train these runs only (None: all); the others are used if they are
    there. Writes reproduction.md, reproduction.tex, reproduction.json and the figures into `runs`. Interrupted, the
    same call continues.
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
        if trains and (names is None or run.name in names) and not _finished(folder / run.name):
            _train(run, folder, seed, device, _named(run.name, report))
        if not _finished(folder / run.name) and run.name in chosen.zoo:
            _take(chosen.zoo[run.name], folder / run.name)
        if not _finished(folder / run.name):
            missing.append(Missing(run.name, run.command(folder, scale)))
            continue
        # Table 5 is about CIFAR-10 alone.
        how = settings if run.wanted.data == "cifar10" else replace(settings, compare=False)
        found[run.wanted] = measure(Run.open(folder / run.name), how, _named(run.name, report), device=device)
    report("runs", len(planned), len(planned))
    curves = {
        text: found[Wanted("cifar10", "resnet20", method)]
        for method, text in _CURVES.items()
        if Wanted("cifar10", "resnet20", method) in found
    }
    result = Reproduction(
        scale=scale,
        stand_ins=chosen.stand_ins,
        tables=tables(found, chosen.networks, chosen.names),
        figure1=points(found, chosen.networks),
        curves={name: list(have.curve) for name, have in curves.items()},
        missing=tuple(missing),
        settings=settings,
        budget=_budget({p.name: found[p.wanted] for p in planned if p.wanted in found}),
        seconds=time.perf_counter() - begun,
        folder=folder,
        figures=(
            save(figure1(found, chosen.networks, "Cost and robustness (Figure 1)"), folder / "figure1.png"),
            save(
                figure4(curves, "BARRE's second member by training attack (Figure 4)"), folder / "figure4.png"
            ),
        ),
    )
    write_json(folder / "reproduction.json", result.to_json())
    write_atomic(folder / "reproduction.md", result.markdown().encode())
    write_atomic(folder / "reproduction.tex", result.latex().encode())
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


def _train(run: Planned, folder: Path, seed: int, device: str, progress: Progress) -> None:
    """Train a run, or continue it. Every method begins with the same adversarially trained network."""
    recipe = load_recipe(run.file, run.settings) if run.recipe is None else run.recipe
    changes: dict[str, Any] = {"seed": seed}
    if run.shares_first:
        changes["first"] = str(folder / first_name(run))
    # A recipe's own device is meant for a machine that has it; what was asked for comes first.
    if device != "auto":
        recipe = recipe.with_settings([f"device={device}"])
    train(recipe.model_copy(update=changes), folder / run.name, progress=progress)


def _finished(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "ensemble" / "ensemble.json").is_file()


def _take(entry: str, folder: Path) -> None:
    """Copy an entry of the zoo to where the run would be, if this installation has it with its members."""
    if not folder.exists() and entry in zoo.names() and (zoo.path(entry) / "ensemble").is_dir():
        zoo.copy(entry, folder)


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
    "resnet18": {"name": "convnet", "width": 16, "hidden": 64},
}
_DIGITS_EPS = {"cifar10": 0.1, "cifar100": 0.15}


def _digits(wanted: Wanted) -> Planned:
    model = _DIGITS_NETWORKS[wanted.network]
    curve = wanted.method in _CURVES
    method = "barre" if curve else wanted.method
    most = paper()["best"][wanted.network]["barre"]["members"]
    members = {"at": 1, "barre-pgd": 2, "barre-arc": 2}.get(wanted.method, most)
    recipe = Recipe.model_validate(
        {
            "method": method,
            "members": members,
            "epochs": 8,
            "batch_size": 64,
            "ema": 0.95,
            "model": model,
            "data": {"name": "digits"},
            "threat": {"norm": "linf", "eps": _DIGITS_EPS[wanted.data]},
            "adversary": {
                "name": "arc" if wanted.method == "barre-arc" else "pgd",
                "steps": 4,
                "warmup": 2,
                "start": 0.5,
                "loss": "cross-entropy" if wanted.method == "barre-arc" else "mce",
            },
            "optimizer": {"lr": 0.1},
            # α while training as in recipes/paper; that of the tables is chosen when they are measured.
            "sampling": {"method": "osp", "rule": "released", "floor": 0.0, "every": 4},
            "validation": {
                "attack": "arc-r" if curve else "adaptive-pgd-s",
                "steps": 10,
                "every": 1 if curve else 2,
            },
        }
    )
    eps = f"{_DIGITS_EPS[wanted.data]:g}"
    name = f"digits-{eps}-{model['name']}{model['width']}-{wanted.method}"
    return Planned(wanted, name, recipe, shares_first=wanted.method != "at")


_DIGITS_NAMES = Names(
    {
        network: f"{model['name']} {model['width']} (for {paper()['networks'][network]})"
        for network, model in _DIGITS_NETWORKS.items()
    },
    {data: f"ε = {eps:g} (for {paper_names().data[data]})" for data, eps in _DIGITS_EPS.items()},
)


# ---- CIFAR -----------------------------------------------------------------------------------------------------------


def _cifar(folder: str) -> Callable[[Wanted], Planned]:
    def planned(wanted: Wanted) -> Planned:
        base = "barre" if wanted.method in _CURVES else wanted.method
        settings: tuple[str, ...] = ()
        if wanted.method in _CURVES:
            attack = "arc" if wanted.method == "barre-arc" else "pgd"
            settings = ("members=2", f"adversary.name={attack}", "validation.attack=arc-r")
            if attack == "arc":
                settings += ("adversary.loss=cross-entropy",)
        return Planned(
            wanted,
            f"{wanted.data}-{wanted.network}-{wanted.method}",
            file=f"recipes/{folder}/{wanted.data}-{wanted.network}-{base}.toml",
            settings=settings,
            shares_first=wanted.method != "at",
        )

    return planned


SCALES: dict[str, _Scale] = {
    "digits": _Scale(
        networks=tuple(_DIGITS_NETWORKS),
        data=DATA,
        trains=True,
        stand_ins=(
            "Small networks and images replace large ones: convolutional networks of 8 and 16 channels for ResNet-20 "
            "and ResNet-18, a perceptron for MobileNetV1; 8×8 digits at ε = 0.1 for CIFAR-10 at 8/255, and at ε = 0.15 "
            "for CIFAR-100; eight epochs for a hundred. Ensembles are as large as the paper's. What can be compared is "
            "the order of the methods and the effect of size and attack, not the level of the numbers."
        ),
        planned=_digits,
        names=_DIGITS_NAMES,
    ),
    "cpu": _Scale(
        networks=("resnet20",),
        data=("cifar10",),
        trains=False,
        stand_ins=(
            "ResNet-20 on CIFAR-10 by the recipes of `recipes/cpu`, made for two CPU cores: up to three members, 12 "
            "epochs each, and 3 or 4 for the later ones of BARRE and MRBoost. What is not below `--runs` is taken from "
            "the zoo, where that has it. CIFAR-100 and the other networks are left out."
        ),
        planned=_cifar("cpu"),
        names=paper_names(),
        zoo={
            "cifar10-resnet20-at": "cifar10-resnet20-at",
            "cifar10-resnet20-barre": "cifar10-resnet20-barre-m3",
        },
    ),
    "paper": _Scale(
        networks=NETWORKS,
        data=DATA,
        trains=False,
        stand_ins="The paper's own networks, data, number of members and training.",
        planned=_cifar("paper"),
        names=paper_names(),
    ),
}
