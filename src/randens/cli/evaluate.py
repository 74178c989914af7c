"""`randens evaluate`: natural and robust accuracy, at one radius or at several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli import choices
from randens.cli.choices import Case, open_case
from randens.cli.output import Json, show
from randens.core.errors import InputError
from randens.core.progress import bars

if TYPE_CHECKING:
    from randens.evaluation import Evaluation, RandomEvaluation

_DRAWINGS = (".png", ".svg", ".pdf")


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
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the result there instead of into the run folder: .json, .md, .tex, or a drawing of the curve "
            "(.png, .svg, .pdf)."
        ),
    ] = None,
    device: choices.Device = "auto",
    fresh: choices.Fresh = False,
    verify: choices.Verify = False,
    as_json: Json = False,
) -> None:
    """Evaluate MODEL: expected accuracies on the worst perturbations found.

    The default attack is the suite's preset `standard`. For a run folder the
    result goes to its evaluation.json (several radii: curve.json), which the
    report and the audit read. Searches of earlier commands are not repeated:
    the same command continues an interrupted evaluation. Under torchrun or
    srun the images are divided among the processes.

    Other models need --data. A random one needs --draws: a factory with an
    argument is called with a seed for every draw; a factory without one
    returns a module that draws from torch's generators.

    Example: randens evaluate runs/quickstart-1 --attack arc-r --attack saddle
    --limit 100
    """
    options: dict[str, Any] = {
        "data": data,
        "attack": attack,
        "norm": norm,
        "draws": draws,
        "fresh": fresh,
        "verify": verify,
    }
    if choices.several(eps):
        _curve(model, str(eps), options, {"split": split, "limit": limit}, output, device, as_json)
        return
    case = open_case(model, eps=eps, **options)
    from randens.core.distributed import workers
    from randens.evaluation import Evaluation, evaluate

    with workers(device) as processes, bars() as progress:
        result = evaluate(
            case.model,
            case.data,
            case.attacks,
            split=split,
            limit=limit,
            also=None if draws is not None else {"uniform": None},
            device=processes.device,
            folder=case.store,
            progress=progress,
        )
    if not processes.is_main:
        return
    if isinstance(result, Evaluation):
        _members(case, result, output, as_json)
    else:
        _random(result, output, as_json)


def _members(case: Case, result: Evaluation, output: Path | None, as_json: bool) -> None:
    from randens.core.files import write_atomic
    from randens.evaluation.tables import latex

    if output is not None and output.suffix in (".md", ".tex"):
        text = result.table().markdown() if output.suffix == ".md" else latex(result.rows())
        write_atomic(output, f"{text}\n".encode())
        written = [f"Written to {output}."]
    else:
        written = case.keep(result, output)
    about = [f"{name:<7}{text}" for name, text in result.about.lines]
    notes = [f"Note: {note}." for note in result.notes]
    table = result.table().rich(case.name)
    show(result, as_json, [table, *about, *result.sentences(), *notes, *case.passes(result.now), *written])


def _random(result: RandomEvaluation, output: Path | None, as_json: bool) -> None:
    """Show the result on a random model; a folder as output becomes a run folder for `randens report`."""
    from randens.core.runs import Run

    lines = [repr(result)]
    if output is not None and output.suffix == ".json":
        lines.append(f"Written to {result.save(output)}.")
    elif output is not None:
        path = result.save(Run.create(output, kind="random model").path / "stochastic.json")
        lines.append(f"Written to {path}. A page about it: randens report {output}.")
    show(result, as_json, lines)


def _curve(
    model: str,
    eps: str,
    options: dict[str, Any],
    part: dict[str, Any],
    output: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Robust accuracy against the radius."""
    from randens.core.distributed import workers
    from randens.evaluation import curve
    from randens.threat import grid

    if options["draws"] is not None:
        raise InputError("--draws evaluates a random model at one radius; give one --eps")
    radii = grid("--eps", eps)
    case = open_case(model, eps=max(radii) or 1e-9, **options)
    with workers(device) as processes, bars() as progress:
        found = curve(
            case.model,
            case.data,
            case.attacks,
            eps=radii,
            device=processes.device,
            folder=case.store,
            progress=progress,
            **part,
        )
    if not processes.is_main:
        return
    drawn = output is not None and output.suffix.lower() in _DRAWINGS
    if drawn:
        found.plot(output)
    written = [f"Written to {output}."] if drawn else []
    show(found, as_json, [repr(found), *written, *case.keep(found, None if drawn else output)])
