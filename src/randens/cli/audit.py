"""`randens audit`: check whether the numbers of a run can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from randens.cli import choices
from randens.cli.output import show
from randens.cli.progress_bars import bars


@choices.asked(choices.Attacking, without=("attack", "settings"), limit=128)
def audit(
    case: choices.Attacking,
    output: Annotated[
        Path | None, typer.Option(help="Where the JSON goes; audit.json of the run by default.")
    ] = None,
) -> None:
    """Check the ensemble of RUN for masked gradients, randomness and broken laws; exit code 1 if a check fails.

    These are checks that published evaluations have failed, each with advice
    what to do. On fewer than 50 inputs the audit is inconclusive, and the exit
    code is 1 as well. Attacks of earlier audits are read from the run's
    witnesses. The result goes to audit.json of the run, unless that holds an
    audit on more inputs.

    Example: randens audit runs/quickstart-1
    """
    from randens.audit import audit as run_audit
    from randens.evaluation import Evaluation
    from randens.models import pick_device

    opened = case.opened()
    subject, store = opened.subject, opened.store
    known = subject.run.path / "evaluation.json"
    evaluation = Evaluation.load(known) if known.is_file() else None
    subject.rec.to(pick_device(case.device))
    with bars() as progress:
        result = run_audit(
            subject.rec,
            opened.images,
            subject.threat,
            evaluation=evaluation,
            chosen_on=subject.chosen_on,
            seed=case.seed,
            folder=store,
            progress=progress,
        )
    written = choices.written(result, output, subject.run)
    lines: list[str | Text] = []
    for check in result.checks:
        lines.append(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.finding}")
        lines += [f"       → {check.advice}"] if check.advice else []
    lines += [
        Text(result.verdict, style="bold"),
        f"{result.cost.forwards:,} forward and {result.cost.backwards:,} backward member passes, "
        f"{result.seconds:.1f} s, for the whole audit.",
        *choices.said(store, result.now, "the attacks are"),
        written,
    ]
    show(result, case.as_json, lines)
    if not result.passed:
        raise typer.Exit(1)
