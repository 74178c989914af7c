"""What a risk profile says about the choice of probabilities: methods compared, and each member's worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from randens.core.files import Plain
from randens.risk import RiskProfile, Sampling, optimal_sampling

__all__ = ["Contribution", "MethodValue", "compare_methods", "contributions"]

_MOST_CANDIDATES = 5
_WORTHLESS = 1e-9


@dataclass(frozen=True, eq=False)
class MethodValue(Plain):
    """What one way of choosing the probabilities arrives at on the same witnesses."""

    name: str
    probs: NDArray[np.float64]
    risk: float
    excess: float


@dataclass(frozen=True)
class Contribution(Plain):
    """One member: its probability, its risk alone, and the best risk that the others reach without it.

    worth: how much the best risk would rise without the member.
    """

    member: int
    prob: float
    risk_alone: float
    risk_without: float | None
    worth: float | None
    advice: str


def compare_methods(profile: RiskProfile, best: Sampling) -> tuple[MethodValue, ...]:
    """Uniform, the paper's subgradient method after 10 and 100 steps, the candidates where there are any, exact, and
    the upper confidence bound.

    best: the exact optimum. excess: the risk above its lower bound, which nothing can go below on this profile. All
    are judged on the inputs that chose them, where the exact optimum cannot lose; `AttackedSampling.crossed` is the
    estimate on other inputs.
    """
    uniform = np.full(profile.members, 1.0 / profile.members)
    found = [("uniform", uniform)]
    for iterations in (10, 100):
        steps = optimal_sampling(profile, method="subgradient", iterations=iterations)
        found.append((f"subgradient, T = {iterations}", steps.probs))
    if profile.members <= _MOST_CANDIDATES:
        found.append(("candidates", optimal_sampling(profile, method="candidates").probs))
    found.append(("exact", best.probs))
    if profile.size is not None and profile.size > 1:
        careful = optimal_sampling(profile, confidence=0.95, reference="uniform")
        found.append(("confidence 95 %", careful.probs))
    return tuple(
        MethodValue(name, probs, risk := profile.risk(probs), max(0.0, risk - best.lower_bound))
        for name, probs in found
    )


def contributions(profile: RiskProfile, best: Sampling) -> tuple[Contribution, ...]:
    """What each member is good for at the probabilities `best`."""
    members = profile.members
    if members == 1:
        alone = float(profile.member_risks[0])
        return (Contribution(0, float(best.probs[0]), alone, None, None, "the only member"),)
    found = []
    for i in range(members):
        prob, alone = float(best.probs[i]), float(profile.member_risks[i])
        others = [j for j in range(members) if j != i]
        without = optimal_sampling(profile.restrict(others), method="exact").risk
        worth = max(0.0, without - best.risk)
        if prob == 0:
            advice = f"drop member {i}: it is never drawn"
        elif worth <= _WORTHLESS:
            advice = f"member {i} could be dropped: the others do as well without it"
        else:
            advice = f"without it the risk would rise by {worth:.4f}"
        found.append(Contribution(i, prob, alone, without, worth, advice))
    return tuple(found)
