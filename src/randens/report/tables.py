"""The numbers of the page's tables and figures, and their formats."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.documents import ThreatDocument
from randens.data import called
from randens.evaluation import Estimate, Evaluation
from randens.evaluation.tables import Row, percent
from randens.report.load import (
    AttackLine,
    AttackTable,
    Gallery,
    LoadedRun,
    Radii,
    TrainingCurve,
)
from randens.report.verdicts import compare, labels
from randens.threat import Threat

__all__ = [
    "Difference",
    "Inference",
    "Line",
    "apart",
    "cofooling",
    "command",
    "compared",
    "comparison",
    "conflicts",
    "evaluated",
    "flat",
    "fooled",
    "fooled_sets",
    "inferences",
    "interval",
    "over_radius",
    "percent",
    "probs",
    "results",
    "stale",
    "training_lines",
    "where",
]


@dataclass(frozen=True)
class Inference(Row):
    """A classifier of one of several runs, and what one inference costs."""

    run: int = 0


@dataclass(frozen=True)
class Line:
    """A named curve with intervals: points (x, y), intervals (low, high)."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float]] | None = None


@dataclass(frozen=True)
class Difference:
    """A cell with a difference in points; `kind` colours it where its interval leaves out 0."""

    text: str
    kind: str

    @staticmethod
    def of(found: Estimate | None) -> Difference:
        """The cell of an estimate."""
        if found is None:
            return Difference("not comparable", "")
        clear = found.low > 0 or found.high < 0
        text = f"{100 * found.value:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
        return Difference(text, ("good" if found.value > 0 else "bad") if clear else "")


def results(runs: Sequence[LoadedRun]) -> list[dict[str, Any]]:
    """Natural and robust accuracy and FLOPs of everything evaluated, as in the paper's tables."""
    found: list[dict[str, Any]] = []
    for one, name in zip(runs, labels(runs), strict=True):
        result = one.evaluation
        if result is None:
            found.append({"name": name, "missing": one})
            continue
        for row in result.rows(name if len(runs) > 1 else one.method):
            main = row.kind in ("randomized", "single")
            shown = (
                f"{row.name.rpartition(' = ')[0]} = {probs(result.probs)}"
                if row.kind == "randomized"
                else row.name
            )
            found.append({"name": shown, "row": row, "main": main})
    return found


def comparison(runs: Sequence[LoadedRun]) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Rows of a table of the runs side by side, and notes; differences are to the first run."""
    names = labels(runs)
    rows: list[tuple[Any, ...]] = []
    for title, cell in (
        ("members", lambda e: e.members),
        ("evaluated on", lambda e: f"{called(e.about.data, e.about.split)}, {e.n} inputs"),
        ("threat", lambda e: threat(e.threat)),
        ("floor of the risk", lambda e: f"{e.bounds.floor:.4f}"),
        ("gain", lambda e: f"{e.gain:.4f}"),
        ("joint reach", lambda e: "not measured" if e.conflict is None else f"{e.conflict.reach:.3f}"),
    ):
        cells = ("not evaluated" if one.evaluation is None else cell(one.evaluation) for one in runs)
        rows.append((title, *cells))
    rows.insert(3, ("attacks", *(one.attacked_with or "not evaluated" for one in runs)))
    budgets = (f"{one.passes:,.0f}" if one.passes else "not recorded" for one in runs)
    rows.append(("member passes to train", *budgets))
    first, notes = runs[0].evaluation, []
    if first is not None:
        natural: list[Any] = ["—"]
        robust: list[Any] = ["—"]
        for one, name in zip(runs[1:], names[1:], strict=True):
            if one.evaluation is None:
                natural.append("not evaluated")
                robust.append("not evaluated")
                continue
            found = compare(first, one.evaluation)
            natural.append(Difference.of(found.natural))
            robust.append(Difference.of(found.robust))
            if found.reason:
                notes.append(f"{name} has no difference to {names[0]}: {found.reason}.")
            elif not found.paired:
                notes.append(
                    f"{name} was evaluated on another number of inputs: its difference is not paired."
                )
        rows.append((f"natural accuracy, minus {names[0]}", *natural))
        rows.append((f"robust accuracy, minus {names[0]}", *robust))
    return rows, notes


def inferences(runs: Sequence[LoadedRun]) -> list[Inference]:
    """Everything evaluated, with its FLOPs: Figure 1 of the paper from run folders."""
    found = []
    for number, (one, label) in enumerate(zip(runs, labels(runs), strict=True)):
        for row in [] if one.evaluation is None else one.evaluation.rows():
            if row.kind == "single":
                name = label if len(runs) > 1 else one.method or "one member"
            else:
                name = (f"{label}: " if len(runs) > 1 else "") + row.name.partition(",")[0]
            if row.kind != "also" and row.flops > 0:
                found.append(Inference(name, row.accuracy, row.flops, row.kind, number))
    return found


def cofooling(evaluation: Evaluation) -> NDArray[np.float64]:
    """[M, M]: how often one perturbation fools both; on the diagonal each member's own risk."""
    members, profile = evaluation.members, evaluation.profile
    table = np.diag(profile.member_risks).astype(np.float64)
    for i in range(members):
        for j in range(i):
            table[i, j] = table[j, i] = profile.jointly(i, j)
    return table


