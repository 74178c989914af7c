"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from randens import attacks
from randens.attacks import Attack
from randens.errors import InputError
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

RunFolder = Annotated[Path, typer.Argument(help="A run folder, e.g. runs/quickstart-1.", show_default=False)]
Attacks = Annotated[
    list[str] | None,
    typer.Option("--attack", help="An attack by name; several work one after the other.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="An option of the attack, e.g. steps=40; repeatable.", show_default=False),
]
Norm = Annotated[str | None, typer.Option(help="linf or l2 instead of the run's.", show_default=False)]
Eps = Annotated[str | None, typer.Option(help="Radius instead of the run's, e.g. 8/255.", show_default=False)]
Data = Annotated[str | None, typer.Option(help="Data set instead of the run's.", show_default=False)]
Limit = Annotated[int | None, typer.Option(help="Use the first inputs only.", show_default=False)]
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
