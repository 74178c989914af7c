"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli import names as known
from randens.errors import InputError

if TYPE_CHECKING:
    from randens.attacks import Attack
    from randens.threat import Threat

__all__ = [
    "Attacks",
    "Data",
    "Eps",
    "Limit",
    "Norm",
    "RunFolder",
    "Seed",
    "Settings",
    "make_attacks",
    "number",
]

RunFolder = Annotated[
    Path,
    typer.Argument(
        help="A run folder, as `randens quickstart` and `randens train` make them, e.g. runs/quickstart-1.",
        show_default=False,
    ),
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack",
        help=f"An attack by name; repeatable, the worst of all counts. One of: {', '.join(known.ATTACKS)}.",
        show_default=False,
        autocompletion=known.starting(known.ATTACKS),
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="An option of every attack named, e.g. steps=40; repeatable.", show_default=False
    ),
]
Norm = Annotated[
    str | None,
    typer.Option(
        help="linf or l2, instead of the run's; give --eps too.",
        show_default=False,
        autocompletion=known.starting(known.NORMS),
    ),
]
Eps = Annotated[
    str | None,
    typer.Option(
        help="Radius of the perturbations instead of the run's, e.g. 0.03 or 8/255; pixels go from 0 to 1.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help=f"Data set instead of the run's. One of: {', '.join(known.DATA_SETS)}.",
        show_default=False,
        autocompletion=known.starting(known.DATA_SETS),
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Use only so many inputs, the first ones; all by default.", show_default=False),
]
Seed = Annotated[int, typer.Option(help="Decides every random choice of the attacks.")]


def number(name: str, text: str | None) -> float | None:
    """A number or a fraction such as 8/255."""
    if text is None:
        return None
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{name} is {text!r}; it must be a number or a fraction, e.g. 0.03 or 8/255"
        ) from None


def make_attacks(
    names: list[str] | None, default: tuple[str, ...], threat: Threat, settings: list[str] | None, seed: int
) -> list[Attack]:
    """The attacks named, each with the settings."""
    from randens import attacks

    options = dict(_setting(text) for text in settings or [])
    return [attacks.create(name, threat, seed=seed, **options) for name in names or default]


def _setting(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InputError(f"--set is {text!r}; it must be name=value, e.g. steps=40")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
