"""`randens zoo`: trained ensembles that come with randens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from randens.cli.choices import Json, show

app = typer.Typer(help="Trained ensembles of randens.", no_args_is_help=True, rich_markup_mode=None)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="An entry; `randens zoo list` shows them.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show the ensembles in the zoo and their accuracies.

    Example: randens zoo list
    """
    from randens import zoo
    from randens.core.runs import Run
    from randens.evaluation import Evaluation
    from randens.evaluation.tables import percent

    rows: list[dict[str, Any]] = []
    table = Table("name", "method", "M", "natural", "robust", "images", box=None, pad_edge=False)
    # Users type these names, so they are never shortened.
    table.columns[0].no_wrap = True
    for name in zoo.names():
        run = Run.open(zoo.path(name))
        recipe, file = run.manifest["recipe"], run.path / "evaluation.json"
        made = {key: recipe[key] for key in ("method", "members")}
        row = {"name": name, **made, "natural": None, "robust": None}
        cells = ["–"] * 3
        if file.is_file():
            found = Evaluation.load(file)
            row |= {"natural": float(found.natural), "robust": float(found.robust), "images": found.n}
            cells = [percent(found.natural), percent(found.robust), str(found.n)]
        rows.append(row)
        table.add_row(name, row["method"], str(row["members"]), *cells)
    show(rows, as_json, [table])


@app.command("load")
def load(
    name: _Name,
    output: Annotated[
        Path | None, typer.Option("--output", help="The new run folder; runs/NAME by default.")
    ] = None,
) -> None:
    """Copy an ensemble to a new run folder and verify its checksums.

    Example: randens zoo load cifar10-resnet20-barre-m3
    """
    from randens import zoo

    run = zoo.copy(name, output or Path("runs") / name)
    typer.echo(f"{name} is in {run.path}; go on with e.g. randens evaluate {run.path} --limit 100")


@app.command("card")
def card(name: _Name) -> None:
    """Show the card of an ensemble: how it was made, its numbers and its limits.

    Example: randens zoo card cifar10-resnet20-barre-m3
    """
    from randens import zoo

    typer.echo(zoo.card(name), nl=False)
