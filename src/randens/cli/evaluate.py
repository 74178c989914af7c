"""`randens evaluate`: natural and robust accuracy, at one radius or at several."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from randens.cli import choices
from randens.cli.choices import Json, open_case
from randens.core.errors import InputError
from randens.core.progress import bars


def evaluate(
    model: choices.Model,
    data: choices.Data = None,
    split: choices.Split = "test",
    limit: choices.Limit = None,
    attack: choices.Attacks = None,
    norm: choices.Norm = None,
    eps: Annotated[
        str | None,
        typer.Option(
            help="Radius instead of the run's, e.g. 0.03 or 8/255; several, as first:last:count or with commas, give "
            "the curve."
        ),
    ] = None,
    attempts: Annotated[
        str | None,
        typer.Option(help="Also against attackers who may try so often, e.g. 1,2,10,inf, for both kinds."),
    ] = None,
    output: choices.Output = None,
    device: choices.Device = "auto",
    fresh: choices.Fresh = False,
    verify: choices.Verify = False,
    as_json: Json = False,
) -> None:
    """Evaluate MODEL: expected accuracies on the worst perturbations found.

    The result goes to evaluation.json of a run folder (several radii:
    curve.json). Searches of earlier commands are not repeated: the same
    command continues an interrupted one. Under torchrun or srun the images are
    divided among the processes. A factory with a required argument makes a
    random model, and is called with a seed for every draw; if --output then
    names a folder, it becomes a run folder for randens report.

    Example: randens evaluate runs/quickstart-1 --attack arc-r --limit 100
    """
    from randens.core.devices import workers
    from randens.core.runs import Run
    from randens.evaluation import curve
    from randens.evaluation import evaluate as run_evaluate
    from randens.evaluation.inputs import as_rec
    from randens.threat import grid

    radii = () if eps is None else grid("--eps", eps)
    several = len(radii) > 1
    tries = [choices.tries(part) for part in attempts.split(",")] if attempts is not None else []
    if several and tries:
        raise InputError(f"--attempts is {attempts} and --eps has several radii; give one --eps")
    largest = max(radii, default=None)
    case = open_case(model, data=data, attack=attack, norm=norm, eps=largest, fresh=fresh, verify=verify)
    random = case.run is None and as_rec(case.model).stochastic
    new_run = output if random and output is not None and not output.suffix else None
    if new_run is not None and new_run.exists():
        raise InputError(f"--output is {output}, which exists already; choose another folder")
    part: Any = {"split": split, "limit": limit, "folder": case.store}
    with workers(device) as processes, bars() as progress:
        part |= {"device": processes.device, "progress": progress}
        if several:
            result: Any = curve(case.model, case.data, case.attacks, eps=radii, **part)
        else:
            part |= {"also": None if random else {"uniform": None}, "attempts": tries}
            result = run_evaluate(case.model, case.data, case.attacks, **part)
    if not processes.is_main:
        return
    if new_run is not None:
        case, output = replace(case, run=Run.create(new_run, kind="random model")), None
    case.show(result, output, as_json)
