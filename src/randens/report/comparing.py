"""Verdicts in a sentence, and runs side by side: differences with intervals, or why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens.evaluation import Estimate, Evaluation, difference
from randens.report.material import Material

__all__ = ["Comparison", "compare", "points", "verdict", "verdicts"]


@dataclass(frozen=True)
class Comparison:
    """Accuracies of `other` minus those of `first`, or the reason why they cannot be compared.

    paired: the same inputs, compared one by one, which makes the intervals shorter.
    """

    natural: Estimate | None
    robust: Estimate | None
    paired: bool
    reason: str = ""


def compare(first: Evaluation, other: Evaluation) -> Comparison:
    """`other` against `first`. Runs under different threats or attacks or on different data have no difference."""
    if first.threat != other.threat:
        return Comparison(None, None, False, f"another threat: {_threat(other)} instead of {_threat(first)}")
    if (first.data, first.split) != (other.data, other.split):
        return Comparison(
            None, None, False, f"other data: {other.data} {other.split} instead of {first.data} {first.split}"
        )
    if _budgets(first) != _budgets(other):
        names = [", ".join(str(a["name"]) for a in e.attacks) for e in (other, first)]
        said = (
            f"{names[0]} instead of {names[1]}" if names[0] != names[1] else f"{names[0]} with other options"
        )
        return Comparison(None, None, False, f"other attacks: {said}; evaluate both alike")
    natural = [1 - e.points.clean @ e.probs for e in (first, other)]
    robust = [1 - e.risk for e in (first, other)]
    confidence = first.confidence
    if first.n == other.n:
        return Comparison(
            difference(natural[1], natural[0], confidence), difference(robust[1], robust[0], confidence), True
        )
    return Comparison(_unpaired(natural, confidence), _unpaired(robust, confidence), False)


def _budgets(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The attacks with what decides their strength; seeds and batch sizes do not."""
    idle = ("seed", "batch_size", "precision", "drop_finished")
    return [{k: v for k, v in attack.items() if k not in idle} for attack in evaluation.attacks]


def verdict(one: Material) -> str:
    """What came out, in a sentence that the numbers decide."""
    result = one.evaluation
    if result is None and one.stochastic is not None:
        return f"{one.name}: {one.stochastic.statements[0]}"
    if result is None:
        return f"{one.name} has not been evaluated: there are no numbers to judge yet."
    where = f"{result.data} {result.split} inputs, {_threat(result)}"
    if result.members == 1:
        return (
            f"The only member is right on {_percent(result.robust)} of the {where}, under attack "
            f"({_percent(result.natural)} without); with one member there is nothing to draw."
        )
    best = int(np.argmin(result.member_risks))
    alone = result.points.foolable[:, best].astype(np.float64)
    gained = difference(alone, result.risk, result.confidence)
    interval = f"{result.confidence:.0%} interval {100 * gained.low:+.1f} to {100 * gained.high:+.1f}"
    drawn = np.flatnonzero(result.probs)
    lead = f"α selects member {drawn[0]}: nothing is drawn. " if len(drawn) == 1 else ""
    kept = f"{lead}The randomized ensemble is right on {_percent(result.robust)} of the {where}, under attack"
    if gained.low > 0:
        return (
            f"{kept}: {points(gained)} more than its best member alone, member {best} ({interval}), "
            "at the cost of one member."
        )
    if gained.high < 0:
        return f"{kept}: {points(gained)} LESS than its best member alone, member {best} ({interval})."
    if gained.value > 0:
        return (
            f"{kept}: {points(gained)} more than its best member alone, member {best}, "
            f"which {result.n} inputs do not settle ({interval})."
        )
    return f"{kept}: no more than its best member alone, member {best} ({interval})."


def verdicts(runs: tuple[Material, ...]) -> list[str]:
    """The verdict on the first run, then the first run against each of the others."""
    said = [verdict(runs[0])]
    first = runs[0].evaluation
    for other in runs[1:]:
        if first is None or other.evaluation is None:
            continue
        found = compare(other.evaluation, first)
        if found.robust is None:
            said.append(f"{runs[0].name} and {other.name} cannot be compared: {found.reason}.")
            continue
        gained = found.robust
        interval = f"{first.confidence:.0%} interval {100 * gained.low:+.1f} to {100 * gained.high:+.1f}"
        if gained.low > 0:
            said.append(
                f"{runs[0].name} beats {other.name} by {points(gained)} of robust accuracy ({interval})."
            )
        elif gained.high < 0:
            said.append(
                f"{runs[0].name} does NOT beat {other.name}: it has {points(gained)} less robust accuracy ({interval})."
            )
        else:
            ahead = "is ahead of" if gained.value > 0 else "is not ahead of"
            said.append(
                f"{runs[0].name} {ahead} {other.name} in robust accuracy; these inputs do not settle it ({interval})."
            )
    return said


def points(gained: Estimate) -> str:
    """The size of a difference of accuracies in words."""
    return f"{100 * abs(gained.value):.1f} points"


def _unpaired(values: list[NDArray[np.float64]], confidence: float) -> Estimate:
    first, other = values
    mean = float(other.mean() - first.mean())
    spread = math.sqrt(sum(float(v.var(ddof=1)) / len(v) if len(v) > 1 else 1.0 for v in values))
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * spread
    return Estimate(mean, mean - half, mean + half)


def _threat(result: Evaluation) -> str:
    return f"{result.threat.norm} ε = {result.threat.eps:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
