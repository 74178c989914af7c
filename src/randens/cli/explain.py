"""`randens explain`: bounds on an ensemble's risk from its members' risks, and audits of published tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli.clone import from_paper
from randens.cli.output import Json, show
from randens.core.errors import FileError, InputError
from randens.core.files import parse_json

if TYPE_CHECKING:
    from randens.risk.published import Audited, Reported

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def explain(
    risks: Annotated[
        list[str] | None, typer.Argument(help="The members' adversarial risks, e.g. 0.42 0.45 0.5.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="The number of classes.")] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="Audit a published table: a TOML or JSON file with rows, or the word paper for its own tables."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print floor, ceiling and advice for an ensemble whose members have these adversarial risks (Theorem 3).

    A risk is 1 minus robust accuracy, as a number from 0 to 1. The command
    needs no run folder and no torch. With --table, reported accuracies are
    audited: it prints the P(R1) and the probabilities that they imply, and
    contradictions to the theorems or to the inclusion of balls. A row has
    name, members (robust accuracies), robust, and if known probs and attacks
    (name, robust, norm, eps).

    Example: randens explain 0.42 0.45 0.5
    """
    from randens.risk import explain as explain_risks
    from randens.risk.published import audit_published

    if (risks is None or not risks) == (table is None):
        raise InputError("give either the members' risks or --table, not both and not neither")
    if table is not None:
        rows, also = _rows(table)
        audited = [audit_published(row) for row in rows]
        show({"rows": audited, "repeated": also}, as_json, _audit(rows, audited, also))
        return

    found = explain_risks([_risk(text) for text in risks or ()], classes=classes)
    limits = [f"floor    {found.bounds.floor:.4f}", f"ceiling  {found.bounds.ceiling:.4f}"]
    show(found, as_json, [*limits, *found.sentences])


def _audit(rows: list[Reported], found: list[Audited], also: tuple[str, ...]) -> Iterator[str]:
    """What an audit of published rows found, in sentences."""
    for row, one in zip(rows, found, strict=True):
        said = []
        if one.gain is not None:
            said.append(f"gain {100 * one.gain:+.2f} points")
        if one.conflict is not None:
            said.append(f"{'P(R1)' if len(row.members) == 2 else 'conflict at least'} {one.conflict:.2%}")
        if one.probs_range is not None:
            ranges = ", ".join(f"{low:.2f}–{high:.2f}" for low, high in one.probs_range)
            said.append(f"possible α: {ranges}{'' if one.uniform_possible else ' (uniform is not)'}")
        yield f"{one.name}: {'; '.join(said) or 'nothing to check'}"
        yield from (f"  VIOLATION: {text}" for text in one.violations)
        yield from (f"  note: {text}" for text in one.notes)
    yield from (f"printed twice: {text}" for text in also)
    yield f"{len(found)} rows, {sum(bool(one.violations) for one in found)} with violations."


def _rows(table: str) -> tuple[list[Reported], tuple[str, ...]]:
    from randens.risk.published import reported_from

    if table == "paper":
        published = from_paper("reproduce.published", "--table paper")
        return list(published.paper_rows()), published.repeated()
    path = Path(table)
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = parse_json(text.encode()) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise FileError(f"cannot read the table {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"{path} is neither TOML nor JSON: {error}") from error
    rows = content.get("rows") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} holds no rows; give [[rows]] with name, members and robust")
    return [reported_from(row) for row in rows], ()


def _risk(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"risks holds {text!r}; every risk must be a number from 0 to 1") from None
