"""The verdict on a run in sentences, and differences between runs with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from randens.data import called
from randens.evaluation import Estimate, Evaluation, difference
from randens.evaluation.tables import About, attack_name, percent, radius_text
from randens.report.load import LoadedRun

_EQUAL = 0.1  # budgets that differ by less count as equal
_IDLE = ("seed", "batch_size", "precision", "drop_finished")  # options that do not make an attack stronger


def compare(first: Evaluation, other: Evaluation) -> tuple[Estimate, Estimate] | str:
    """Natural and robust accuracy of `other` minus those of `first`, or why they cannot be compared."""
    if first.about.threat != other.about.threat:
        return f"another threat: {_threat(other)} instead of {_threat(first)}"
    if (first.about.data, first.about.split) != (other.about.data, other.about.split):
        used = [called(e.about.data, e.about.split) for e in (other, first)]
        return f"other data: {used[0]} instead of {used[1]}"
    options = [
        [{k: v for k, v in attack.items() if k not in _IDLE} for attack in e.about.attacks]
        for e in (first, other)
    ]
    if options[0] != options[1]:
        names = [", ".join(map(attack_name, e.about.attacks)) for e in (other, first)]
        return f"other attacks or options: {names[0]} instead of {names[1]}; evaluate both alike"
    between = partial(difference if first.n == other.n else _unpaired, confidence=first.confidence)
    natural = between(1 - other.clean @ other.probs, 1 - first.clean @ first.probs)
    return natural, between(1 - other.risk, 1 - first.risk)


def labels(runs: Sequence[LoadedRun]) -> list[str]:
    """The runs' names for sentences and tables: their methods if these differ, else their folders."""
    methods = [one.method for one in runs]
    return methods if all(methods) and len(set(methods)) == len(runs) > 1 else [one.name for one in runs]


def verdicts(runs: Sequence[LoadedRun]) -> list[str]:
    """The number of the first run, whether its sampling pays, the run against each of the others, and their budgets."""
    first, names = runs[0].evaluation, labels(runs)
    said = [headline(runs[0])] + ([] if first is None else [worth(first)])
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


def headline(one: LoadedRun) -> str:
    """The one number of a run, with the inputs, the attacks and the threat that it is about."""
    result = one.evaluation
    if result is not None:
        robust = result.robust
        return (
            f"Robust accuracy {percent(robust)} ({result.confidence:.0%} interval {percent(robust.low)} to "
            f"{percent(robust.high)}): {about_text(result.about)}."
        )
    if "stochastic" in one.documents:
        return f"{one.name}: robust accuracy {percent(one.documents['stochastic']['robust']['value'])}."
    return f"{one.name} has not been evaluated: there are no numbers to judge yet."


def worth(result: Evaluation) -> str:
    """Whether sampling pays: the ensemble against its own best member, which could be used alone."""
    if result.members == 1:
        return "One member: there is nothing to sample."
    best = int(np.argmin(result.member_risks))
    alone = f"its best member alone, member {best}"
    gained = gain(result)
    interval = _interval(gained, result.confidence)
    said = f"the ensemble is {_points(gained)}"
    sampled = np.flatnonzero(result.probs)
    if len(sampled) == 1:
        fixed = f"α selects member {sampled[0]}: nothing is sampled."
        return (
            fixed
            if gained >= 0
            else f"{fixed} It is {_points(gained)} less robust than {alone} ({interval})."
        )
    if gained.low > 0:
        return f"Sampling pays: {said} more robust than {alone} ({interval}), at the compute of one member."
    if gained.high < 0:
        return f"Sampling does not pay: {said} LESS robust than {alone} ({interval})."
    if gained > 0:
        open_question = f"but {result.n} inputs do not settle it ({interval})"
        return f"Sampling may pay: {said} more robust than {alone}, {open_question}."
    return f"Sampling gains nothing: the ensemble is not more robust than {alone} ({interval})."


def gain(result: Evaluation) -> Estimate:
    """Robust accuracy of the ensemble minus that of its best member, over the same inputs."""
    best = int(np.argmin(result.member_risks))
    return difference(result.foolable[:, best].astype(np.float64), result.risk, result.confidence)


def against(result: Evaluation, other: Evaluation, name: str, other_name: str) -> str:
    """The robust accuracy of one evaluation against another's, in a sentence."""
    found = compare(other, result)
    if isinstance(found, str):
        return f"{name} and {other_name} cannot be compared: {found}."
    gained = found[1]
    interval = _interval(gained, result.confidence)
    if float(gained) == 0:
        return f"{name} is exactly as robust as {other_name} ({interval})."
    said = f"{name} is {_points(gained)} {'more' if gained > 0 else 'less'} robust than {other_name}"
    settled = gained.low > 0 or gained.high < 0
    return f"{said} ({interval})." if settled else f"{said}, but these inputs do not settle it ({interval})."


def budget(name: str, passes: float, baselines: dict[str, float]) -> str:
    """Say whether a comparison with single networks is at equal training budgets.

    baselines: member passes to train each of them. Without one of equal passes, part of a difference may be longer
    training.
    """
    equal = [other for other, spent in baselines.items() if abs(passes / spent - 1) <= _EQUAL]
    if equal:
        return (
            f"{' and '.join(equal)}: trained with as many member passes as {name}, the equal-budget baseline."
        )
    other, spent = max(baselines.items(), key=lambda item: item[1])
    return (
        f"{other} is not an equal-budget baseline: training {name} took {passes / spent:.1f} times its member passes. "
        "One network trained that long is the fair comparison."
    )


def about_text(about: About) -> str:
    """Data, number of inputs, attacks and threat behind a number."""
    attacks = " + ".join(map(attack_name, about.attacks))
    parts = [called(about.data, about.split), f"{about.n} inputs", radius_text(about.threat)]
    return ", ".join(parts + ([f"attacked with {attacks}"] if attacks else []))


def _interval(gained: Estimate, confidence: float) -> str:
    return f"{confidence:.0%} interval {100 * gained.low:+.1f} to {100 * gained.high:+.1f} points"


def _points(gained: Estimate) -> str:
    return f"{100 * abs(gained):.1f} points"


def _unpaired(first: NDArray[np.float64], second: NDArray[np.float64], confidence: float) -> Estimate:
    """Mean of first − second over different inputs, with the normal interval."""
    mean = float(first.mean() - second.mean())
    spread = math.sqrt(sum(float(v.var(ddof=1)) / len(v) if len(v) > 1 else 1.0 for v in (first, second)))
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * spread
    return Estimate(mean, mean - half, mean + half)


def _threat(result: Evaluation) -> str:
    return radius_text(result.about.threat)
