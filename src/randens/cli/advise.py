"""`randens advise`: what to deploy at one, two and M members' compute, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from randens.cli import choices
from randens.cli.choices import open_case
from randens.cli.output import Json, show
from randens.core.errors import InputError
from randens.core.progress import bars

if TYPE_CHECKING:
    from torch import nn


def advise(
    model: choices.Model,
    data: choices.Data = None,
    split: choices.Split = "validation",
    limit: choices.Limit = None,
    attack: choices.Attacks = None,
    norm: choices.Norm = None,
    eps: choices.Eps = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="A run with a single network to compare with; repeatable.")
    ] = None,
    attempts: Annotated[
        str, typer.Option(help="How often an attacker may try, a number or inf: advice for that.")
    ] = "1",
    device: choices.Device = "auto",
    fresh: choices.Fresh = False,
    as_json: Json = False,
) -> None:
    """Recommend what to deploy with the members of MODEL: one of them, a sampled one, an average of k, or all.

    It uses the validation split by default. With --split test the table is
    printed, but nothing is recommended. Every option is evaluated on all
    perturbations found. The result goes to advice.json of the run, which the
    report shows; `randens export` ships what it recommends.

    Example: randens advise runs/quickstart-1 --limit 100
    """
    from randens.evaluation import advise as run_advise

    case = open_case(model, data=data, attack=attack, default=("saddle",), norm=norm, eps=eps, fresh=fresh)
    with bars() as progress:
        found = run_advise(
            case.model,
            case.data,
            case.attacks,
            split=split,
            limit=limit,
            networks={str(path): _network(path) for path in against or ()},
            attempts=float("inf") if attempts == "inf" else choices.whole_number("--attempts", attempts),
            device=device,
            folder=case.store,
            progress=progress,
        )
    about = f"{found.about.data} {found.about.split}, {found.about.n} inputs"
    table = found.table().rich(f"{case.name} on {about}")
    show(found, as_json, [table, *found.sentences(), *case.keep(found, None)])


def _network(path: Path) -> nn.Module:
    from randens.core.runs import Run
    from randens.ensemble import load

    rec = load(Run.open(path).ensemble)
    if len(rec) != 1:
        raise InputError(
            f"--against is {path}, which holds {len(rec)} members; give a run with a single network"
        )
    return rec.members[0]
