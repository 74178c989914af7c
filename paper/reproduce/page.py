"""`reproduce`: train what is missing, measure what is there, and put it into the paper's tables and figures."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paper.reproduce.figures import figure1, figure4, points, save
from paper.reproduce.findings import findings
from paper.reproduce.measure import ALPHA, Measured, Settings, measure
from paper.reproduce.plan import Planned, check, plan, scale_named
from paper.reproduce.tables import Table, Wanted, tables
from randens.core.errors import InputError, unknown
from randens.core.files import Plain, write_atomic, write_json
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.training import train

_CURVES = {"barre": "trained with APGD", "barre-arc": "trained with ARC"}


@dataclass(frozen=True)
class Reproduction(Plain):
    """Tables and figures, what they say, the missing runs with the commands that make them, and the cost."""

    scale: str
    about: str
    tables: tuple[Table, ...]
    findings: tuple[str, ...]
    figure1: dict[str, list[dict[str, Any]]]
    curves: dict[str, tuple[tuple[int, float, float], ...]]
    missing: dict[str, str]
    settings: Settings
    budget: dict[str, dict[str, int]]
    seconds: float
    figures: tuple[str, ...]

    def markdown(self) -> str:
        """All of it as one page."""
        lines = [
            f"# The paper's tables at the {self.scale} scale",
            "",
            f"Made by `python -m paper.reproduce --scale {self.scale}`; no number is typed by hand. {self.about}",
            "",
            f"Attack: {self.settings.attack}; α chosen on validation data by the rule `{self.settings.alpha}`, for "
            "every method and size; only † and Table 5 sample uniformly, as the paper does. Each cell: ours (the "
            "paper's), accuracies in percent; – where a run is missing; ‡ where one member has all the weight. Robust "
            "accuracies are pointwise worst cases over the attacks on the ensemble and on each member, on test data. "
            "Every run has one seed, so the intervals (95 %) are over the images alone.",
            "",
            *self.findings,
            "",
        ]
        for table in self.tables:
            lines += [f"## {table.title}", "", table.markdown(), ""]
        for name in self.figures:
            lines += [f"![{Path(name).stem}]({name})", ""]
        lines += ["## Budget", ""]
        lines.append("| run | members | epochs | test inputs | passes to train | passes to measure |")
        lines.append("|---|---:|---:|---:|---:|---:|")
        for name, spent in self.budget.items():
            lines.append(f"| {name} | " + " | ".join(f"{number:,}" for number in spent.values()) + " |")
        lines += [
            "",
            "The paper trains 100 epochs per member with PGD-10 and attacks 10,000 test images.",
            "",
        ]
        if self.missing:
            missing = (f"- {name}: `{how}`" for name, how in self.missing.items())
            lines += ["## Missing runs", "", *missing, ""]
        return "\n".join(lines)

    def latex(self) -> str:
        """The tables in LaTeX, in the paper's layout; needs booktabs and multirow."""
        return "\n\n".join(table.latex() for table in self.tables) + "\n"


def reproduce(
    scale: str,
    runs: str | os.PathLike[str] | None = None,
    *,
    training: bool | None = None,
    only: Sequence[str] = (),
    settings: Sequence[str] = (),
    attack: str = "arc-r",
    alpha: str | None = None,
    limit: int | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> Reproduction:
    """Regenerate the paper's tables from the run folders below `runs` (None: runs/<scale>).

    training: train what is missing, by default only at the digits scale. only: runs whose names begin so. settings:
    ``key=value`` for the recipes. alpha: the rule for α, by default the scale's. limit: the number of test inputs.
    Writes reproduction.md, .tex, .json and the figures into `runs`. Interrupted, the same call continues, on another
    device, too.
    """
    begun = time.perf_counter()
    report, chosen = progress or silent, scale_named(scale)
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}; it must be a whole number ≥ 1")
    rule = chosen.alpha if alpha is None else alpha
    if rule not in ALPHA:
        unknown("rule for α", rule, ALPHA)
    folder = Path("runs") / scale if runs is None else Path(runs)
    planned = plan(scale, only)
    how = Settings(attack, rule, limit, seed)
    if chosen.trains if training is None else training:
        unfinished = [run for run in planned if not _finished(folder / run.name)]
        check(unfinished, folder, device, settings)
        for number, run in enumerate(unfinished):
            report("runs to train", number, len(unfinished))
            _train(run, folder, seed, device, settings, _named(run.name, report))
    found: dict[Wanted, Measured] = {}
    missing: dict[str, str] = {}
    for number, run in enumerate(planned):
        report("runs to measure", number, len(planned))
        if not _finished(folder / run.name):
            missing[run.name] = run.command(folder, settings)
            continue
        # Table 5 is about CIFAR-10 alone.
        compare = run.wanted.data == "cifar10"
        ready, settings_ = Run.open(folder / run.name), replace(how, compare=compare)
        found[run.wanted] = measure(ready, settings_, _named(run.name, report), device=device)
    report("runs to measure", len(planned), len(planned))
    curves = {
        text: have.curve
        for method, text in _CURVES.items()
        if (have := found.get(Wanted("cifar10", "resnet20", method))) is not None
    }
    named = {run.name: found[run.wanted] for run in planned if run.wanted in found}
    counted = ("members", "epochs", "n", "training_passes", "measuring_passes")
    result = Reproduction(
        scale=scale,
        about=chosen.about,
        tables=tables(found, chosen.networks, chosen.names),
        findings=(*findings(found, chosen.networks, chosen.names), *_figure4_says(curves)),
        figure1=points(found, chosen.networks),
        curves=curves,
        missing=missing,
        settings=how,
        budget={name: {key: getattr(have, key) for key in counted} for name, have in named.items()},
        seconds=time.perf_counter() - begun,
        figures=("figure1.png", "figure4.png"),
    )
    save(figure1(found, chosen.networks, "Cost and robustness (Figure 1)"), folder / "figure1.png")
    save(figure4(curves, "BARRE's second member by training attack (Figure 4)"), folder / "figure4.png")
    write_json(folder / "reproduction.json", result.to_json())
    write_atomic(folder / "reproduction.md", result.markdown().encode())
    write_atomic(folder / "reproduction.tex", result.latex().encode())
    return result


def _train(
    run: Planned, folder: Path, seed: int, device: str, settings: Sequence[str], progress: Progress
) -> None:
    """Train a run, or continue it. Every method begins with the same adversarially trained network."""
    recipe = run.load([f"seed={seed}", *([] if device == "auto" else [f"device={device}"]), *settings])
    if run.first is not None:
        recipe = recipe.model_copy(update={"first": str(folder / run.first)})
    train(recipe, folder / run.name, progress=progress)


def _finished(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "ensemble" / "ensemble.json").is_file()


def _figure4_says(curves: dict[str, Any]) -> list[str]:
    """Both runs of Figure 4 have the same first member, and the same validation images after every epoch."""
    if len(curves) < 2 or not all(curves.values()):
        return []
    without, with_arc = (np.mean([point[1:] for point in curves[name]], axis=0) for name in _CURVES.values())
    natural, robust = 100 * (with_arc - without)
    text = f"natural {natural:+.1f}, robust {robust:+.1f} points (in the paper higher and lower)"
    return [f"- Second member trained with ARC minus APGD, mean over the epochs, validation data: {text}."]


def _named(name: str, progress: Progress) -> Progress:
    return lambda task, done, total: progress(f"{name}: {task}", done, total)
