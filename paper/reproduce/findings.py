"""What the tables say about the paper's claims: differences with intervals over images, and computed verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paper.reproduce.measure import Measured
from paper.reproduce.tables import DATA, Found, Names, Wanted, paper
from randens.evaluation import Estimate, difference

CLOSE = 0.005
"""The paper: BARRE is within about 0.5 % of the deterministic ensemble, at a half to a quarter of its compute."""

_PAIRS = (("barre", "at"), ("barre", "iat"), ("barre", "mrboost"), ("iat", "at"), ("mrboost", "at"))
_CALLED = {"at": "AT", "iat": "IAT", "mrboost": "MRBoost-R", "barre": "BARRE"}


def findings(found: Found, networks: Sequence[str], names: Names) -> list[str]:
    """Sentences for the page."""
    said = [line for pair in _PAIRS for line in _sampled(found, networks, names, *pair)]
    said += _against_averages(found, networks, names)
    said += _later_members(found, networks)
    one_hot = [
        f"{_place(names, run.network, run.data)}, {_CALLED.get(run.method, run.method)}"
        for run, have in found.items()
        if have.one_hot
    ]
    if one_hot:
        said.append(f"- One member has all the weight, so nothing is sampled (‡): {'; '.join(one_hot)}.")
    return said


def _sampled(found: Found, networks: Sequence[str], names: Names, one: str, two: str) -> Iterator[str]:
    """How much more robust accuracy one method's ensemble has than another's."""
    compared = [
        (_place(names, network, data), difference(rival.risks["sampled"], have.risks["sampled"]))
        for network, data, have, rival in _both(found, networks, one, two)
    ]
    if compared:
        mean = float(np.mean([gain.value for _, gain in compared]))
        title = f"{_CALLED[one]} − {_CALLED[two]}, robust accuracy"
        yield f"- {title}: {_listed(compared)}. Mean {100 * mean:+.1f} points."


def _against_averages(found: Found, networks: Sequence[str], names: Names) -> Iterator[str]:
    """The paper's second claim: BARRE sampled against MRBoost averaged, members alike, and the ratio of FLOPs."""
    compared, ratios = [], set()
    for network, data, have, rival in _both(found, networks, "barre", "mrboost"):
        ratios.add(round(sum(rival.flops) / float(np.dot(have.probs, have.flops)), 1))
        gain = difference(rival.risks["averaged"], have.risks["sampled"])
        compared.append((_place(names, network, data), gain))
    if not compared:
        return
    within = sum(gain.low >= -CLOSE for _, gain in compared)
    refuted = sum(gain.high < -CLOSE for _, gain in compared)
    times = " to ".join(f"{ratio:g}" for ratio in sorted({min(ratios), max(ratios)}))
    verdict = f"shown in {within}, refuted in {refuted} and open in {len(compared) - within - refuted}"
    yield (
        f"- BARRE sampled − MRBoost averaged, robust accuracy: {_listed(compared)}; averaging takes {times} times the "
        "FLOPs. The paper: within about 0.5 points at a half to a quarter of the FLOPs. Here that is "
        f"{verdict} of {len(compared)} cases."
    )


def _listed(compared: Sequence[tuple[str, Estimate]]) -> str:
    """Differences on the same images, in points with intervals."""
    return "; ".join(
        f"{name} {100 * gain.value:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        for name, gain in compared
    )


def _later_members(found: Found, networks: Sequence[str]) -> Iterator[str]:
    """How BARRE's last member compares with the first, alone: here and in the paper."""
    ours, theirs = [], []
    for data in DATA:
        for network in networks:
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


def _both(
    found: Found, networks: Sequence[str], one: str, two: str
) -> Iterator[tuple[str, str, Measured, Measured]]:
    for network in networks:
        for data in DATA:
            have, rival = (found.get(Wanted(data, network, method)) for method in (one, two))
            if have is not None and rival is not None and have.n == rival.n:
                yield network, data, have, rival


def _place(names: Names, network: str, data: str) -> str:
    return f"{names.networks[network]}, {names.data[data]}"
