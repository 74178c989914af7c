"""The verdict on a run in sentences, and differences between runs with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens.data import called
from randens.evaluation import Estimate, Evaluation, difference
from randens.evaluation.tables import percent
from randens.report.load import LoadedRun

__all__ = [
    "Comparison",
    "against",
    "budget",
    "compare",
    "drawing",
    "headline",
    "labels",
    "verdict",
    "verdicts",
]

_EQUAL = 0.1  # budgets that differ by less count as equal


@dataclass(frozen=True)
class Comparison:
    """Accuracies of `other` minus those of `first`, or the reason why they cannot be compared.

    paired: the same inputs, compared one by one, which makes the intervals shorter.
    """

    natural: Estimate | None = None
    robust: Estimate | None = None
    paired: bool = False
    reason: str = ""


def compare(first: Evaluation, other: Evaluation) -> Comparison:
    """`other` against `first`. Runs under different threats or attacks or on different data have no difference."""
    if first.threat != other.threat:
        return Comparison(reason=f"another threat: {_threat(other)} instead of {_threat(first)}")
    if (first.about.data, first.about.split) != (other.about.data, other.about.split):
        used = [called(e.about.data, e.about.split) for e in (other, first)]
        return Comparison(reason=f"other data: {used[0]} instead of {used[1]}")
    if _budgets(first) != _budgets(other):
        names = [", ".join(str(a["name"]) for a in e.about.attacks) for e in (other, first)]
        said = (
            f"{names[0]} instead of {names[1]}" if names[0] != names[1] else f"{names[0]} with other options"
        )
        return Comparison(reason=f"other attacks: {said}; evaluate both alike")
    paired = first.n == other.n
    between = partial(difference if paired else _unpaired, confidence=first.confidence)
    natural = between(1 - other.clean @ other.probs, 1 - first.clean @ first.probs)
    return Comparison(natural, between(1 - other.risk, 1 - first.risk), paired)


def _budgets(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the attacks with the options that determine their strength, without seeds and batch sizes."""
    idle = ("seed", "batch_size", "precision", "drop_finished")
    return [{k: v for k, v in attack.items() if k not in idle} for attack in evaluation.about.attacks]


def labels(runs: Sequence[LoadedRun]) -> list[str]:
    """The runs' names for sentences and tables: their methods if these differ, else their folders."""
    methods = [one.method for one in runs]
    return methods if all(methods) and len(set(methods)) == len(runs) > 1 else [one.name for one in runs]


def verdicts(runs: Sequence[LoadedRun]) -> list[str]:
    """The verdict on the first run, the first run against each of the others, and their training budgets."""
    said, names = [verdict(runs[0])], labels(runs)
    first = runs[0].evaluation
    baselines: dict[str, float] = {}
    for other, name in zip(runs[1:], names[1:], strict=True):
        if first is None or other.evaluation is None:
            continue
        said.append(against(first, other.evaluation, names[0], name))
        if other.evaluation.members == 1 and other.passes:
            baselines[name] = other.passes
    if runs[0].passes and baselines:
        said.append(budget(names[0], runs[0].passes, baselines))
    return said


def verdict(one: LoadedRun) -> str:
    """Whether drawing pays, then the one number of the run."""
    if one.evaluation is None:
        return headline(one)
    return f"{drawing(one.evaluation)} {headline(one)}"


def headline(one: LoadedRun) -> str:
    """The one number of a run, with the inputs, the attacks and the threat that it is about."""
    result = one.evaluation
    if result is None and one.stochastic is not None:
        return f"{one.name}: {one.stochastic.sentences[0]}"
    if result is None:
        return f"{one.name} has not been evaluated: there are no numbers to judge yet."
    robust = result.robust
    return (
        f"Robust accuracy {percent(robust.value)} ({result.confidence:.0%} interval {percent(robust.low)} to "
        f"{percent(robust.high)}): {called(result.about.data, result.about.split)}, {result.n} inputs, "
        f"attacked with {one.attacked_with}, {_threat(result)}."
    )


def drawing(result: Evaluation) -> str:
    """Whether drawing pays: the randomized ensemble against its own best member, which could be used alone."""
    drawn = np.flatnonzero(result.probs)
    if result.members == 1:
        return "There is one member, and with one member there is nothing to draw."
    best = int(np.argmin(result.member_risks))
    gained = difference(result.foolable[:, best].astype(np.float64), result.risk, result.confidence)
    interval = _interval(gained, result.confidence)
    said, alone = f"the ensemble is {_points(gained)}", f"its best member alone, member {best}"
    if len(drawn) == 1:
        selected = f"α selects member {drawn[0]}: nothing is drawn."
        worse = (
            f" It is {_points(gained)} less robust than the best member alone, member {best} ({interval})."
        )
        return selected if gained.value >= 0 else selected + worse
    if gained.low > 0:
        return f"Drawing pays: {said} more robust than {alone} ({interval}), at the compute of one member."
    if gained.high < 0:
        return f"Drawing does not pay: {said} LESS robust than {alone} ({interval})."
    if gained.value > 0:
        return f"Drawing may pay: {said} more robust than {alone}, but {result.n} inputs do not settle it ({interval})."
    return f"Drawing gains nothing: the ensemble is not more robust than {alone} ({interval})."


def against(result: Evaluation, other: Evaluation, name: str, other_name: str) -> str:
    """The robust accuracy of one evaluation against another's, in a sentence."""
    found = compare(other, result)
    if found.robust is None:
        return f"{name} and {other_name} cannot be compared: {found.reason}."
    gained = found.robust
    interval = _interval(gained, result.confidence)
    if gained.value == 0:
        return f"{name} is exactly as robust as {other_name} ({interval})."
    said = f"{name} is {_points(gained)} {'more' if gained.value > 0 else 'less'} robust than {other_name}"
    if gained.low > 0 or gained.high < 0:
        return f"{said} ({interval})."
    return f"{said}, but these inputs do not settle it ({interval})."


def budget(name: str, passes: float, baselines: dict[str, float]) -> str:
    """Say whether a comparison with single networks is at equal training budgets.

    baselines: member passes to train each of them. Networks trained with equal passes are named; without one, part of
    a difference may be longer training.
    """
    equal = [other for other, spent in baselines.items() if abs(passes / spent - 1) <= _EQUAL]
    if equal:
        what = (
            "is the equal-budget baseline: it was"
            if len(equal) == 1
            else "are equal-budget baselines: they were"
        )
        return f"{' and '.join(equal)} {what} trained with as many member passes as {name}."
    other, spent = max(baselines.items(), key=lambda item: item[1])
    return (
        f"{other} is not an equal-budget baseline: training {name} took {passes / spent:.1f} times its member passes. "
        f"One network trained that long is the fair comparison, and it is not among these runs."
    )


def _interval(gained: Estimate, confidence: float) -> str:
    return f"{confidence:.0%} interval {100 * gained.low:+.1f} to {100 * gained.high:+.1f} points"


def _points(gained: Estimate) -> str:
    return f"{100 * abs(gained.value):.1f} points"


def _unpaired(first: NDArray[np.float64], second: NDArray[np.float64], confidence: float) -> Estimate:
    """Mean of first − second over different inputs, with the normal interval."""
    mean = float(first.mean() - second.mean())
    spread = math.sqrt(sum(float(v.var(ddof=1)) / len(v) if len(v) > 1 else 1.0 for v in (first, second)))
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * spread
    return Estimate(mean, mean - half, mean + half)


def _threat(result: Evaluation) -> str:
    return f"{result.threat.norm} ε = {result.threat.eps:.4g}"
