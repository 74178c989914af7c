"""`randens advise`: what to deploy at one, two and M members' compute, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from randens.cli import choices
from randens.cli.output import show
from randens.cli.progress_bars import bars
from randens.core.errors import InputError

if TYPE_CHECKING:
    from torch import nn


@choices.asked(choices.Attacking, split="validation")
def advise(
    case: choices.Attacking,
    against: Annotated[
        list[Path] | None, typer.Option(help="A run with a single network to compare with; may be repeated.")
    ] = None,
    subsets: Annotated[bool, typer.Option(help="Also measure k of M averaged.")] = True,
) -> None:
    """Say what to deploy with the members of RUN: one of them, a drawn one, k of M averaged, or all.

    It uses the validation split by default. With --split test the table is
    printed, but nothing is recommended. The table has intervals and FLOPs, and
    every option is evaluated on all perturbations found. Then follows the
    recommendation at 1×, 2× and M× a member's compute, with its reasons. The
    result goes to advice.json of the run, which the report shows.

    Example: randens advise runs/quickstart-1 --limit 100
    """
    from randens.evaluation import advise as run_advise
    from randens.evaluation import result_tables
    from randens.models import pick_device

    opened = case.opened("saddle")
    subject, device = opened.subject, pick_device(case.device)
    networks = {str(path): _network(path).to(device) for path in against or ()}
    subject.rec.to(device)
    with bars() as progress:
        found = run_advise(
            subject.rec,
            opened.images,
            opened.attacks,
            networks=networks,
            subsets=subsets,
            folder=opened.store,
            progress=progress,
        )
    written = choices.written(found, None, subject.run, "the advice")
    title = f"{subject.run.path} on {found.data} {found.split}, {found.n} inputs"
    table = result_tables.terminal(found.options, title, found.confidence)
    show(found, case.as_json, [table, *found.sentences, written])


def _network(path: Path) -> nn.Module:
    from randens.core.runs import Run
    from randens.ensemble import load

    rec = load(Run.open(path).ensemble)
    if len(rec) != 1:
        raise InputError(
            f"--against is {path}, which holds {len(rec)} members; give a run with a single network"
        )
    return rec.members[0]
