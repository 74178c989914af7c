"""`randens certify`: bounds on the risk that hold against every attack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from randens.cli import choices
from randens.cli.choices import open_case
from randens.cli.output import Json, show
from randens.core.progress import bars

if TYPE_CHECKING:
    from randens.certify import Certification


def certify(
    model: choices.Model,
    data: choices.Data = None,
    split: choices.Split = "test",
    limit: choices.Limit = None,
    attack: choices.Attacks = None,
    norm: choices.Norm = None,
    eps: choices.Eps = None,
    output: choices.Output = None,
    device: choices.Device = "auto",
    fresh: choices.Fresh = False,
    as_json: Json = False,
) -> None:
    """Certify MODEL: lower bounds on its accuracy that hold against every attack.

    This is useful for small networks or a small radius. On CIFAR-10 networks
    at 8/255 almost nothing can be certified. The accuracies under attack in
    the table come from the witnesses of earlier commands and from new attacks
    on --device; the bounds are computed on the CPU. The result goes to
    certification.json of the run.

    Example: randens certify runs/quickstart-1 --eps 0.03 --limit 50
    """
    from randens import evaluation
    from randens.certify import certify as run_certify

    case = open_case(
        model,
        data=data,
        split=split,
        limit=limit,
        attack=attack,
        default=("saddle",),
        norm=norm,
        eps=eps,
        fresh=fresh,
    )
    with bars() as progress:
        attacked = evaluation.evaluate(
            case.rec,
            case.data,
            case.attacks,
            deterministic=False,
            chosen_on=case.chosen_on,
            bounds=case.threat.bounds,
            device=device,
            folder=case.store,
            progress=progress,
        )
        result = run_certify(
            case.rec, case.data, case.threat, pool=attacked.pool, folder=case.store, progress=progress
        )
    title = f"{case.name} on {result.data} {result.split}, {result.threat.norm} ε = {result.threat.eps:.4g}"
    best = ", ".join(f"{p:.3g}" for p in result.best.probs.tolist())
    advice = " Use --split validation to choose α by it." if result.split == "test" else ""
    found = f"Smallest certified risk at any probabilities: {result.best.risk:.4f} at α = ({best}).{advice}"
    if result.best.risk >= 1:
        found = "Nothing is certified: the bounds exclude no error at this radius. Try a smaller --eps."
    lines = [
        _table(result, title),
        found,
        f"Members one by one would give {result.separate():.4f}; sets of members proven not to be fooled together: "
        f"{result.refuted}.",
        *case.passes(attacked.now),
        f"{result.n} inputs, {result.seconds:.1f} s.",
        *case.keep(result, output),
    ]
    show(result, as_json, lines)


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
