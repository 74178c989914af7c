"""`randens evaluate`: natural and robust accuracy of a run's ensemble."""

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

__all__ = ["evaluate"]


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

    Example: randens evaluate runs/quickstart-1 --attack arc-r --attack saddle
    --limit 100
    """
    case.check()
    if case.draws is not None:
        if case.model is None:
            raise InputError("--draws needs --model: the members of a run folder are not random")
        _random(case, case.draws)
    elif case.run is None:
        _own(case)
    else:
        _of_run(case, case.run)


def _of_run(case: _Options, run: Path) -> None:
    """Evaluate the ensemble of a run folder; the result is kept there."""
    from randens import evaluation

    subject = case.subject(run)
    images = subject.load(case.split, case.limit)
    chosen = choices.make_attacks(case.attack, ("suite",), subject.threat, case.settings, case.seed)
    store = subject.store(fresh=case.fresh, verify=case.verify)
    with case.running() as (processes, progress):
        result = evaluation.evaluate(
            subject.rec,
            images,
            chosen,
            also={"uniform": None} if case.uniform and len(subject.rec) > 1 else {},
            deterministic=case.deterministic,
            chosen_on=subject.chosen_on,
            device=processes.device,
            folder=store,
            progress=progress,
        )
    if not processes.writes:
        return
    written = choices.written(result, case.output, subject.run)
    if case.adversarial is not None:
        evaluation.save_worst_inputs(case.adversarial, result, subject.rec, images)
    told = choices.said(store, result.now, f"{result.reread} stored witnesses judged again")
    show(result, case.as_json, _lines(case, result, str(subject.run.path), [*told, written]))


def _own(case: _Options) -> None:
    """Evaluate the user's own networks and print the result."""
    from randens import evaluation

    assert case.model is not None
    model, pair = case.own()
    threat = case.threat()
    chosen = choices.make_attacks(case.attack, ("suite",), threat, case.settings, case.seed)
    with case.running() as (processes, progress):
        result = evaluation.evaluate(
            model,
            case.data,
            chosen,
            device=processes.device,
            bounds=threat.bounds,
            preprocessing=pair,
            split=case.split,
            limit=case.limit,
            deterministic=case.deterministic,
            also={"uniform": None} if case.uniform else {},
            progress=progress,
        )
    if not processes.writes:
        return
    path = None if case.output is None else result.save(case.output)
    if case.adversarial is not None and result.case is not None:
        evaluation.save_worst_inputs(case.adversarial, result, result.case.rec, result.case.inputs)
    told = [] if path is None else [f"Written to {path}."]
    show(result, case.as_json, _lines(case, result, case.model, told))


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
