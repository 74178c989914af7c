"""`randens reproduce`: the paper's tables and figures, next to the paper's own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from randens.cli import choices, names
from randens.cli.output import Json, console, print_json
from randens.cli.progress import bars
from randens.errors import unknown

if TYPE_CHECKING:
    from randens.reproduce import Reproduction

__all__ = ["reproduce"]


def reproduce(
    scale: Annotated[
        str,
        typer.Option(
            help="digits (minutes, trained here), cpu (CIFAR-10 on two cores) or paper (as published).",
            autocompletion=names.starting(names.SCALES),
        ),
    ] = "digits",
    runs: Annotated[
        Path | None,
        typer.Option(help="Where the run folders are; runs/SCALE by default.", show_default=False),
    ] = None,
    training: Annotated[
        bool | None,
        typer.Option(
            "--train/--no-train",
            help="Train what is missing; by default at the digits scale only.",
            show_default=False,
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
    seed: choices.Seed = 0,
    as_json: Json = False,
) -> None:
    """Regenerate the paper's tables and figures from run folders; the same command continues after a break.

    Writes reproduction.md, reproduction.json and figures next to the run folders:
    our number, the paper's, and the difference in every cell.

    Example: randens reproduce --scale digits
    """
    from randens import attacks
    from randens.reproduce import reproduce as run_reproduction

    # Before anything is trained: this attack comes last.
    if attack not in attacks.names():
        unknown("attack", attack, attacks.names())
    with bars() as progress:
        result = run_reproduction(
            scale, runs, training=training, limit=limit, attack=attack, seed=seed, progress=progress
        )
    if as_json:
        print_json(result.to_json())
    else:
        _print(result)


def _print(result: Reproduction) -> None:
    out = console()
    out.print(result.markdown(), markup=False)
    out.print(
        f"Training took {result.budget['training_passes']:,} member passes, measuring "
        f"{result.budget['measuring_passes']:,}; this call {result.seconds:.0f} s. Written to {result.folder}.",
        markup=False,
    )
