"""The numbers behind each figure, shared by the page and by the figures for papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from randens.evaluation import Accuracy, Evaluation
from randens.report.documents import Interval, Radii
from randens.report.material import Curve, Material

__all__ = [
    "Inference",
    "Line",
    "conflicts",
    "cofooling",
    "fooled_sets",
    "inferences",
    "over_radius",
    "training_lines",
]


@dataclass(frozen=True)
class Inference:
    """A classifier and what one inference costs: `kind` is member, single, randomized or deterministic."""

    name: str
    kind: str
    flops: float
    accuracy: Accuracy
    run: int = 0


@dataclass(frozen=True)
class Line:
    """A named curve with intervals: points (x, y), intervals (low, high)."""

    name: str
    points: tuple[tuple[float, float], ...]
    intervals: tuple[tuple[float, float], ...] | None = None


def inferences(runs: Sequence[Material]) -> list[Inference]:
    """Everything evaluated, with its FLOPs: Figure 1 of the paper from run folders."""
    found = []
    for number, one in enumerate(runs):
        result = one.evaluation
        if result is None:
            continue
        prefix = f"{one.name}: " if len(runs) > 1 else ""
        if result.members == 1:
            name = one.method or "one member"
            found.append(
                Inference(f"{prefix}{name}", "single", float(result.flops[0]), result.accuracy, number)
            )
            continue
        for i, accuracy in enumerate(result.member_accuracies):
            found.append(Inference(f"{prefix}member {i}", "member", float(result.flops[i]), accuracy, number))
        found.append(
            Inference(f"{prefix}randomized", "randomized", result.expected_flops, result.accuracy, number)
        )
        if result.deterministic is not None:
            found.append(
                Inference(
                    f"{prefix}deterministic",
                    "deterministic",
                    float(sum(result.flops)),
                    result.deterministic,
                    number,
                )
            )
    return [one for one in found if one.flops > 0]


def cofooling(evaluation: Evaluation) -> NDArray[np.float64]:
    """[M, M]: how often one perturbation fools both; on the diagonal each member's own risk."""
    members, profile = evaluation.members, evaluation.profile
    table = np.diag(profile.member_risks).astype(np.float64)
    for i in range(members):
        for j in range(i):
            table[i, j] = table[j, i] = profile.jointly(i, j)
    return table


def conflicts(evaluation: Evaluation) -> NDArray[np.float64]:
    """[M, M]: how often each of two can be fooled but never both at once, P(R₁) of Theorem 1."""
    members, profile = evaluation.members, evaluation.profile
    table = np.zeros((members, members))
    for i in range(members):
        for j in range(i):
            table[i, j] = table[j, i] = profile.conflict(i, j)
    return table


def fooled_sets(evaluation: Evaluation, most: int = 20) -> tuple[list[tuple[tuple[int, ...], int]], int]:
    """The sets of members that fall at the inputs' worst perturbations, most frequent first, and how many inputs
    have another set than those listed."""
    counts = Counter(tuple(np.flatnonzero(row).tolist()) for row in evaluation.points.worst)
    listed = sorted(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
    return listed[:most], sum(count for _, count in listed[most:])


def over_radius(radii: Radii) -> list[Line]:
    """Robust accuracy over ε: the randomized ensemble, its best member, the deterministic ensemble."""

    def line(name: str, values: Sequence[Interval]) -> Line:
        return Line(
            name,
            tuple((r.eps, v.value) for r, v in zip(radii.radii, values, strict=True)),
            tuple((v.low, v.high) for v in values),
        )

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


def training_lines(curve: Curve) -> tuple[list[Line], list[Line], list[tuple[float, str]]]:
    """(accuracies, losses, where each member begins) over epochs counted through all members."""
    accuracies: dict[str, list[tuple[float, float]]] = {"natural": [], "robust": [], "training": []}
    losses: list[tuple[float, float]] = []
    begins: list[tuple[float, str]] = []
    before: object = None
    for number, epoch in enumerate(curve.epochs, start=1):
        member = epoch.get("member")
        if member != before:
            begins.append((float(number), f"member {int(member) - 1}" if isinstance(member, int) else ""))
            before = member
        for key, name in (("natural", "natural"), ("robust", "robust"), ("accuracy", "training")):
            value = epoch.get(key)
            if isinstance(value, int | float):
                accuracies[name].append((float(number), float(value)))
        loss = epoch.get("loss")
        values = [v for v in loss if isinstance(v, int | float)] if isinstance(loss, list) else []
        if values:
            losses.append((float(number), float(np.mean(values))))
    named = {
        "natural": "natural, validation",
        "robust": "robust, validation",
        "training": "under the training adversary",
    }
    lines = [Line(named[key], tuple(points)) for key, points in accuracies.items() if points]
    return lines, [Line("loss", tuple(losses))] if losses else [], begins
