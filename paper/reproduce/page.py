"""`reproduce`: train what is missing, measure what is there, and put it into the paper's tables and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paper.reproduce.figures import figure1, figure4
from paper.reproduce.findings import findings
from paper.reproduce.measure import Measured, Settings, measure
from paper.reproduce.plan import SCALES, Planned, check, plan
from paper.reproduce.tables import Found, Wanted, tables
from randens.core.files import read_json, write_atomic
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.training import train

_CURVES = {"barre": "trained with APGD", "barre-arc": "trained with ARC"}


@dataclass(frozen=True)
class Measurements:
    """What was measured at a scale, by the names of the runs: all that the page is made from."""

    scale: str
    settings: Settings
    runs: dict[str, Measured]

    def save(self, path: Path) -> None:
        """Write JSON."""
        write_atomic(path, json.dumps(asdict(self)).encode())

    @staticmethod
    def load(path: Path) -> Measurements:
        """Inverse of `save`."""
        read = read_json(path)
        runs = {name: Measured.from_json(one) for name, one in read["runs"].items()}
        return Measurements(read["scale"], Settings(**read["settings"]), runs)

    @property
    def found(self) -> Found:
        """In the paper's terms."""
        return {run.wanted: self.runs[run.name] for run in plan(self.scale) if run.name in self.runs}

    @property
    def curves(self) -> dict[str, Any]:
        """Figure 4: the second member by epoch, for both training attacks."""
        runs = {text: self.found.get(Wanted("cifar10", "resnet20", how)) for how, text in _CURVES.items()}
        return {text: have.curve for text, have in runs.items() if have is not None}


def page(
    done: Measurements,
    folder: Path | None = None,
    changes: Sequence[str] = (),
    more: Sequence[Measurements] = (),
) -> str:
    """Tables, what they say with `more` seeds of the same runs, missing runs with commands, costs: in Markdown."""
    scale, every = SCALES[done.scale], [done, *more]
    seeds = ", ".join(str(one.settings.seed) for one in every)
    over = f"seeds {seeds} and the images" if more else f"the images alone: every run has one seed ({seeds})"
    lines = [
        f"# The paper's tables at the {done.scale} scale",
        "",
        f"Made by `python -m paper.reproduce --scale {done.scale}`; no number is typed by hand. {scale.about}",
        "",
        f"Attack: {done.settings.attack}; α chosen on validation data by the rule `{done.settings.alpha}`, for every "
        "method and size; only † and Table 5 sample uniformly, as the paper does. Each cell: ours (the paper's), "
        "accuracies in percent; – where a run is missing; ‡ where one member has all the weight. Robust accuracies are "
        "pointwise worst cases over the attacks on the ensemble and on each member, on test data. Tables are of seed "
        f"{done.settings.seed}; the differences that follow have 95 % intervals over {over}.",
        "",
        *findings([one.found for one in every], scale.networks, scale.names),
        *_figure4_says(done.curves),
        "",
    ]
    for table in tables(done.found, scale.networks, scale.names):
        lines += [f"## {table.title}", "", table.markdown(), ""]
    head = "| run | members | epochs | test inputs | passes to train | passes to measure |"
    lines += ["## Budget", "", head, "|---|---:|---:|---:|---:|---:|"]
    for name, one in done.runs.items():
        spent = (one.members, one.epochs, one.n, one.training_passes, one.measuring_passes)
        lines.append(f"| {name} | " + " | ".join(f"{number:,}" for number in spent) + " |")
    lines += ["", "The paper trains 100 epochs per member with PGD-10 and attacks 10,000 test images.", ""]
    if missing := [run for run in plan(done.scale) if run.name not in done.runs]:
        where = folder or Path("runs") / done.scale
        named = (f"- {run.name}: `{run.command(where, changes)}`" for run in missing)
        lines += ["## Missing runs", "", *named, ""]
    return "\n".join(lines)


def reproduce(
    scale: str,
    folder: Path,
    settings: Settings,
    *,
    training: bool,
    only: Sequence[str] = (),
    changes: Sequence[str] = (),
    device: str = "auto",
    progress: Progress | None = None,
) -> Measurements:
    """Regenerate the paper's tables from the run folders below `folder`.

    training: train what is missing. only: runs whose names begin so. changes: ``key=value`` for the recipes. Writes
    reproduction.md, measurements.json and the figures into `folder`. Interrupted, the same call continues, on another
    device, too.
    """
    report, planned = progress or silent, plan(scale, only)
    if training:
        unfinished = [run for run in planned if not _finished(folder / run.name)]
        check(unfinished, folder, device, changes)
        for number, run in enumerate(unfinished):
            report("runs to train", number, len(unfinished))
            _train(run, folder, settings.seed, device, changes, _named(run.name, report))
    runs: dict[str, Measured] = {}
    ready = [run for run in planned if _finished(folder / run.name)]
    for number, run in enumerate(ready):
        report("runs to measure", number, len(ready))
        # Table 5 is about CIFAR-10 alone.
        how = replace(settings, compare=run.wanted.data == "cifar10")
        runs[run.name] = measure(Run.open(folder / run.name), how, _named(run.name, report), device=device)
    done, networks = Measurements(scale, settings, runs), SCALES[scale].networks
    done.save(folder / "measurements.json")
    write_atomic(folder / "reproduction.md", page(done, folder, changes).encode())
    figure1(done.found, networks).savefig(folder / "figure1.png", dpi=150)
    figure4(done.curves).savefig(folder / "figure4.png", dpi=150)
    return done


def _train(
    run: Planned, folder: Path, seed: int, device: str, changes: Sequence[str], progress: Progress
) -> None:
    """Train a run, or continue it. Every method begins with the same adversarially trained network."""
    recipe = run.load([f"seed={seed}", f"device={device}", *changes])
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
