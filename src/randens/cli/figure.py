"""`randens figure`: draw one figure of a run, for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from randens.cli import choices, names
from randens.cli.output import Json, show


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help=f"One of: {', '.join(names.FIGURES)}.", autocompletion=names.starting(names.FIGURES)
        ),
    ],
    run: choices.RunFolder,
    output: Annotated[
        Path | None, typer.Option(help="A .png, .svg or .pdf file; NAME.pdf in the run folder by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw the figure NAME of RUN as PNG, SVG or PDF.

    The data are the results of evaluate, train and report --measure in the
    run folder.

    Example: randens figure landscape runs/quickstart-1 --output landscape.svg
    """
    from randens.report import write_figure

    path = write_figure(name, run, output)
    show({"figure": path, "bytes": path.stat().st_size}, as_json, [f"Written to {path}."])
