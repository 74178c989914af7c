"""`randens sample`: the probabilities with the smallest risk under attack, and the risk without each member."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from randens.cli import choices, names
from randens.cli.output import show
from randens.core.errors import unknown

if TYPE_CHECKING:
    from randens.evaluation import AttackedSampling
    from randens.risk.sampling import Contribution, MethodValue


_METHODS = ("confidence", "exact")


@choices.asked(choices.Attacking, split="validation")
def sample(
    case: choices.Attacking,
    method: Annotated[
        str,
        typer.Option(
            help="confidence: by a confidence bound of the excess over uniform; exact: the optimum on these inputs.",
            autocompletion=names.starting(_METHODS),
        ),
    ] = "confidence",
    confidence: Annotated[float, typer.Option(help="One-sided, for --method confidence.")] = 0.95,
    tol: Annotated[float, typer.Option(help="The gap at which to stop.")] = 1e-3,
    max_sweeps: Annotated[int, typer.Option(help="The largest number of attacks on all inputs.")] = 20,
    apply: Annotated[
        bool, typer.Option("--apply", help="Store the probabilities in the run's ensemble.")
    ] = False,
) -> None:
    """Find the sampling probabilities of the ensemble of RUN, with a bound on how much better others could be.

    α differs from uniform only where the inputs give enough evidence; --method
    exact gives the optimum on these inputs instead. The command also prints
    the risk without each member and the risks that simpler methods reach. It
    uses the validation split by default; test data are refused. The result
    goes to sampling.json of the run, unless that holds a result on more
    inputs; only --apply changes the ensemble. The search starts from the
    witnesses of earlier commands. Under torchrun or srun the images are
    divided among the processes.

    Example: randens sample runs/quickstart-1 --apply
    """
    from randens import evaluation
    from randens.evaluation.argument_checks import fingerprint
    from randens.risk import optimal_sampling
    from randens.risk.sampling import compare_methods, contributions

    if method not in _METHODS:
        unknown("--method", method, _METHODS)
    opened = case.opened("arc-r", "saddle")
    subject, store = opened.subject, opened.store
    with case.running() as (processes, progress):
        subject.rec.to(processes.device)
        found = evaluation.optimize_sampling(
            subject.rec,
            opened.images,
            opened.attacks,
            tol=tol,
            max_sweeps=max_sweeps,
            progress=progress,
            confidence=confidence if method == "confidence" else None,
            folder=store,
        )
    if not processes.is_main:
        return
    exact = found if found.confidence is None else optimal_sampling(found.profile, method="exact")
    methods, members = compare_methods(found.profile, exact), contributions(found.profile, found)
    document = {
        **found.to_json(),
        "ensemble": fingerprint(subject.rec),
        "reused_witnesses": found.reused,
        "methods": [m.to_json() for m in methods],
        "contributions": [c.to_json() for c in members],
    }
    asked = ("ensemble", "data", "split", "threat", "attacks", "tol", "confidence", "n")
    path, main = subject.run.keep(
        "sampling", document, {**{k: document[k] for k in asked}, "seed": case.seed}
    )
    if apply:
        subject.rec.with_probs(found.probs).save(subject.run.ensemble, overwrite=True)
    kept = "" if main else " sampling.json keeps its answer on more inputs."
    where = f"the {found.split} split of {found.data}, {found.pool.n} inputs"
    lines = [
        *_lines(found, methods, members),
        *choices.said(store, found.now, f"{found.reused} witnesses were known"),
        f"Chosen on {where}; written to {path}.{kept}",
        *(["The run's ensemble now draws with these probabilities."] if apply else []),
    ]
    show(document, case.as_json, lines)


def _lines(
    found: AttackedSampling, methods: tuple[MethodValue, ...], members: tuple[Contribution, ...]
) -> Iterator[Any]:
    yield f"probabilities  {', '.join(f'{p:.6g}' for p in found.probs.tolist())}"
    yield f"risk           {found.risk:.6f}"
    if found.upper is None:
        yield f"lower bound    {found.lower_bound:.6f}   gap {found.gap:.2g}"
    else:
        yield (
            f"upper bound    {found.upper:.6f} on the distribution, against the perturbations found, "
            f"{found.confidence:.0%} confidence for all α at once"
        )
    if (crossed := found.crossed) is not None:
        yield f"cross-fitted   {crossed.risk:.6f} ± {crossed.deviation:.4f}, on inputs that did not choose α"
    drawn = found.support
    if len(drawn) == 1 and len(found.probs) > 1:
        yield f"α selects member {drawn[0]}: nothing is drawn."
    yield f"These are {found.claim}."
    yield from ("", _methods(methods), "", _members(members))
    yield from (f"Advice: {entry.advice}." for entry in members if entry.prob == 0)
    yield ""


def _methods(methods: tuple[MethodValue, ...]) -> Table:
    table = Table("method", box=None, pad_edge=False)
    for heading in ("risk", "above the lower bound"):
        table.add_column(heading, justify="right")
    table.add_column("probabilities")
    for method in methods:
        probs = ", ".join(f"{p:.4f}" for p in method.probs.tolist())
        table.add_row(method.name, f"{method.risk:.6f}", f"{method.excess:.6f}", probs)
    return table


def _members(members: tuple[Contribution, ...]) -> Table:
    table = Table("member", box=None, pad_edge=False)
    for heading in ("probability", "risk alone", "risk without it"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for entry in members:
        without = "" if entry.risk_without is None else f"{entry.risk_without:.4f}"
        table.add_row(
            str(entry.member), f"{entry.prob:.4f}", f"{entry.risk_alone:.4f}", without, entry.advice
        )
    return table
