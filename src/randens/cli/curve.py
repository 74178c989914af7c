"""`randens curve`: robust accuracy against the radius."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from randens.cli import choices
from randens.cli.output import show


@choices.asked(choices.Evaluating, without=("eps", "settings"))
def curve(
    case: choices.Evaluating,
    eps: Annotated[
        str,
        typer.Option(help="Radii, first:last:count or numbers separated by commas."),
    ] = "0:16/255:9",
    deterministic: Annotated[bool, typer.Option(help="Also attack the mean of all logits.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this PNG, SVG or PDF file.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; curve.json of the run by default.")
    ] = None,
) -> None:
    """Draw robust accuracy against ε for the ensemble of RUN, its members and the deterministic ensemble.

    All radii share one pool of witnesses: a witness at a small radius counts
    at every larger one, so no curve rises.

    Example: randens curve runs/quickstart-1 --eps 0:16/255:5 --limit 50 --plot
    curve.svg
    """
    from randens import evaluation
    from randens.core.errors import InputError
    from randens.core.files import write_json
    from randens.threat import grid

    case.check()
    radii = grid("--eps", eps)
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot is {str(plot)!r}; pictures are written as .png, .svg or .pdf")
    given = case.given(max(radii) or 1e-9)
    subject = given.subject
    found: Any
    with case.running() as (processes, progress):
        shared: dict[str, Any] = {
            "norm": case.norm or (None if subject is None else subject.threat.norm),
            "device": processes.device,
            "preprocessing": given.preprocessing,
            "split": case.split,
            "limit": case.limit,
            "seed": case.seed,
            "progress": progress,
        }
        shared |= {"deterministic": deterministic, "folder": given.store}
        found = evaluation.curve(given.model, given.data, radii, case.attack, **shared)
    if not processes.writes:
        return
    path = output or (subject.run.path / "curve.json" if subject is not None else None)
    if path is not None:
        write_json(path, found.to_json())
    if plot is not None:
        found.plot(plot)
    written = [f"Written to {place}." for place in (path, plot) if place is not None]
    show(found, case.as_json, [repr(found), *written])
