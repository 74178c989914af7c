"""Verdicts on the paper's claims, and differences with intervals over the images and, if there are several, seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from paper.reproduce.measure import Measured
from paper.reproduce.tables import DATA, METHODS, Found, Names, Wanted, paper, sampled_name
from randens.risk.intervals import Estimate, difference, two_way

CLOSE = 0.005
"""The paper: BARRE is within about 0.5 % of the deterministic ensemble, at a half to a quarter of its compute."""

_PAIRS = (("barre", "at"), ("barre", "iat"), ("barre", "mrboost"), ("iat", "at"), ("mrboost", "at"))

Pairs = list[tuple[Measured, Measured]]
"""The two runs that are compared, of every seed."""


def findings(seeds: Sequence[Found], networks: Sequence[str], names: Names) -> list[str]:
    """Sentences for the page: differences over all seeds, the others about the first."""
    said = []
    for one, two in _PAIRS:
        if compared := _pairs(seeds, networks, names, one, two):
            gains = {place: _gain(pairs, "sampled") for place, pairs in compared.items()}
            mean = float(np.mean([gain.value for gain in gains.values()]))
            title = f"{sampled_name(one)} − {sampled_name(two)}, robust accuracy"
            said.append(f"- {title}: {_listed(gains)}. Mean {100 * mean:+.1f} points.")
    if compared := _pairs(seeds, networks, names, "barre", "mrboost"):
        said.append(_against_averages(compared))
    said += _later_members(seeds[0], networks)
    one_hot = [
        f"{names.networks[run.network]}, {names.data[run.data]}, {sampled_name(run.method)}"
        for run, have in seeds[0].items()
        if have.one_hot and run.method in METHODS
    ]
    if one_hot:
        said.append(f"- One member has all the weight, so nothing is sampled (‡): {'; '.join(one_hot)}.")
    return said


def _pairs(
    seeds: Sequence[Found], networks: Sequence[str], names: Names, one: str, two: str
) -> dict[str, Pairs]:
    """By network and data, where every seed has both methods, measured on the same images."""
    found: dict[str, Pairs] = {}
    for network, data in product(networks, DATA):
        this, other = (Wanted(data, network, method) for method in (one, two))
        pairs = [(seed[this], seed[other]) for seed in seeds if this in seed and other in seed]
        if len(pairs) == len(seeds) and len({run.n for pair in pairs for run in pair}) == 1:
            found[f"{names.networks[network]}, {names.data[data]}"] = pairs
    return found


def _gain(pairs: Pairs, rival_risk: str) -> Estimate:
    """Robust accuracy of the first ensembles, sampled, above that of the second."""
    gains = np.array([np.subtract(two.risks[rival_risk], one.risks["sampled"]) for one, two in pairs])
    return two_way(gains) if len(gains) > 1 else difference(gains[0], np.zeros_like(gains[0]))


def _listed(gains: Mapping[str, Estimate]) -> str:
    """Differences in points with intervals."""
    return "; ".join(
        f"{place} {100 * gain.value:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        for place, gain in gains.items()
    )


def _against_averages(compared: Mapping[str, Pairs]) -> str:
    """The paper's second claim: BARRE sampled against MRBoost averaged, members alike, and the ratio of FLOPs."""
    gains = {place: _gain(pairs, "averaged") for place, pairs in compared.items()}
    ratios = [
        sum(two.flops) / float(np.dot(one.probs, one.flops))
        for pairs in compared.values()
        for one, two in pairs
    ]
    within = sum(gain.low >= -CLOSE for gain in gains.values())
    refuted = sum(gain.high < -CLOSE for gain in gains.values())
    times = " to ".join(dict.fromkeys(f"{ratio:.3g}" for ratio in (min(ratios), max(ratios))))
    return (
        f"- BARRE sampled − MRBoost averaged, robust accuracy: {_listed(gains)}; averaging takes {times} times the "
        "FLOPs. The paper: within about 0.5 points at a half to a quarter of the FLOPs. Here that is shown in "
        f"{within}, refuted in {refuted} and open in {len(gains) - within - refuted} of {len(gains)} cases."
    )


def _later_members(found: Found, networks: Sequence[str]) -> Iterator[str]:
    """How BARRE's last member compares with the first, alone: here and in the paper."""
    ours, theirs = [], []
    for data, network in product(DATA, networks):
        have = found.get(Wanted(data, network, "barre"))
        printed = paper()["individual"][data][network]["barre"]
        if have is not None and have.members > 1:
            ours.append(100 * (have.individual[-1][1] - have.individual[0][1]))
            theirs.append(printed[-1][1] - printed[0][1])
    if ours:
        yield (
            f"- BARRE's last member alone minus the first, robust accuracy: {', '.join(f'{v:+.1f}' for v in ours)} "
            f"(the paper's {', '.join(f'{v:+.1f}' for v in theirs)}). Each member continues the training of the one "
            "before it, so where this is positive, part of BARRE's lead is longer training."
        )
