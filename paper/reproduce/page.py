"""`reproduce`: train what is missing, measure what is there, and put it into the paper's tables and figures."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paper.reproduce.figures import figure1, figure4, points, save
from paper.reproduce.findings import findings
from paper.reproduce.measure import ALPHA, Measured, Settings, measure
from paper.reproduce.plan import Planned, Scale, check, plan, scale_named
from paper.reproduce.tables import Table, Wanted, tables
from randens import zoo
from randens.core.errors import InputError, unknown
from randens.core.files import write_atomic, write_json
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.training import train

_CURVES = {"barre": "trained with APGD", "barre-arc": "trained with ARC"}


@dataclass(frozen=True)
class Reproduction:
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
    folder: Path
    figures: tuple[Path, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        names = ("scale", "about", "findings", "figure1", "curves", "missing", "budget", "seconds")
        return {
            **{name: getattr(self, name) for name in names},
            "tables": [table.to_json() for table in self.tables],
            "settings": asdict(self.settings),
            "figures": [path.name for path in self.figures],
        }

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
            "accuracies are pointwise worst cases over the attacks on the ensemble and on each member, on test data.",
            "",
            *self.findings,
            "",
        ]
        for table in self.tables:
            lines += [f"## {table.title}", "", table.markdown(), ""]
        lines += self._curve_lines()
        for path in self.figures:
            lines += [f"![{path.stem}]({path.name})", ""]
        lines += [
            "## Budget",
            "",
            "| run | members | epochs | test inputs | passes to train | passes to measure |",
        ]
        lines.append("|---|---:|---:|---:|---:|---:|")
        for name, spent in self.budget.items():
            lines.append(f"| {name} | " + " | ".join(f"{number:,}" for number in spent.values()) + " |")
        lines += [
            "",
            "The paper trains 100 epochs per member with PGD-10 and attacks 10,000 test images.",
            "",
        ]
        if self.missing:
            lines += [
                "## Missing runs",
                "",
                *(f"- {name}: `{how}`" for name, how in self.missing.items()),
                "",
            ]
        return "\n".join(lines)

    def latex(self) -> str:
        """The tables in LaTeX, in the paper's layout; needs booktabs and multirow."""
        return "\n\n".join(table.latex() for table in self.tables) + "\n"

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
        text = f"ARC minus APGD, mean over the epochs: natural {natural:+.1f}, robust {robust:+.1f} points."
        return [
            *lines,
            "",
            f"{text} In the paper ARC gives the higher natural and the lower robust accuracy.",
            "",
        ]


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
        _take(chosen, run, folder)
        if not _finished(folder / run.name):
            missing[run.name] = run.command(folder, scale, settings)
            continue
        # Table 5 is about CIFAR-10 alone.
        compare = run.wanted.data == "cifar10"
        ready = Run.open(folder / run.name)
        found[run.wanted] = measure(
            ready, replace(how, compare=compare), _named(run.name, report), device=device
        )
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
        findings=tuple(findings(found, chosen.networks, chosen.names)),
        figure1=points(found, chosen.networks),
        curves=curves,
        missing=missing,
        settings=how,
        budget={name: {key: getattr(have, key) for key in counted} for name, have in named.items()},
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


def _take(scale: Scale, run: Planned, folder: Path) -> None:
    """Copy an entry of the zoo to where the run would be, if there is none."""
    entry = scale.zoo.get(run.name)
    if entry in zoo.names() and not (folder / run.name).exists():
        zoo.copy(entry, folder / run.name)


def _named(name: str, progress: Progress) -> Progress:
    return lambda task, done, total: progress(f"{name}: {task}", done, total)
