"""`randens zoo`: trained ensembles that come with randens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from randens.cli.clone import from_paper
from randens.cli.output import Json, print_json, show

app = typer.Typer(help="Trained ensembles that come with randens.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="An entry; `randens zoo list` shows them.")]
_Zoo = Annotated[
    Path | None, typer.Option("--zoo", help="Another zoo folder than the one that came with randens.")
]
_NewName = Annotated[str, typer.Argument(help="The name of the new entry.")]
_Commit = Annotated[str | None, typer.Option(help="The commit that trained it, where the run does not say.")]


@app.command("list")
def list_(zoo: _Zoo = None, as_json: Json = False) -> None:
    """Show the ensembles in the zoo and their accuracies.

    Example: randens zoo list
    """
    from randens import zoo as home
    from randens.evaluation.result_tables import percent

    rows = []
    for name in home.names(zoo):
        item = home.entry(name, zoo)
        main = item.evaluations.get("evaluation")
        rows.append(
            {
                "name": name,
                "method": item.recipe["method"],
                "members": item.training["members"],
                "data": item.recipe["data"]["name"],
                "natural": None if main is None else main.natural,
                "robust": None if main is None else main.robust,
                "images": None if main is None else main.n,
                "ships": item.ships,
            }
        )
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "method", "M", "natural", "robust", "images"):
        # Users type these names, so they are never shortened.
        table.add_column(heading, no_wrap=heading == "name", overflow="fold")
    for row in rows:
        shares = [percent(v) if isinstance(v, float) else "–" for v in (row["natural"], row["robust"])]
        about = (str(row[key]) for key in ("name", "method", "members"))
        table.add_row(*about, *shares, str(row["images"] or "–"))
    bare = [str(row["name"]) for row in rows if not row["ships"]]
    show(rows, as_json, [table, *([f"Numbers only, without members: {', '.join(bare)}"] if bare else [])])


@app.command("load")
def load(
    name: _Name,
    output: Annotated[
        Path | None, typer.Option("--output", help="The new run folder; runs/NAME by default.")
    ] = None,
    zoo: _Zoo = None,
) -> None:
    """Copy an ensemble to a new run folder and verify its checksums.

    Example: randens zoo load cifar10-resnet20-barre-m3
    """
    from randens import zoo as home

    run = home.take(name, output or Path("runs") / name, zoo)
    typer.echo(f"{name} is in {run.path}; go on with e.g. randens evaluate {run.path} --limit 100")


@app.command("card")
def card(name: _Name, zoo: _Zoo = None, as_json: Json = False) -> None:
    """Show the card of an ensemble: how it was made, its numbers and its limits.

    Example: randens zoo card cifar10-resnet20-barre-m3
    """
    from randens import zoo as home

    item = home.entry(name, zoo)
    if not as_json:
        typer.echo(home.card(item), nl=False)
        return
    evaluations = {stem: found.summary() for stem, found in item.evaluations.items()}
    print_json({"manifest": item.run.manifest, "training": item.training, "evaluations": evaluations})


@app.command("add")
def add(
    run: Annotated[Path, typer.Argument(help="A finished run folder, evaluated.")],
    name: _NewName,
    zoo: _Zoo = None,
    commit: _Commit = None,
    members: Annotated[
        bool, typer.Option("--members/--no-members", help="With its members, or its numbers alone.")
    ] = True,
) -> None:
    """Put a finished run into the zoo and write its card.

    Example: randens zoo add runs/mine my-ensemble --zoo zoo
    """
    from randens import zoo as home
    from randens.core.files import write_atomic

    item = home.add(run, name, zoo, commit=commit, members=members)
    path = item.run.path / "CARD.md"
    write_atomic(path, home.card(item).encode())
    typer.echo(f"{name} is in the zoo; its card is {path}")


@app.command("trial")
def trial(
    run: Annotated[Path, typer.Argument(help="A finished run folder, evaluated on validation data.")],
    name: _NewName,
    zoo: _Zoo = None,
    commit: _Commit = None,
) -> None:
    """Keep the results of a run that compares settings, without its members, for the page of results.

    Example: randens zoo trial runs/pgd-2 pgd-2 --zoo zoo
    """
    from randens import zoo as home

    item = home.keep_trial(run, name, zoo, commit=commit)
    typer.echo(f"what {run} found is in {item.run.path}")


@app.command("results")
def results(
    output: Annotated[Path | None, typer.Option("--output", help="Write there instead of printing.")] = None,
    zoo: _Zoo = None,
) -> None:
    """Make the page of results: all entries next to the paper's numbers.

    Example: randens zoo results --output docs/results.md
    """
    from randens.core.files import write_atomic

    page: str = from_paper("results_page", "`randens zoo results`").results(zoo)
    if output is None:
        typer.echo(page, nl=False)
        return
    write_atomic(output, page.encode())
    typer.echo(f"Written to {output}.")
