"""`randens certify`: bounds on the risk of a run's ensemble that hold against every attack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from randens.cli import choices
from randens.cli.output import show
from randens.cli.progress_bars import bars

if TYPE_CHECKING:
    from randens.certify import Certification


@choices.asked(choices.Attacking)
def certify(
    case: choices.Attacking,
    refine: Annotated[
        int, typer.Option(help="ReLU layers up to this many units get the tighter, slower bounds.")
    ] = 4096,
    output: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; certification.json of the run by default.")
    ] = None,
) -> None:
    """Certify the ensemble of RUN: lower bounds on its accuracy that hold against every attack.

    This is useful for small networks or a small radius. On CIFAR-10 networks
    at 8/255 almost nothing can be certified. The accuracies under attack in
    the table come from the witnesses of earlier commands and from new attacks
    on --device. The bounds are computed on the CPU. Certificates go into the
    witness store, so that later attacks skip certified members. The result
    goes to certification.json of the run, unless that holds a result on more
    inputs.

    Example: randens certify runs/quickstart-1 --eps 0.03 --limit 50
    """
    from randens import evaluation
    from randens.certify import certify as run_certify

    opened = case.opened("saddle")
    subject, images, store = opened.subject, opened.images, opened.store
    with bars() as progress:
        attacked = evaluation.evaluate(
            subject.rec,
            images,
            opened.attacks,
            deterministic=False,
            chosen_on=subject.chosen_on,
            device=case.device,
            folder=store,
            progress=progress,
        )
        result = run_certify(
            subject.rec,
            images,
            subject.threat,
            pool=attacked.pool,
            refine=refine,
            folder=store,
            progress=progress,
        )
    written = choices.written(result, output, subject.run)
    title = f"{case.run} on {result.data} {result.split}, {result.threat.norm} ε = {result.threat.eps:.4g}"
    best = ", ".join(f"{p:.3g}" for p in result.best.probs.tolist())
    advice = " Use --split validation to choose α by it." if result.split == "test" else ""
    lines = [
        _table(result, title),
        f"Smallest certified risk at any probabilities: {result.best.risk:.4f} at α = ({best}).{advice}",
        f"Members one by one would give {result.separate():.4f}; sets of members proven not to be fooled together: "
        f"{result.refuted}.",
        *choices.said(store, attacked.now, f"{attacked.reread} stored witnesses judged again"),
        f"{result.n} inputs, {result.seconds:.1f} s. {written}",
    ]
    show(result, case.as_json, lines)


def _table(result: Certification, title: str) -> Table:
    from randens.evaluation import result_tables

    table = Table("", title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in ("natural", "under attack", "certified"):
        table.add_column(heading, justify="right")
    attacked = result.witnesses.member_risks if result.witnesses is not None else result.clean.mean(axis=0)
    for i, upper in enumerate(result.member_upper.tolist()):
        natural = 1 - result.clean[:, i].mean()
        shares = (natural, 1 - attacked[i], 1 - upper)
        table.add_row(f"member {i}", *(result_tables.percent(float(share)) for share in shares))
    natural = 1 - float((result.clean @ result.probs).mean())
    shares = (natural, 1 - result.lower(), 1 - result.upper())
    table.add_row("randomized", *(result_tables.percent(share) for share in shares))
    return table
