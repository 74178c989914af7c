"""`randens certify`: bounds on the risk that hold against every attack."""

from __future__ import annotations

from typing import Any

from randens.cli import choices
from randens.cli.choices import Json, open_case
from randens.core.progress import bars


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

    This is useful for small networks or a small radius; on CIFAR-10 networks
    at 8/255 almost nothing can be certified. The result goes to
    certification.json of the run.

    Example: randens certify runs/quickstart-1 --eps 0.03 --limit 50
    """
    from randens.certificates import certify as run_certify
    from randens.evaluation import evaluate

    case = open_case(model, data=data, attack=attack, default=("saddle",), norm=norm, eps=eps, fresh=fresh)
    part: Any = {"split": split, "limit": limit, "device": device, "folder": case.store}
    with bars() as progress:
        evaluate(case.model, case.data, case.attacks, progress=progress, **part)
        result = run_certify(case.model, case.data, threat=case.threat, progress=progress, **part)
    case.show(result, output, as_json)