def conflicts(evaluation: Evaluation) -> NDArray[np.float64]:
    """[M, M]: how often each of two can be fooled but never both at once, P(R₁) of Theorem 1.

    NaN for two members that no attack drew together: what fools both of them was never looked for.
    """
    table = np.zeros((evaluation.members, evaluation.members))
    for pair in evaluation.pairs:
        table[pair.i, pair.j] = table[pair.j, pair.i] = pair.conflict if pair.together else np.nan
    return table


def apart(evaluation: Evaluation) -> str:
    """The pairs for which `conflicts` has no number, as a sentence; empty if there are none."""
    pairs = [f"{pair.i}+{pair.j}" for pair in evaluation.pairs if not pair.together]
    return f"Not attacked together (–): {', '.join(pairs)}." if pairs else ""


def fooled_sets(evaluation: Evaluation, most: int = 20) -> tuple[list[tuple[tuple[int, ...], int]], int]:
    """The sets of members that the inputs' worst perturbations fool, most frequent first, and how many inputs have
    another set than those listed."""
    counts = Counter(tuple(np.flatnonzero(row).tolist()) for row in evaluation.errors)
    listed = sorted(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
    return listed[:most], sum(count for _, count in listed[most:])


def over_radius(radii: Radii) -> list[Line]:
    """Robust accuracy over ε: the randomized ensemble, its best member, the deterministic ensemble."""

    def line(name: str, values: Sequence[Estimate]) -> Line:
        points = [(r.eps, v.value) for r, v in zip(radii.radii, values, strict=True)]
        return Line(name, points, [(v.low, v.high) for v in values])

    found = [line("randomized", [r.robust for r in radii.radii])]
    members = min((len(r.members) for r in radii.radii), default=0)
    if members > 1:
        best = max(range(members), key=lambda i: sum(r.members[i].value for r in radii.radii))
        found.append(line(f"member {best}, the best", [r.members[best] for r in radii.radii]))
    elif members == 1:
        found = [line("the only member", [r.robust for r in radii.radii])]
    whole = [r.deterministic for r in radii.radii if r.deterministic is not None]
    if len(whole) == len(radii.radii):
        found.append(line("deterministic", whole))
    return found


def training_lines(curve: TrainingCurve) -> tuple[list[Line], list[Line], list[tuple[float, str]]]:
    """(accuracies, losses, where each member begins) over epochs counted through all members."""
    names = {
        "natural": "natural, validation",
        "robust": "robust, validation",
        "accuracy": "under the training adversary",
    }
    accuracies: dict[str, list[tuple[float, float]]] = {key: [] for key in names}
    losses: list[tuple[float, float]] = []
    begins: list[tuple[float, str]] = []
    before: object = None
    for number, epoch in enumerate(curve.epochs, start=1):
        member = epoch.get("member")
        if member != before:
            begins.append((float(number), f"member {int(member) - 1}" if isinstance(member, int) else ""))
            before = member
        for key, points in accuracies.items():
            value = epoch.get(key)
            if isinstance(value, int | float):
                points.append((float(number), float(value)))
        loss = epoch.get("loss")
        values = [v for v in loss if isinstance(v, int | float)] if isinstance(loss, list) else []
        if values:
            losses.append((float(number), float(np.mean(values))))
    lines = [Line(names[key], points) for key, points in accuracies.items() if points]
    return lines, [Line("loss", losses)] if losses else [], begins


def compared(table: AttackTable) -> list[AttackLine]:
    """The attacks in their order: those on most inputs first, and of these the strongest."""
    return sorted(table.attacks, key=lambda line: (-(line.n or table.n), line.robust.value))


def stale(one: LoadedRun, measured: Radii | AttackTable | Gallery) -> str:
    """What differs between a measurement and the evaluation: "members", "probabilities" or nothing."""
    result = one.evaluation
    if result is None:
        return ""
    if measured.ensemble != result.about.ensemble:
        return "members"
    same = len(measured.probs) == result.members and np.allclose(measured.probs, result.probs)
    return "" if same else "probabilities"


def where(
    data: str,
    split: str,
    n: int | None,
    names: Sequence[str | Mapping[str, Any]] = (),
    within: Threat | ThreatDocument | None = None,
) -> str:
    """Describe a number: data and split, number of inputs, attacks, norm and ε."""
    parts = [f"{data} {split}".strip()]
    parts += [] if n is None else [f"{n} inputs"]
    parts += [f"attacked with {attacks(names)}"] if names else []
    parts += [] if within is None else [threat(within)]
    return ", ".join(parts)


def evaluated(one: LoadedRun) -> str:
    """What the evaluation of a run is about."""
    result = one.evaluation
    assert result is not None
    return where(result.about.data, result.about.split, result.n, [one.attacked_with], result.threat)


def threat(one: Threat | ThreatDocument) -> str:
    """Norm and radius."""
    return f"{one.norm} ε = {one.eps:.4g}"


def attacks(names: Sequence[str | Mapping[str, Any]]) -> str:
    """The attacks by name."""
    return " + ".join(str(n if isinstance(n, str) else n.get("name", "?")) for n in names)


def fooled(members: Sequence[int]) -> str:
    """A set of members in words."""
    if not members:
        return "none"
    return ("member " if len(members) == 1 else "members ") + ", ".join(str(m) for m in members)


def probs(values: ArrayLike) -> str:
    """Probabilities as a vector, or with many members those that are drawn."""
    numbers = np.asarray(values, dtype=np.float64).tolist()
    if len(numbers) > 10:
        used = [f"{i}: {p:.3g}" for i, p in enumerate(numbers) if p > 0]
        return "(" + ", ".join(used[:10]) + (", …)" if len(used) > 10 else ")")
    return "(" + ", ".join(f"{p:.3g}" for p in numbers) + ")"


def interval(estimate: Estimate) -> str:
    """From low to high, in per cent."""
    return f"{percent(estimate.low)} – {percent(estimate.high)}"


def command(one: LoadedRun, verb: str) -> str:
    """The command that produces a part of the page."""
    if verb == "train":
        return "randens train RECIPE"
    path = shlex.quote(str(one.run.path))
    return f"randens report {path} --measure" if verb == "measure" else f"randens {verb} {path}"


def flat(recipe: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A recipe, one line per setting."""
    found = []
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key} = {value!r}")
    return found
