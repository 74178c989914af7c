"""`randens evaluate`: natural and robust accuracy, at one radius or at several."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from randens.cli import choices
from randens.cli.choices import open_case
from randens.cli.output import Json
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
    draws: Annotated[
        int | None,
        typer.Option(min=1, help="The model is random: attack this many frozen draws, score on fresh ones."),
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
    divided among the processes. A random model needs --draws: a factory with
    an argument is called with a seed for every draw. If --output then names a
    folder, it becomes a run folder for randens report.

    Example: randens evaluate runs/quickstart-1 --attack arc-r --limit 100
    """
    from randens.core.distributed import workers
    from randens.core.runs import Run
    from randens.evaluation import curve
    from randens.evaluation import evaluate as run_evaluate
    from randens.threat import grid

    radii = grid("--eps", eps) if eps is not None and (":" in eps or "," in eps) else None
    if radii is not None and draws is not None:
        raise InputError("--draws evaluates a random model at one radius; give one --eps")
    new_run = None if draws is None or output is None or output.suffix else output
    if new_run is not None and new_run.exists():
        raise InputError(f"--output is {output}, which exists already; choose another folder")
    largest = eps if radii is None else max(radii) or 1e-9
    case = open_case(
        model, data=data, attack=attack, norm=norm, eps=largest, draws=draws, fresh=fresh, verify=verify
    )
    part: Any = {"split": split, "limit": limit, "folder": case.store}
    with workers(device) as processes, bars() as progress:
        part |= {"device": processes.device, "progress": progress}
        if radii is not None:
            result: Any = curve(case.model, case.data, case.attacks, eps=radii, **part)
        else:
            also = None if draws is not None else {"uniform": None}
            result = run_evaluate(case.model, case.data, case.attacks, also=also, **part)
    if not processes.is_main:
        return
    if new_run is not None:
        case, output = replace(case, run=Run.create(new_run, kind="random model")), None
    case.show(result, output, as_json)
