"""`randens sample`: the sampling probabilities with the smallest risk under attack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from randens.cli import choices
from randens.cli.choices import open_case
from randens.cli.output import Json, show
from randens.core.errors import InputError
from randens.core.progress import bars

if TYPE_CHECKING:
    from randens.evaluation import AttackedSampling
    from randens.risk.sampling import Contribution, MethodValue


def sample(
    model: choices.Model,
    data: choices.Data = None,
    split: choices.Split = "validation",
    limit: choices.Limit = None,
    attack: choices.Attacks = None,
    norm: choices.Norm = None,
    eps: choices.Eps = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            help="Choose by a confidence bound of the excess over uniform, e.g. 0.95, instead of the optimum on these "
            "inputs."
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Store the probabilities in the run's ensemble.")
    ] = False,
    device: choices.Device = "auto",
    fresh: choices.Fresh = False,
    as_json: Json = False,
) -> None:
    """Find the sampling probabilities of MODEL, with a bound on how much better others could be.

    By default α is optimal on these inputs, as in Python; with --confidence it
    differs from uniform only where the inputs give enough evidence. The
    command also prints the risk without each member and the risks that simpler
    methods reach. It uses the validation split; test data are refused. The
    result goes to sampling.json of the run; only --apply changes the ensemble.

    Example: randens sample runs/quickstart-1 --apply
    """
    from randens.core.distributed import workers
    from randens.evaluation import optimize_sampling
    from randens.risk import optimal_sampling
    from randens.risk.sampling import compare_methods, contributions

    case = open_case(
        model, data=data, attack=attack, default=("arc-r", "saddle"), norm=norm, eps=eps, fresh=fresh
    )
    if apply and case.run is None:
        raise InputError(f"--apply changes a run's ensemble, and {model} is no run folder")
    with workers(device) as processes, bars() as progress:
        found = optimize_sampling(
            case.model,
            case.data,
            case.attacks,
            split=split,
            limit=limit,
            confidence=confidence,
            device=processes.device,
            folder=case.store,
            progress=progress,
        )
    if not processes.is_main:
        return
    exact = found if found.confidence is None else optimal_sampling(found.profile, method="exact")
    methods, members = compare_methods(found.profile, exact), contributions(found.profile, found)
    document = {
        **found.to_json(),
        "methods": [m.to_json() for m in methods],
        "contributions": [c.to_json() for c in members],
    }
    lines = [*_lines(found, methods, members), *case.passes(found.now)]
    lines.append(f"Chosen on the {found.about.split} split of {found.about.data}, {found.about.n} inputs.")
    if case.run is not None:
        lines.append(f"Written to {case.run.write('sampling', document)}.")
        if apply:
            from randens.core.files import read_json, seal, write_json

            # One file is replaced, atomically: the members stay as they are.
            manifest = case.run.ensemble / "ensemble.json"
            write_json(manifest, seal({**read_json(manifest), "probs": found.probs.tolist()}))
            lines.append("The run's ensemble samples with these probabilities now.")
    show(document, as_json, lines)


def _lines(
    found: AttackedSampling, methods: tuple[MethodValue, ...], members: tuple[Contribution, ...]
) -> Iterator[Any]:
    yield f"probabilities  {', '.join(f'{p:.6g}' for p in found.probs.tolist())}"
    yield f"risk           {found.risk:.6f}"
    if found.upper is None:
        yield f"lower bound    {found.lower_bound:.6f} of the risk on these inputs; gap {found.gap:.2g}"
    else:
        yield (
            f"upper bound    {found.upper:.6f} on the distribution, against the perturbations found, "
            f"{found.confidence:.0%} confidence for all α at once"
        )
    if (crossed := found.crossed) is not None:
        yield f"cross-fitted   {crossed.risk:.6f} ± {crossed.deviation:.4f}, on inputs that did not choose α"
    if len(found.support) == 1 and len(found.probs) > 1:
        yield f"α selects member {found.support[0]}: nothing is sampled."
    yield f"These probabilities have the {found.claim}."
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
