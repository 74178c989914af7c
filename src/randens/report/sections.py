"""The sections about all runs: the table of results, runs side by side, robustness against compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from randens.evaluation import tables
from randens.report import charts, pieces, series
from randens.report.comparing import compare
from randens.report.markup import Markup, Node, element
from randens.report.material import Material

__all__ = ["comparison", "efficiency", "table"]

_SERIES = {"single": "dot", "randomized": "star", "deterministic": "diamond", "member": "small"}


def table(runs: Sequence[Material]) -> Markup:
    """Natural and robust accuracy and FLOPs of everything evaluated, as in the paper's tables."""
    body: list[Node] = []
    for one in runs:
        result = one.evaluation
        if result is None:
            body.append(
                element(
                    "tr",
                    element("th", one.name, scope="row"),
                    element("td", pieces.missing(one, "evaluate"), colspan=4, class_="words"),
                )
            )
            continue
        name = one.name if len(runs) > 1 else (one.method or "")
        for row in tables.rows(result, name):
            label, drawn, _ = row.name.partition("randomized, α = ")
            shown = f"{label}{drawn}{pieces.probs(result.probs)}" if drawn else row.name
            body.append(
                element(
                    "tr",
                    element("th", shown, scope="row"),
                    element("td", pieces.percent(row.accuracy.natural.value)),
                    element("td", pieces.percent(row.accuracy.robust.value)),
                    element("td", pieces.interval(row.accuracy.robust)),
                    element("td", tables.count(row.flops)),
                    class_="main" if drawn or result.members == 1 else None,
                )
            )
    confidence = next((r.evaluation.confidence for r in runs if r.evaluation is not None), 0.95)
    heads = ("classifier", "natural", "robust", f"{confidence:.0%} interval", "FLOPs per inference")
    return pieces.table(
        heads, body, "Expected accuracies, exact over the draw, on the worst perturbations found."
    )


def comparison(runs: Sequence[Material]) -> Markup:
    """Runs side by side; differences are to the first run."""
    first = runs[0].evaluation
    heads = ("", *(one.name for one in runs))
    rows: list[tuple[str, list[Node]]] = []

    def row(name: str, cell: Any) -> None:
        rows.append((name, [None if one.evaluation is None else cell(one.evaluation) for one in runs]))

    row("members", lambda e: e.members)
    row("data", lambda e: f"{e.data} {e.split}, {e.n} inputs")
    row("threat", lambda e: f"{e.threat.norm} ε = {e.threat.eps:.4g}")
    row("natural accuracy", lambda e: f"{pieces.percent(e.natural)} ({pieces.interval(e.accuracy.natural)})")
    row("robust accuracy", lambda e: f"{pieces.percent(e.robust)} ({pieces.interval(e.accuracy.robust)})")
    row("best member, robust", lambda e: pieces.percent(1 - float(e.member_risks.min())))
    row("floor of the risk", lambda e: f"{e.bounds.floor:.4f}")
    row("gain", lambda e: f"{e.gain:.4f}")
    row("joint reach", lambda e: "not measured" if e.conflict is None else f"{e.conflict.reach:.3f}")
    row("FLOPs per inference", lambda e: tables.count(e.expected_flops))
    notes: list[Node] = []
    if first is not None and len(runs) > 1:
        natural: list[Node] = ["—"]
        robust: list[Node] = ["—"]
        for one in runs[1:]:
            if one.evaluation is None:
                natural.append(None)
                robust.append(None)
                continue
            found = compare(first, one.evaluation)
            natural.append(pieces.shown_difference(found.natural))
            robust.append(pieces.shown_difference(found.robust))
            if found.reason:
                notes.append(
                    element(
                        "p", f"{one.name} has no difference to {runs[0].name}: {found.reason}.", class_="note"
                    )
                )
            elif not found.paired:
                notes.append(
                    element(
                        "p",
                        f"{one.name} was evaluated on another number of inputs: its difference is not paired.",
                        class_="note",
                    )
                )
        rows.append((f"natural, minus {runs[0].name}", natural))
        rows.append((f"robust, minus {runs[0].name}", robust))
    body = [
        element(
            "tr",
            element("th", name, scope="row"),
            [element("td", "not evaluated" if cell is None else cell) for cell in cells],
        )
        for name, cells in rows
    ]
    caption = "Differences in points, over the same inputs where possible, with confidence intervals."
    return element("div", pieces.table(heads, body, caption), notes)


def efficiency(runs: Sequence[Material]) -> Markup:
    """Robust accuracy against FLOPs: the paper's Figure 1."""
    found = series.inferences(runs)
    if not found:
        return pieces.missing(runs[0], "evaluate")
    marks = [
        charts.Mark(
            one.name,
            one.flops,
            one.accuracy.robust.value,
            one.accuracy.robust.low,
            one.accuracy.robust.high,
            _SERIES[one.kind],
            one.run,
        )
        for one in found
    ]
    words = (
        "; ".join(f"{m.name} {m.y:.1%} at {tables.count(m.x)} FLOPs" for m in marks if m.kind != "small")
        or "members only"
    )
    picture = charts.scatter(
        marks,
        label=f"Robust accuracy against FLOPs: {words}",
        x_title="FLOPs per inference (logarithmic)",
        y_title="robust accuracy",
    )
    body = [
        element(
            "tr",
            element("th", one.name, scope="row"),
            element("td", tables.count(one.flops)),
            element("td", pieces.percent(one.accuracy.robust.value)),
            element("td", pieces.interval(one.accuracy.robust)),
        )
        for one in found
    ]
    return pieces.figure(
        picture,
        "★ randomized ensemble, ◆ deterministic ensemble (mean of all logits), ● one network, ○ members alone. "
        "A randomized ensemble answers with one member, so it costs what a member costs.",
        pieces.table(("classifier", "FLOPs", "robust", "interval"), body),
    )
