"""`randens advise`: what to deploy at one, two and M members' compute, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from randens.cli import choices
from randens.cli.choices import Json, open_case, print_lines
from randens.core.errors import InputError
from randens.core.progress import bars

if TYPE_CHECKING:
    from torch import nn

    from randens.evaluation import Advice


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

    With --split test nothing is recommended. The result goes to advice.json of
    the run; the last lines are the commands that export what is recommended.

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
            attempts=choices.tries(attempts),
            device=device,
            folder=case.store,
            progress=progress,
        )
    case.show(found, None, as_json)
    if not as_json:
        named = "" if data is None else f" --data {data}"
        print_lines(_export(model, named if case.run else f"{named} --output FOLDER", found))


def _export(model: str, rest: str, found: Advice) -> Iterator[str]:
    """For each budget the command that ships what is recommended; rest: further options that it needs."""
    options = {option.name: option for option in found.options}
    for choice in found.choices:
        option = options[choice.option]
        how = {
            "member": f"{model} --member {option.name.rpartition(' ')[2]}",
            "sampled": model if option.name == "sampled with α" else f"{model} --uniform",
            "network": option.name,
        }.get(option.kind, f"{model} --average {option.k}")
        yield f"Ship it at {choice.compute}×: randens export {how}{rest}"


def _network(path: Path) -> nn.Module:
    from randens.evaluation.inputs import load_model

    rec = load_model(path)
    if len(rec) != 1:
        raise InputError(f"--against is {path}, a run of {len(rec)} members; give one with a single network")
    return rec.members[0]
