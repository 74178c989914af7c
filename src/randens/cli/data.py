"""`randens data`: list, fetch, verify and locate data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from randens.cli.choices import Json, show
from randens.core.errors import FileError, printable
from randens.core.files import plain
from randens.core.progress import bars

app = typer.Typer(help="List, fetch, verify and find data sets.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show the known data sets and which of them are in the cache folder.

    Example: randens data list
    """
    from randens import data

    here, rows = data.present(), []
    table = Table("name", "shape", "classes", "train", "validation", "test", "here", box=None)
    for name in data.names():
        known = data.entry(name)
        counts = {"classes": len(known.classes), **known.sizes}
        rows.append({"name": name, "shape": known.shape, **counts, "present": here[name]})
        shape = "×".join(map(str, known.shape))
        table.add_row(name, shape, *map(str, counts.values()), "yes" if here[name] else "no")
    show(rows, as_json, [table, f"They are in {data.data_folder()}; RANDENS_DATA names another folder."])


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAMES", help="As `randens data list` shows them.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Folder or archive with the official files, instead of other sources."),
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
        results.append(plain(result))
        for reason in result.skipped:
            typer.echo(f"passed over {printable(reason)}", err=True)
        where = f"is in {result.folder}" if result.folder else "needs no fetching"
        lines.append(f"{name} {where}; source: {result.source}")
    show(results, as_json, lines)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAMES", help="Data sets; all if none is named.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check stored data sets against their checksums; exit code 1 if one is damaged, or named and missing.

    Example: randens data verify cifar10
    """
    from randens import data

    here, rows, lines = data.present(), [], []
    for name in [name.lower() for name in names or data.names()]:
        row = {"name": name, "present": here.get(name, False), "ok": True, "message": ""}
        try:
            data.verify(name)
            row["message"] = "checksums match"
        except FileError as error:
            row.update(ok=False, message=str(error))
        state = "ok" if row["ok"] else "DAMAGED" if row["present"] else "not fetched"
        rows.append(row)
        lines.append(f"{name}: {state} — {row['message']}")
    show(rows, as_json, lines)
    if any(not row["ok"] and (row["present"] or names) for row in rows):
        raise typer.Exit(1)
