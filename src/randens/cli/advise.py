"""`randens advise`: what to deploy at one, two and M members' compute, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from randens.cli import choices, names
from randens.cli.output import Json, console, print_json
from randens.cli.progress import bars
from randens.core.errors import InputError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["advise"]


def advise(
    run: choices.RunFolder,
    attack: choices.Attacks = None,
    settings: choices.Settings = None,
    split: Annotated[
        str,
        typer.Option(
            help="The split to decide on; test data make the table but choose nothing.",
            autocompletion=names.starting(names.SPLITS),
        ),
    ] = "validation",
    limit: choices.Limit = None,
    data: choices.Data = None,
    norm: choices.Norm = None,
    eps: choices.Eps = None,
    seed: choices.Seed = 0,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="A run with a single network to compare with; may be repeated.", show_default=False
        ),
    ] = None,
    subsets: Annotated[bool, typer.Option(help="Measure k of M averaged, too.")] = True,
    fresh: choices.Fresh = False,
    verify: choices.Verify = False,
    as_json: Json = False,
) -> None:
    """Say what to deploy with the members of RUN: one of them, a drawn one, k of M averaged, or all.

    One table with intervals and FLOPs, every option judged by all perturbations
    found; then the choice at 1×, 2× and M× a member's compute, and why. Written to
    advice.json of the run, which the report shows.

    Example: randens advise runs/quickstart-1 --limit 100
    """
    from randens.evaluation import advise as run_advise
    from randens.evaluation import tables
    from randens.evaluation.run_folder import open_subject

    subject = open_subject(run, data=data, norm=norm, eps=choices.number("--eps", eps))
    images = subject.load(split, limit)
    chosen = choices.make_attacks(attack, ("saddle",), subject.threat, settings, seed)
    networks = {str(path): _network(path) for path in against or ()}
    with bars() as progress:
        found = run_advise(
            subject.rec,
            images,
            chosen,
            networks=networks,
            subsets=subsets,
            folder=subject.store(fresh=fresh, verify=verify),
            progress=progress,
        )
    path = subject.run.write("advice", found.to_json())
    if as_json:
        print_json(found.to_json())
        return
    out = console()
    title = f"{subject.run.path} on {found.data} {found.split}, {found.n} inputs"
    rows = [tables.Row(option.name, option.accuracy, option.flops) for option in found.options]
    out.print(tables.terminal(rows, title, found.confidence))
    for line in found.sentences:
        out.print(line)
    out.print(f"Written to {path}.")


def _network(path: Path) -> nn.Module:
    from randens.core.runs import Run
    from randens.ensemble import load

    rec = load(Run.open(path).ensemble)
    if len(rec) != 1:
        raise InputError(
            f"--against is {path}, which holds {len(rec)} members; give a run with a single network"
        )
    return rec.members[0]
