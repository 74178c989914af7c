"""`randens data`: list, fetch, verify and locate data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from randens.cli import names as known
from randens.cli.output import Json, print_json, show
from randens.cli.progress_bars import bars
from randens.core.errors import unknown
from randens.core.files import picked

app = typer.Typer(help="List, fetch, verify and locate data sets.", no_args_is_help=True)

_Names = Annotated[
    list[str] | None,
    typer.Argument(help="Data sets; all if none is named.", autocompletion=known.starting(known.DATA_SETS)),
]
_Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Cache folder instead of RANDENS_DATA or the platform's.", file_okay=False),
]


@app.command("list")
def list_(folder: _Folder = None, as_json: Json = False) -> None:
    """Show the known data sets and which of them are in the cache folder.

    Example: randens data list
    """
    from randens import data

    here = data.present(folder)
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
    names: Annotated[
        list[str],
        typer.Argument(
            help=f"Data sets to fetch. Known: {', '.join(known.DATA_SETS)}.",
            autocompletion=known.starting(known.DATA_SETS),
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Folder or archive with the official files, read instead of any other source."
        ),
    ] = None,
    folder: _Folder = None,
    as_json: Json = False,
) -> None:
    """Put data sets into the cache folder and say which source gave them.

    Example: randens data fetch mnist cifar10
    """
    from randens import data

    for name in names:
        data.entry(name)
    results = []
    for name in names:
        with bars() as progress:
            result = data.fetch(name, folder=folder, source=source, progress=progress)
        results.append(result)
        for reason in result.skipped:
            typer.echo(f"passed over {reason}", err=True)
        if not as_json:
            where = f"is in {result.folder}" if result.folder else "needs no fetching"
            typer.echo(f"{name} {where}; source: {result.source}")
    if as_json:
        print_json([{**picked(r, "name source skipped"), "folder": str(r.folder or "")} for r in results])


@app.command()
def verify(names: _Names = None, folder: _Folder = None, as_json: Json = False) -> None:
    """Check stored data sets against their checksums; exit code 1 if one is damaged, or named and missing.

    Example: randens data verify cifar10
    """
    from randens import data

    verdicts = [data.verify(name, folder=folder) for name in names or data.names()]
    wrong = [v for v in verdicts if not v.ok and (v.present or names)]
    states = ["ok" if v.ok else "DAMAGED" if v.present else "not fetched" for v in verdicts]
    lines = [f"{v.name}: {state} — {v.message}" for v, state in zip(verdicts, states, strict=True)]
    show([picked(v, "name present ok source") for v in verdicts], as_json, lines)
    if wrong:
        raise typer.Exit(1)


@app.command()
def path(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A data set; none for the cache folder itself.",
            autocompletion=known.starting(known.DATA_SETS),
        ),
    ] = None,
    folder: _Folder = None,
) -> None:
    """Print the cache folder, or a data set's folder in it.

    Example: randens data path cifar10
    """
    # Not from `randens.data`, which imports torch: a script that needs a folder should not wait for it.
    from randens.core.files import data_folder

    if name is not None and name not in known.DATA_SETS:
        unknown("data set", name, known.DATA_SETS)
    base = data_folder(folder)
    typer.echo(base if name is None else base / name)
