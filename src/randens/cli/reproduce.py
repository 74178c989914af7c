"""`randens reproduce`: make the paper's tables and figures, next to the paper's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli import choices, names
from randens.cli.clone import from_paper
from randens.cli.output import Json, show
from randens.cli.progress_bars import bars
from randens.core.errors import unknown
from randens.core.files import write_atomic

if TYPE_CHECKING:
    from paper.reproduce import Reproduction


_FORMS = ("terminal", "markdown", "latex")


def reproduce(
    scale: Annotated[
        str,
        typer.Option(
            help="digits (minutes, trained here), cpu (CIFAR-10 on two cores) or paper (as published).",
            autocompletion=names.starting(names.SCALES),
        ),
    ] = "digits",
    runs: Annotated[
        Path | None, typer.Option(help="Where the run folders are; runs/SCALE by default.")
    ] = None,
    training: Annotated[
        bool | None,
        typer.Option(
            "--train/--no-train", help="Train what is missing; by default at the digits scale only."
        ),
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            help=f"The attack behind robust accuracies. One of: {', '.join(names.ATTACKS)}.",
            autocompletion=names.starting(names.ATTACKS),
        ),
    ] = "arc-r",
    limit: choices.Limit = None,
    device: choices.Device = "auto",
    seed: choices.Seed = 0,
    form: Annotated[
        str, typer.Option("--format", help="How tables are printed. One of: terminal, markdown, latex.")
    ] = "terminal",
    page: Annotated[
        Path | None, typer.Option(help="Also write the documentation's page to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the paper's tables and figures from run folders; the same command continues an interrupted one.

    It writes reproduction.md, reproduction.json and figures next to the run
    folders, in the paper's layout, with our number and the paper's per cell.

    Example: randens reproduce --scale digits
    """
    from randens import attacks
    from randens.models import pick_device

    run_reproduction = from_paper("reproduce", "`randens reproduce`").reproduce

    pick_device(device)
    if form not in _FORMS:
        unknown("format", form, _FORMS)
    # Checked before training, because the attack comes last.
    if attack not in attacks.names():
        unknown("attack", attack, attacks.names())
    with bars() as progress:
        result = run_reproduction(
            scale,
            runs,
            training=training,
            limit=limit,
            attack=attack,
            device=device,
            seed=seed,
            progress=progress,
        )
    if page is not None:
        write_atomic(page, result.page().encode())
    show(result, as_json, _lines(result, form))


def _lines(result: Reproduction, form: str) -> Iterator[Any]:
    if form in ("latex", "markdown"):
        yield result.latex() if form == "latex" else result.markdown()
        return
    yield from (table.terminal() for table in result.tables)
    yield from result.findings()
    yield from (f"missing: {run.name}: {run.command}" for run in result.missing)
    yield (
        f"Training took {result.budget['training_passes']:,} member passes, measuring "
        f"{result.budget['measuring_passes']:,}; this call {result.seconds:.0f} s. Written to {result.folder}."
    )
