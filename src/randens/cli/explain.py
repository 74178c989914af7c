"""`randens explain`: bounds on an ensemble's risk from its members' risks."""

from __future__ import annotations

from typing import Annotated

import typer

from randens.cli.choices import Json, show
from randens.core.errors import InputError, number


def explain(
    risks: Annotated[list[str], typer.Argument(metavar="RISKS", help="Members' risks, e.g. 0.42 0.45 0.5.")],
    classes: Annotated[int | None, typer.Option(help="The number of classes.")] = None,
    as_json: Json = False,
) -> None:
    """Print floor, ceiling and advice for an ensemble whose members have these adversarial risks (Theorem 3).

    A risk is 1 minus robust accuracy, as a number from 0 to 1. The command
    needs no run folder and no torch.

    Example: randens explain 0.42 0.45 0.5
    """
    from randens.risk import explain as explain_risks

    found = explain_risks([_risk(text) for text in risks], classes=classes)
    limits = [f"floor    {found.floor:.4f}", f"ceiling  {found.ceiling:.4f}"]
    show(found, as_json, [*limits, *found.sentences])


def _risk(text: str) -> float:
    risk = number("RISKS", text)
    if not 0 <= risk <= 1:
        hint = f": did you mean {risk / 100:g}?" if 2 <= risk <= 100 else ""
        raise InputError(f"RISKS holds {text}; a risk is a number from 0 to 1{hint}")
    return risk
