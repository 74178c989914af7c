"""`randens evaluate`: natural and robust accuracy, at one radius or at several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from randens.cli import choices
from randens.cli.choices import Case, open_case
from randens.cli.output import Json, show
from randens.core.errors import InputError
from randens.core.progress import bars

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
        "split": split,
        "limit": limit,
        "attack": attack,
        "norm": norm,
        "draws": draws,
        "fresh": fresh,
        "verify": verify,
    }
    if choices.several(eps):
        _curve(model, str(eps), options, output, device, as_json)
        return
    case = open_case(model, eps=eps, **options)
    if draws is None:
        _members(case, output, device, as_json)
    else:
        _random(case, output, device, as_json)


def _members(case: Case, output: Path | None, device: str, as_json: bool) -> None:
    from randens import evaluation
    from randens.core.distributed import workers
    from randens.data import called
    from randens.evaluation import result_tables

    with workers(device) as processes, bars() as progress:
        result = evaluation.evaluate(
            case.rec,
            case.data,
            case.attacks,
            also={"uniform": None} if len(set(case.rec.probs.tolist())) > 1 else {},
            chosen_on=case.chosen_on,
            device=processes.device,
            bounds=case.threat.bounds,
            folder=case.store,
            progress=progress,
        )
    if not processes.is_main:
        return
    rows = result_tables.rows(result)
    if output is not None and output.suffix in (".md", ".tex"):
        from randens.core.files import write_atomic

        form = result_tables.markdown if output.suffix == ".md" else result_tables.latex
        write_atomic(output, f"{form(rows)}\n".encode())
        written = [f"Written to {output}."]
    else:
        written = case.keep(result, output)
    about = f"{called(result.data, result.split)}, {result.threat.norm} ε = {result.threat.eps:.4g}"
    table = result_tables.terminal(rows, f"{case.name} on {about}", result.confidence)
    show(result, as_json, [table, *result_tables.statements(result), *case.passes(result.now), *written])


def _random(case: Case, output: Path | None, device: str, as_json: bool) -> None:
    """Evaluate a random model; a folder as output becomes a run folder for `randens report`."""
    from randens import evaluation
    from randens.core.devices import on_device
    from randens.core.runs import Run

    if output is not None and output.exists() and output.suffix != ".json":
        raise InputError(f"--output is {output}, which exists already; choose another folder")
    with on_device(case.rec, device), bars() as progress:
        result = evaluation.evaluate_stochastic(case.rec, case.data, case.attacks, progress=progress)
    lines = list(result.statements())
    if output is not None and output.suffix == ".json":
        lines.append(f"Written to {result.save(output)}.")
    elif output is not None:
        path = result.save(Run.create(output, kind="random model").path / "stochastic.json")
        lines.append(f"Written to {path}. A page about it: randens report {output}.")
    show(result, as_json, lines)


def _curve(
    model: str, eps: str, options: dict[str, Any], output: Path | None, device: str, as_json: bool
) -> None:
    """Robust accuracy against the radius."""
    from randens.core.distributed import workers
    from randens.core.files import write_json
    from randens.evaluation import curve
    from randens.threat import grid

    if options["draws"] is not None:
        raise InputError("--draws evaluates a random model at one radius; give one --eps")
    radii = grid("--eps", eps)
    case = open_case(model, eps=max(radii) or 1e-9, **options)
    with workers(device) as processes, bars() as progress:
        found = curve(
            case.rec,
            case.data,
            radii,
            case.attacks,
            norm=case.threat.norm,
            bounds=case.threat.bounds,
            device=processes.device,
            folder=case.store,
            progress=progress,
        )
    if not processes.is_main:
        return
    written = []
    if output is not None and output.suffix.lower() in _DRAWINGS:
        found.plot(output)
        written.append(output)
    elif output is not None:
        write_json(output, found.to_json())
        written.append(output)
    if case.run is not None and (output is None or output.suffix.lower() in _DRAWINGS):
        written.append(case.run.write("curve", found.to_json()))
    show(found, as_json, [repr(found), *(f"Written to {path}." for path in written)])
