"""`randens report`: one self-contained page about one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from randens.cli import choices, names
from randens.cli.output import console, show
from randens.cli.progress_bars import bars
from randens.core.errors import unknown


@choices.asked(choices.InputOptions)
def report(
    case: choices.InputOptions,
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders; the first is the subject, the others are compared with it."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Where the page goes; report.html of the first run by default.")
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            help=f"Draw this figure of the first run, as .png, .svg or .pdf. One of: {', '.join(names.FIGURES)}.",
            autocompletion=names.starting(names.FIGURES),
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="First attack for what the page shows beyond an evaluation: radii, attacks, pictures.",
        ),
    ] = False,
) -> None:
    """Write a page about RUNS that opens in any browser without a network, or draw one of its figures.

    It shows the results of evaluate, sample, audit and train in the run
    folders, and names the commands for missing results. All options except
    --output and --json are for --measure, which uses as many inputs as
    evaluation.json, or 200.

    Example: randens report runs/quickstart-1 runs/quickstart-1/at --output
    comparison.html
    """
    from randens.models import pick_device
    from randens.report import FIGURES, write_figure
    from randens.report import measure as run_measure
    from randens.report.from_store import read_runs
    from randens.report.page import write_page
    from randens.report.verdicts import verdicts

    if figure is not None and figure not in FIGURES:
        unknown("figure", figure, FIGURES)
    if measure:
        for run in runs:
            subject = case.subject(run)
            subject.rec.to(pick_device(case.device))
            store = subject.store(fresh=case.fresh, verify=case.verify)
            known = subject.evaluation()
            fitting = known is not None and known.split == case.split
            inputs = subject.load(
                case.split, case.limit or (known.n if known is not None and fitting else 200)
            )
            with bars() as progress:
                found = run_measure(
                    subject.rec, inputs, subject.threat, folder=store, seed=case.seed, progress=progress
                )
            if not found.save(subject.run) and not case.as_json:
                console().print(f"{run} keeps its measurements on more inputs.", markup=False)
    if figure is not None:
        drawn = write_figure(figure, runs[0], output)
        show({"figure": drawn, "bytes": drawn.stat().st_size}, case.as_json, [f"Written to {drawn}."])
        return
    loaded = read_runs(runs)
    path, said = write_page(loaded, output), verdicts(loaded)
    document = {"report": path, "bytes": path.stat().st_size, "runs": runs, "verdicts": said}
    show(document, case.as_json, [*said, f"Written to {path}; open it in a browser."])
