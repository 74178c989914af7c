"""`randens report`: one self-contained page about one run or several, or one of its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from randens.cli.choices import Json, show
from randens.core.errors import unknown


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS", help="Run folders; the others are compared with the first."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Where the page goes; report.html of the first run by default.")
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(
            help="Draw only this figure of the first run, as .png, .svg or .pdf: attempts, compute, landscape, radius, "
            "sets or training."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an HTML page about RUNS that opens in any browser without a network, or draw one of its figures.

    It shows what other commands found (evaluate, sample, advise, audit,
    certify; evaluate --eps 0:16/255:9 for the curve) and names what is missing.

    Example: randens report runs/quickstart-1 runs/quickstart-1/at
    """
    from randens.report import FIGURES, write_figure
    from randens.report.page import write_page
    from randens.report.runs import load_runs, verdicts

    if figure is not None and figure.lower() not in FIGURES:
        unknown("figure", figure, FIGURES)
    if figure is not None:
        drawn = write_figure(figure.lower(), runs[0], output)
        show({"figure": drawn, "bytes": drawn.stat().st_size}, as_json, [f"Written to {drawn}."])
        return
    loaded = load_runs(runs)
    path, sentences = write_page(loaded, output), verdicts(loaded)
    problems = [problem for one in loaded for problem in one.problems.values()]
    document = {"report": path, "bytes": path.stat().st_size, "runs": runs, "verdicts": sentences}
    lines = [*sentences, *(f"Not shown: {problem}" for problem in problems)]
    show({**document, "problems": problems}, as_json, [*lines, f"Written to {path}; open it in a browser."])
