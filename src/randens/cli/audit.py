"""`randens audit`: check whether robust accuracies can be trusted."""

from __future__ import annotations

import typer

from randens.cli import choices
from randens.cli.choices import Json, open_case
from randens.core.progress import bars


def audit(
    model: choices.Model,
    data: choices.Data = None,
    split: choices.Split = "test",
    limit: choices.Limit = 128,
    norm: choices.Norm = None,
    eps: choices.Eps = None,
    output: choices.Output = None,
    device: choices.Device = "auto",
    fresh: choices.Fresh = False,
    as_json: Json = False,
) -> None:
    """Check MODEL for masked gradients, nondeterminism and violated invariants; exit code 1 if a check fails.

    These are checks that published evaluations have failed, each with advice
    what to do. On fewer than 50 inputs the audit is inconclusive, and the exit
    code is 1 as well. The result goes to audit.json of the run.

    Example: randens audit runs/quickstart-1
    """
    from randens.audits import audit as run_audit
    from randens.evaluation import Evaluation

    case = open_case(model, data=data, norm=norm, eps=eps, fresh=fresh)
    known = None if case.run is None else case.run.path / "evaluation.json"
    with bars() as progress:
        result = run_audit(
            case.model,
            case.data,
            case.attacks,
            split=split,
            limit=limit,
            evaluation=Evaluation.load(known) if known is not None and known.is_file() else None,
            device=device,
            folder=case.store,
            progress=progress,
        )
    case.show(result, output, as_json)
    if not result.passed:
        raise typer.Exit(1)
