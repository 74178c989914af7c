"""`randens explain`: what the members' risks alone say about any ensemble of them."""

from __future__ import annotations

from typing import Annotated

import typer

from randens.cli.output import Json, console, print_json
from randens.errors import InputError

__all__ = ["explain"]


def explain(
    risks: Annotated[
        list[str],
        typer.Argument(help="The members' adversarial risks, e.g. 0.42 0.45 0.5.", show_default=False),
    ],
    classes: Annotated[int | None, typer.Option(help="The number of classes.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Floor, ceiling and advice for an ensemble whose members have these adversarial risks (Theorem 3).

    A risk is 1 minus robust accuracy, as a number from 0 to 1. Needs no run
    folder and no torch.

    Example: randens explain 0.42 0.45 0.5
    """
    from randens.risk import explain as explain_risks

    found = explain_risks([_risk(text) for text in risks], classes=classes)
    if as_json:
        print_json(found.to_json())
        return
    out = console()
    out.print(f"floor    {found.bounds.floor:.4f}")
    out.print(f"ceiling  {found.bounds.ceiling:.4f}")
    for sentence in found.sentences:
        out.print(sentence)


def _risk(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"risks holds {text!r}; every risk must be a number from 0 to 1") from None
