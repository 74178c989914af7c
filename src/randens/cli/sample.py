"""`randens sample`: the sampling probabilities with the smallest risk under attack."""

from __future__ import annotations

from typing import Annotated

import typer

from randens.cli import choices
from randens.cli.choices import Json, open_case, print_lines
from randens.core.errors import InputError
from randens.core.progress import bars


def sample(
    model: choices.Model,
    data: choices.Data = None,
    split: choices.Split = "validation",
    limit: choices.Limit = None,
    attack: choices.Attacks = None,
    norm: choices.Norm = None,
    eps: choices.Eps = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Differ from uniform only with this confidence that it is no worse, e.g. 0.95."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Store α in the run's ensemble.")] = False,
    device: choices.Device = "auto",
    fresh: choices.Fresh = False,
    as_json: Json = False,
) -> None:
    """Find the sampling probabilities of MODEL, with a bound on how much better others could be.

    By default α is optimal on these inputs, as in Python; with --confidence it
    differs from uniform only where the inputs give enough evidence. It uses
    the validation split; test data are refused. The result goes to
    sampling.json of the run; only --apply changes the ensemble.

    Example: randens sample runs/quickstart-1 --apply
    """
    from randens.core.devices import workers
    from randens.evaluation import optimize_sampling
    from randens.risk.sampling import contributions

    case = open_case(
        model, data=data, attack=attack, default=("arc-r", "saddle"), norm=norm, eps=eps, fresh=fresh
    )
    if apply and case.run is None:
        raise InputError(f"--apply changes a run's ensemble, and {model} is no run folder")
    with workers(device) as processes, bars() as progress:
        found = optimize_sampling(
            case.model,
            case.data,
            case.attacks,
            split=split,
            limit=limit,
            confidence=confidence,
            device=processes.device,
            folder=case.store,
            progress=progress,
        )
    if not processes.is_main:
        return
    members = contributions(found.profile, found)
    if apply and case.run is not None:
        from randens.core.files import read_json, write_json

        # One file is replaced, atomically: the members stay as they are.
        manifest = case.run.ensemble / "ensemble.json"
        write_json(manifest, {**read_json(manifest), "probs": found.probs.tolist()})
    case.show(found, None, as_json, {"contributions": [member.to_json() for member in members]})
    if not as_json:
        print_lines(f"Advice: {member.advice}." for member in members)
