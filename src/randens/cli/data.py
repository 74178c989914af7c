"""`randens data`: list, fetch, verify and locate data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from randens.cli.output import Json, show
from randens.core.files import picked
from randens.core.progress import bars

app = typer.Typer(
    help="List, fetch, verify and locate data sets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show the known data sets and which of them are in the cache folder.

    Example: randens data list
    """
    from randens import data

    here = data.present()
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "title": data.entry(name).title,
            "shape": list(data.entry(name).shape),
            "classes": len(data.entry(name).classes),
            **data.entry(name).sizes,
            "present": here[name],
        }
        for name in data.names()
    ]
    table = Table("name", "shape", "classes", "train", "validation", "test", "here", box=None)
    for row in rows:
        shape = "×".join(map(str, row["shape"]))
        numbers = (str(row[key]) for key in ("classes", "train", "validation", "test"))
        table.add_row(row["name"], shape, *numbers, "yes" if row["present"] else "no")
    show(rows, as_json, [table])


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets; `randens data list` shows them.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Folder or archive with the official files, read instead of any other source."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Put data sets into the cache folder and say which source gave them.

    Example: randens data fetch mnist cifar10
    """
    from randens import data

    names = [name.lower() for name in names]
    for name in names:
        data.entry(name)
    results, lines = [], []
    for name in names:
        with bars() as progress:
            result = data.fetch(name, source=source, progress=progress)
        results.append({**picked(result, "name source skipped"), "folder": str(result.folder or "")})
        for reason in result.skipped:
            typer.echo(f"passed over {reason}", err=True)
        where = f"is in {result.folder}" if result.folder else "needs no fetching"
        lines.append(f"{name} {where}; source: {result.source}")
    show(results, as_json, lines)


@app.command()
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all if none is named.")] = None,
    as_json: Json = False,
) -> None:
    """Check stored data sets against their checksums; exit code 1 if one is damaged, or named and missing.

    Example: randens data verify cifar10
    """
    from randens import data

    found = [data.verify(name.lower()) for name in names or data.names()]
    states = ["ok" if v.ok else "DAMAGED" if v.present else "not fetched" for v in found]
    lines = [f"{v.name}: {state} — {v.message}" for v, state in zip(found, states, strict=True)]
    show([picked(v, "name present ok source") for v in found], as_json, lines)
    if any(not v.ok and (v.present or names) for v in found):
        raise typer.Exit(1)


@app.command()
def path(
    name: Annotated[str | None, typer.Argument(help="A data set; none for the cache folder itself.")] = None,
) -> None:
    """Print the cache folder, or a data set's folder in it.

    Example: randens data path cifar10
    """
    from randens.core.files import data_folder

    if name is None:
        typer.echo(data_folder())
        return
    from randens import data

    typer.echo(data_folder() / data.entry(name.lower()).name)
