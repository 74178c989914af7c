"""`randens report`: one self-contained page about one run or several, or one of its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from randens.cli import choices
from randens.cli.choices import open_case
from randens.cli.output import Json, show
from randens.core.errors import unknown
from randens.core.progress import bars


def report(
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
            help="Draw only this figure of the first run, as .png, .svg or .pdf; a wrong name lists them."
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="First attack for what the page shows beyond an evaluation: radii, attacks, pictures.",
        ),
    ] = False,
    limit: choices.Limit = None,
    device: choices.Device = "auto",
    as_json: Json = False,
) -> None:
    """Write an HTML page about RUNS that opens in any browser without a network, or draw one of its figures.

    --limit and --device are for --measure, which uses as many test inputs as
    evaluation.json, or 200.

    Example: randens report runs/quickstart-1 runs/quickstart-1/at
    """
    from randens.report import FIGURES, write_figure
    from randens.report.load import load_runs
    from randens.report.page import write_page
    from randens.report.verdicts import verdicts

    if figure is not None and figure.lower() not in FIGURES:
        unknown("figure", figure, FIGURES)
    for run in runs if measure else ():
        _measure(run, limit, device)
    if figure is not None:
        drawn = write_figure(figure.lower(), runs[0], output)
        show({"figure": drawn, "bytes": drawn.stat().st_size}, as_json, [f"Written to {drawn}."])
        return
    loaded = load_runs(runs)
    path, sentences = write_page(loaded, output), verdicts(loaded)
    document = {"report": path, "bytes": path.stat().st_size, "runs": runs, "verdicts": sentences}
    show(document, as_json, [*sentences, f"Written to {path}; open it in a browser."])


def _measure(run: Path, limit: int | None, device: str) -> None:
    from randens.core.devices import on_device
    from randens.data import as_data
    from randens.ensemble import load
    from randens.evaluation import Evaluation
    from randens.report import measure

    case = open_case(str(run))
    assert case.run is not None
    known = case.run.path / "evaluation.json"
    n = limit or (Evaluation.load(known).n if known.is_file() else 200)
    rec, data = load(case.run.ensemble), as_data(case.data, split="test", limit=n)
    with on_device(rec, device), bars() as progress:
        measure(rec, data, case.threat, folder=case.store, progress=progress).save(case.run)
