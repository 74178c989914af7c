"""`randens evaluate`: natural and robust accuracy of a run's ensemble."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli import choices, names
from randens.cli.output import Json, console, print_json
from randens.cli.progress import bars
from randens.core.errors import InputError

if TYPE_CHECKING:
    from randens.attacks import Attack
    from randens.evaluation import Evaluation

__all__ = ["evaluate"]


class Format(str, Enum):
    """How the table is printed."""

    table = "table"
    markdown = "markdown"
    latex = "latex"


def evaluate(
    run: choices.OptionalRun = None,
    model: choices.Model = None,
    run_code: choices.RunCode = False,
    attack: choices.Attacks = None,
    settings: choices.Settings = None,
    split: Annotated[
        str,
        typer.Option(
            help="The split to evaluate on: train, validation or test.",
            autocompletion=names.starting(names.SPLITS),
        ),
    ] = "test",
    limit: choices.Limit = None,
    data: choices.Data = None,
    norm: choices.Norm = None,
    eps: choices.Eps = None,
    mean: choices.Mean = None,
    std: choices.Std = None,
    device: choices.Device = "auto",
    seed: choices.Seed = 0,
    draws: Annotated[
        int | None,
        typer.Option(
            help="With --model: it answers at random; attack so many frozen draws of it and score it on fresh ones.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="With --draws: how far attacked and fresh draws may differ in accuracy.")
    ] = 0.02,
    deterministic: Annotated[bool, typer.Option(help="Attack the mean of all logits too.")] = True,
    uniform: Annotated[bool, typer.Option(help="Attack equal probabilities, too.")] = True,
    output: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; evaluation.json of the run by default.")
    ] = None,
    adversarial: Annotated[
        Path | None,
        typer.Option(help="Also write the worst perturbed inputs there, as safetensors.", show_default=False),
    ] = None,
    style: Annotated[Format, typer.Option("--format", help="Table, Markdown or LaTeX rows.")] = Format.table,
    fresh: choices.Fresh = False,
    verify: choices.Verify = False,
    as_json: Json = False,
) -> None:
    """Evaluate the ensemble of RUN, or networks of your own: expected accuracies on the worst perturbations found.

    The default attack is the portfolio `suite`, preset standard. The numbers go to
    evaluation.json of the run, which the report, the figures and the audit read,
    unless that holds numbers on more inputs; every answer is in the folder answers.
    What is known from earlier commands is not attacked again: an interrupted
    evaluation is continued by the same command, and the same command makes no
    attack twice. Under torchrun or srun the processes share the images out.

    Networks of your own: --model and --data instead of RUN. Their numbers are
    printed, and written where --output says. A network whose answers are random
    needs --draws: a factory with an argument gets a seed for every draw, one
    without returns a module that draws from torch's generators. If --output names
    a folder, that becomes a run folder, of which randens report makes a page.

    Example: randens evaluate runs/quickstart-1 --attack arc-r --attack saddle
    --limit 100
    """
    from randens import evaluation
    from randens.core.distributed import workers
    from randens.evaluation.run_folder import open_subject

    choices.one_of(run, model)
    if draws is not None:
        if model is None:
            raise InputError("--draws needs --model: the members of a run folder are not random")
        rest = {"split": split, "limit": limit, "seed": seed, "tolerance": tolerance}
        chosen_threat = choices.own_threat(norm, eps)
        attacks = choices.make_attacks(attack, ("suite",), chosen_threat, settings, seed)
        _random(model, run_code, data, draws, attacks, rest, output, as_json)
        return
    if run is None:
        assert model is not None
        own, pair = choices.own_case(model, run_code, mean, std, data)
        threat = choices.own_threat(norm, eps)
        named = choices.make_attacks(attack, ("suite",), threat, settings, seed)
        with workers(device) as crew, bars() as progress:
            result = evaluation.evaluate(
                own,
                data,
                named,
                device=crew.device,
                bounds=threat.bounds,
                preprocessing=pair,
                split=split,
                limit=limit,
                deterministic=deterministic,
                also={"uniform": None} if uniform else {},
                progress=progress,
            )
        if crew.writes:
            path = None if output is None else result.save(output)
            if adversarial is not None and result.case is not None:
                evaluation.save_worst_inputs(adversarial, result, result.case.rec, result.case.data)
            _print(result, model, style, [] if path is None else [f"Written to {path}."], as_json)
        return
    subject = open_subject(run, data=data, norm=norm, eps=choices.number("--eps", eps))
    images = subject.load(split, limit)
    chosen = choices.make_attacks(attack, ("suite",), subject.threat, settings, seed)
    also = {"uniform": None} if uniform and len(subject.rec) > 1 else {}
    store = subject.store(fresh=fresh, verify=verify)
    with workers(device) as crew, bars() as progress:
        result = evaluation.evaluate(
            subject.rec,
            images,
            chosen,
            also=also,
            deterministic=deterministic,
            chosen_on=subject.chosen_on,
            device=crew.device,
            folder=store,
            progress=progress,
        )
    if not crew.writes:
        return
    path, main = (result.save(output), True) if output is not None else result.keep(subject.run)
    if adversarial is not None:
        evaluation.save_worst_inputs(adversarial, result, subject.rec, images)
    kept = "" if main else " evaluation.json keeps its numbers on more inputs."
    told = choices.said(store, result.now, f"{result.reread} stored witnesses judged again")
    _print(result, str(subject.run.path), style, [*told, f"Written to {path}.{kept}"], as_json)


def _random(
    model: str,
    run_code: bool,
    data: str | None,
    draws: int,
    attacks: list[Attack],
    rest: dict[str, Any],
    output: Path | None,
    as_json: bool,
) -> None:
    """Evaluate a model whose answers are random."""
    from randens import evaluation
    from randens.core.runs import Run
    from randens.evaluation.evaluate_any import prepare

    if data is None:
        raise InputError(
            "--model needs --data: a data set's name, an .npz file with x and y, or a folder of images"
        )
    if output is not None and output.exists() and output.suffix != ".json":
        raise InputError(f"--output is {output}, which exists already; choose another folder")
    made = evaluation.random_from_factory(model, draws, run_code=run_code)
    case = prepare(made, data, attacks, split=rest["split"], limit=rest["limit"])
    with bars() as progress:
        result = evaluation.evaluate_stochastic(
            case.rec,
            case.data,
            case.attacks,
            seed=rest["seed"],
            tolerance=rest["tolerance"],
            progress=progress,
        )
    told = []
    if output is not None:
        run = output.suffix != ".json"
        path = result.save(
            Run.create(output, kind="random model").path / "stochastic.json" if run else output
        )
        told.append(f"Written to {path}." + (f" A page about it: randens report {output}." if run else ""))
    if as_json:
        print_json(result.to_json())
        return
    out = console()
    for line in [*result.statements(), *told]:
        out.print(line, markup=False)


def _print(result: Evaluation, name: str, style: Format, told: list[str], as_json: bool) -> None:
    from randens.evaluation import tables

    if as_json:
        print_json(result.to_json())
        return
    rows = tables.rows(result)
    if style is Format.markdown:
        typer.echo(tables.markdown(rows))
    elif style is Format.latex:
        typer.echo(tables.latex(rows))
    else:
        title = f"{name} on {result.data} {result.split}, {result.threat.norm} ε = {result.threat.eps:.4g}"
        out = console()
        out.print(tables.terminal(rows, title, result.confidence))
        for line in tables.statements(result):
            out.print(line)
        for line in told:
            out.print(line, markup=False)
