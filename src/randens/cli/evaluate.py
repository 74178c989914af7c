"""`randens evaluate`: natural and robust accuracy of a run's ensemble, at one radius or at several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli import choices
from randens.cli.output import show
from randens.cli.progress_bars import bars
from randens.core.errors import InputError

if TYPE_CHECKING:
    from randens.evaluation import Evaluation


class Format(str, Enum):
    """How the table is printed."""

    table = "table"
    markdown = "markdown"
    latex = "latex"


@dataclass(frozen=True, kw_only=True)
class _Options(choices.Evaluating):
    draws: Annotated[
        int | None,
        typer.Option(
            help="With --model: the model is random; attack this many frozen draws and score it on fresh ones."
        ),
    ] = None
    tolerance: Annotated[
        float,
        typer.Option(
            help="With --draws: the allowed difference in accuracy between attacked and fresh draws."
        ),
    ] = 0.02
    deterministic: Annotated[bool, typer.Option(help="Also attack the mean of all logits.")] = True
    uniform: Annotated[bool, typer.Option(help="Also attack equal probabilities.")] = True
    output: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; evaluation.json of the run by default.")
    ] = None
    adversarial: Annotated[
        Path | None, typer.Option(help="Also write the worst perturbed inputs there, as safetensors.")
    ] = None
    style: Annotated[Format, typer.Option("--format", help="Table, Markdown or LaTeX rows.")] = Format.table


@choices.asked(_Options)
def evaluate(case: _Options) -> None:
    """Evaluate the ensemble of RUN, or networks of your own: expected accuracies on the worst perturbations found.

    The default attack is the portfolio `suite`, preset standard. The result
    goes to evaluation.json of the run, which the report, the figures and the
    audit read, unless that holds a result on more inputs. All results are in
    the folder answers. Searches of earlier commands are not repeated: the same
    command continues an interrupted evaluation and makes no attack twice.
    Under torchrun or srun the images are divided among the processes.

    For networks of your own, give --model and --data instead of RUN. The
    result is printed, and written to --output if given. A random network needs
    --draws: a factory with an argument is called with a seed for every draw; a
    factory without one returns a module that draws from torch's generators. If
    --output names a folder, it becomes a run folder for randens report.

    Several radii, --eps first:last:count or numbers separated by commas, give
    the curve of robust accuracy against ε. All radii share one pool of
    witnesses, so no curve rises. It goes to curve.json of the run, or to
    --output, which may also be a drawing (.png, .svg or .pdf).

    Example: randens evaluate runs/quickstart-1 --attack arc-r --attack saddle
    --limit 100
    """
    case.check()
    if case.eps is not None and (":" in case.eps or "," in case.eps):
        _curve(case)
        return
    if case.draws is not None:
        if case.model is None:
            raise InputError("--draws needs --model: the members of a run folder are not random")
        _random(case, case.draws)
    else:
        _members(case)


def _members(case: _Options) -> None:
    """Evaluate the ensemble of a run folder, where the result is kept, or the user's own networks."""
    from randens import evaluation

    given = case.given()
    subject = given.subject
    threat = case.threat() if subject is None else subject.threat
    chosen = choices.make_attacks(case.attack, ("suite",), threat, case.settings, case.seed)
    several = subject is None or len(subject.rec) > 1
    with case.running() as (processes, progress):
        result = evaluation.evaluate(
            given.model,
            given.data,
            chosen,
            also={"uniform": None} if case.uniform and several else {},
            deterministic=case.deterministic,
            chosen_on=None if subject is None else subject.chosen_on,
            device=processes.device,
            bounds=threat.bounds,
            preprocessing=given.preprocessing,
            split=case.split,
            limit=case.limit,
            folder=given.store,
            progress=progress,
        )
    if not processes.is_main:
        return
    told = []
    if subject is not None and given.store is not None:
        again = f"{result.reread} stored witnesses judged again"
        told += choices.said(given.store, result.now, again)
        told.append(choices.written(result, case.output, subject.run))
    elif case.output is not None:
        told.append(f"Written to {result.save(case.output)}.")
    if case.adversarial is not None:
        evaluation.save_worst_inputs(case.adversarial, result, result.case.rec, result.case.inputs)
    name = str(case.model if subject is None else subject.run.path)
    show(result, case.as_json, _lines(case, result, name, told))


def _curve(case: _Options) -> None:
    """Robust accuracy against the radius."""
    from randens import evaluation
    from randens.core.files import write_json
    from randens.threat import grid

    if case.draws is not None:
        raise InputError("--draws evaluates a random model at one radius; give one --eps")
    radii = grid("--eps", case.eps)
    output = case.output
    drawn = output is not None and output.suffix.lower() in (".png", ".svg", ".pdf")
    given = case.given(max(radii) or 1e-9)
    subject = given.subject
    with case.running() as (processes, progress):
        found = evaluation.curve(
            given.model,
            given.data,
            radii,
            case.attack,
            norm=case.norm or (None if subject is None else subject.threat.norm),
            device=processes.device,
            preprocessing=given.preprocessing,
            split=case.split,
            limit=case.limit,
            seed=case.seed,
            progress=progress,
            deterministic=case.deterministic,
            folder=given.store,
        )
    if not processes.is_main:
        return
    paths = [] if output is None else [output]
    if subject is not None and (output is None or drawn):
        paths.insert(0, subject.run.path / "curve.json")
    for path in paths:
        if path is output and drawn:
            found.plot(path)
        else:
            write_json(path, found.to_json())
    show(found, case.as_json, [repr(found), *(f"Written to {path}." for path in paths)])


def _random(case: _Options, draws: int) -> None:
    """Evaluate a random model."""
    from randens import evaluation
    from randens.core.devices import on_device
    from randens.core.runs import Run
    from randens.evaluation.preparation import prepare

    assert case.model is not None
    output = case.output
    chosen = choices.make_attacks(case.attack, ("suite",), case.threat(), case.settings, case.seed)
    if output is not None and output.exists() and output.suffix != ".json":
        raise InputError(f"--output is {output}, which exists already; choose another folder")
    pair = case.preprocessing()
    made = evaluation.random_from_factory(case.model, draws, run_code=case.run_code)
    prepared = prepare(made, case.data, chosen, preprocessing=pair, split=case.split, limit=case.limit)
    with on_device(prepared.rec, case.device), bars() as progress:
        result = evaluation.evaluate_stochastic(
            prepared.rec,
            prepared.inputs,
            prepared.attacks,
            seed=case.seed,
            tolerance=case.tolerance,
            progress=progress,
        )
    told = []
    if output is not None:
        run = output.suffix != ".json"
        path = result.save(
            Run.create(output, kind="random model").path / "stochastic.json" if run else output
        )
        told.append(f"Written to {path}." + (f" A page about it: randens report {output}." if run else ""))
    show(result, case.as_json, [*result.statements(), *told])


def _lines(case: _Options, result: Evaluation, name: str, told: list[str]) -> Iterator[Any]:
    """The table in the requested format; in a terminal also sentences about it."""
    from randens.data import called
    from randens.evaluation import result_tables

    rows = result_tables.rows(result)
    if case.style is Format.markdown:
        yield result_tables.markdown(rows)
    elif case.style is Format.latex:
        yield result_tables.latex(rows)
    else:
        about = f"{called(result.data, result.split)}, {result.threat.norm} ε = {result.threat.eps:.4g}"
        yield result_tables.terminal(rows, f"{name} on {about}", result.confidence)
        yield from result_tables.statements(result)
        yield from told
