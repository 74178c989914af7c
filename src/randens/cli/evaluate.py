"""`randens evaluate`: natural and robust accuracy of a run's ensemble."""

from __future__ import annotations

import shutil
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from randens.cli import choices, names
from randens.cli.output import Json, console, print_json
from randens.cli.progress import bars

__all__ = ["evaluate"]


class Format(str, Enum):
    """How the table is printed."""

    table = "table"
    markdown = "markdown"
    latex = "latex"


def evaluate(
    run: choices.RunFolder,
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
    seed: choices.Seed = 0,
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
    as_json: Json = False,
) -> None:
    """Evaluate the ensemble of RUN: exact expected accuracies on the worst perturbations found.

    The default attack is the portfolio `suite`. The numbers go to evaluation.json
    of the run, which the report, the figures and the audit read. An interrupted
    evaluation is continued by the same command. Under torchrun or srun the
    processes share the images out.

    Example: randens evaluate runs/quickstart-1 --attack arc-r --attack saddle
    --limit 100
    """
    from randens import evaluation
    from randens.evaluation import tables
    from randens.evaluation.kept import workplace
    from randens.evaluation.subject import open_subject
    from randens.training.distributed import workers

    subject = open_subject(run, data=data, norm=norm, eps=choices.number("--eps", eps))
    images = subject.load(split, limit)
    chosen = choices.make_attacks(attack, ("suite",), subject.threat, settings, seed)
    also = {"uniform": None} if uniform and len(subject.rec) > 1 else {}
    parts = workplace(subject.run, subject.rec, images, chosen)
    with workers("cpu") as crew, bars() as progress:
        result = evaluation.evaluate(
            subject.rec,
            images,
            chosen,
            also=also,
            deterministic=deterministic,
            chosen_on=subject.chosen_on,
            folder=parts,
            progress=progress,
        )
    if not crew.writes:
        return
    path = result.save(output or subject.run.path / "evaluation.json")
    shutil.rmtree(parts.parent, ignore_errors=True)
    if adversarial is not None:
        evaluation.save_worst_inputs(adversarial, result, subject.rec, images)
    if as_json:
        print_json(result.to_json())
        return
    rows = tables.rows(result)
    if style is Format.markdown:
        typer.echo(tables.markdown(rows))
    elif style is Format.latex:
        typer.echo(tables.latex(rows))
    else:
        title = f"{subject.run.path} on {result.data} {result.split}, {result.threat.norm} ε = {result.threat.eps:.4g}"
        out = console()
        out.print(tables.terminal(rows, title, result.confidence))
        for line in tables.statements(result):
            out.print(line)
        out.print(f"Written to {path}.")
