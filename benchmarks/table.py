"""The one table, from rows as they are in the JSON: for terminals and, with bars, for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["HEAD", "cells", "markdown", "text"]

HEAD = ("what", "peer or limit", "ratio", "goal", "robust accuracy", "passes", "seconds", "remark")


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row as text, in the order of `HEAD`. Both sides, where both are known, as ours / theirs."""
    ours, theirs = row["ours"], row["theirs"]
    goal = row["goal"]
    verdict = "" if goal is None else f"{goal['text']}: {_VERDICTS[goal['met']]}"
    remarks = [row["note"]] if row["note"] else []
    if row["noisy"]:
        remarks.append(f"NOISY: best and median differ by {row['spread']:.0%}")
    return (
        row["what"],
        theirs["name"],
        _figure(row),
        verdict,
        _pair(ours["accuracy"], theirs["accuracy"], lambda share: f"{share:.1%}"),
        _pair(ours["passes"] or None, theirs["passes"] or None, str),
        _pair(ours["timing"], theirs["timing"], lambda timing: _seconds(timing["best"])),
        "; ".join(remarks),
    )


def text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Aligned columns."""
    return aligned([cells(row) for row in rows])


def aligned(lines: Sequence[Sequence[str]], head: Sequence[str] = HEAD) -> str:
    whole = [list(head), *[list(line) for line in lines]]
    widths = [max(len(line[i]) for line in whole) for i in range(len(head))]
    rule = "  ".join("-" * width for width in widths)
    drawn = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in whole]
    return "\n".join([drawn[0], rule, *drawn[1:]])


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """A Markdown table of the columns that have content."""
    lines = [cells(row) for row in rows]
    kept = [i for i in range(len(HEAD)) if any(line[i] for line in lines)]
    drawn = ["| " + " | ".join(HEAD[i] for i in kept) + " |", "|" + "---|" * len(kept)]
    drawn += ["| " + " | ".join(line[i].replace("|", "\\|") for i in kept) + " |" for line in lines]
    return "\n".join(drawn)


_VERDICTS = {True: "met", False: "MISSED", None: "not measured"}


def _figure(row: Mapping[str, Any]) -> str:
    if row["figure"] is None:
        return "—"
    unit = row["unit"]
    shown = f"{row['figure']:.1%}" if unit.startswith("of ") else f"{_number(row['figure'])}"
    joint = "" if unit.startswith("×") else " "
    medians = row["figure_of_medians"]
    beside = "" if medians is None else f" (medians {_number(medians)})"
    return f"{shown}{joint}{unit}{beside}"


def _number(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2g}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 10 else f"{value:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _pair(ours: Any, theirs: Any, shown: Any) -> str:
    if ours is None and theirs is None:
        return ""
    return " / ".join("–" if side is None else shown(side) for side in (ours, theirs))
