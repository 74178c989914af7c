"""`randens explore`: a page with the risk landscape of given numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from randens.cli import choices
from randens.cli.output import Json, show


def explore(
    risks: Annotated[
        list[str] | None, typer.Argument(help="The members' adversarial risks, e.g. 0.42 0.45 0.5.")
    ] = None,
    conflict: Annotated[
        float, typer.Option(help="1: a perturbation fools one member only; 0: all that can be fooled.")
    ] = 1.0,
    configuration: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of risks: a weight and the sets that can be fooled, e.g. '0.6: 10 01'; repeatable."
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("explore.html"),
    as_json: Json = False,
) -> None:
    """Write an interactive page that draws the risk over all probabilities for RISKS or configurations.

    Example: randens explore 0.2 0.45 --output landscape.html
    """
    from randens.report import write_explorer

    numbers = [choices.number("risks", text) for text in risks or []]
    path = write_explorer(
        output,
        member_risks=[n for n in numbers if n is not None],
        conflict=conflict,
        configurations=configuration,
    )
    document = {"page": path, "bytes": path.stat().st_size}
    show(document, as_json, [f"Written to {path}; open it in a browser."])
