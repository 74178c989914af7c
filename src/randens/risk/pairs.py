"""Two classifiers: when drawing between them helps, and why (Theorem 1, Corollary 1, Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from randens.core.errors import InputError
from randens.core.files import Plain
from randens.risk.checks import as_count, as_share, frozen
from randens.risk.profile import RiskProfile

__all__ = ["FIGURE_3", "Theorem1Test", "TwoClassifiers", "theorem1_test", "two_classifiers"]

FIGURE_3: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType(
    {
        "either-not-both": ((1, 0), (0, 1)),
        "both": ((1, 1),),
        "first-only": ((1, 0),),
        "second-only": ((0, 1),),
        "neither": ((0, 0),),
    }
)
"""The five ways in which two classifiers can meet an attacker at an input, in the order of Figure 3.

With frequencies p₁ … p₅, η(α) = p₁ max(α₁, α₂) + p₂ + p₃ α₁ + p₄ α₂.
"""

# Frequencies are sums of weights; differences below this are rounding and count as ties.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class TwoClassifiers(Plain):
    """What Theorem 1 and Corollary 1 say about two classifiers.

    frequencies: p_k of each configuration of Figure 3, by name. member_risks: η₁, η₂. conflict: P(R₁), how
    often either can be fooled but never both at once. helps: P(R₁) > |η₁ − η₂|, which is necessary and
    sufficient for drawing to beat both members. probs, risk: the optimum, (½, ½) if it helps and the better
    member otherwise. limit: what no ensemble of two members with these risks can go below (Corollary 1).
    explanation: why, in words.
    """

    frequencies: Mapping[str, float]
    member_risks: tuple[float, float]
    conflict: float
    helps: bool
    probs: NDArray[np.float64]
    risk: float
    limit: float
    explanation: str


def two_classifiers(profile: RiskProfile) -> TwoClassifiers:
    """Whether drawing between the two members of a profile helps (Theorem 1), and the best they could do.

    For two members of a larger ensemble, pass `profile.restrict((i, j))`.

    Parameters
    ----------
    profile : RiskProfile
        Of two members.

    Returns
    -------
    TwoClassifiers
        What Theorem 1 says.

    Examples
    --------
    >>> sets = [FIGURE_3["either-not-both"], FIGURE_3["neither"]]
    >>> found = two_classifiers(RiskProfile.from_configurations(sets, [0.6, 0.4]))
    >>> found.helps, found.probs.tolist(), found.risk
    (True, [0.5, 0.5], 0.3)
    """
    if profile.members != 2:
        raise InputError(
            f"profile has {profile.members} members; Theorem 1 is about 2, pick a pair with restrict((i, j))"
        )
    first, second = (float(risk) for risk in profile.member_risks)
    conflict, both = profile.conflict(0, 1), profile.jointly(0, 1)
    frequencies = {
        "either-not-both": conflict,
        "both": both,
        "first-only": max(0.0, first - conflict - both),
        "second-only": max(0.0, second - conflict - both),
    }
    frequencies["neither"] = max(0.0, 1.0 - sum(frequencies.values()))
    helps = conflict > abs(first - second) + _ROUNDING
    if helps:
        probs, risk = np.array([0.5, 0.5]), 0.5 * (first + second - conflict)
    else:
        probs, risk = np.array([1.0, 0.0] if first <= second else [0.0, 1.0]), min(first, second)
    return TwoClassifiers(
        frequencies=MappingProxyType(frequencies),
        member_risks=(first, second),
        conflict=conflict,
        helps=helps,
        probs=frozen(probs),
        risk=risk,
        limit=min(0.5 * max(first, second), first, second),
        explanation=_explain(first, second, conflict, both, helps, risk),
    )


def _explain(first: float, second: float, conflict: float, both: float, helps: bool, risk: float) -> str:
    better, gap = min(first, second), abs(first - second)
    met = (
        f"At {conflict:.1%} of the inputs either member can be fooled but never both by one perturbation, and "
        f"the members' risks {first:.1%} and {second:.1%} differ by {gap:.1%}. "
    )
    if helps:
        return met + (
            "The first number is the larger, so drawing each member half of the time is the only optimum: it "
            f"makes the attacker guess at those inputs and brings the risk from {better:.1%} down to "
            f"{risk:.1%} (Theorem 1)."
        )
    which = "first" if first <= second else "second"
    if conflict <= _ROUNDING and both > 0:
        why = "Whatever fools both members fools them at once, so the attacker never has to guess"
    elif conflict <= _ROUNDING:
        why = "There is no input at which the attacker has to guess"
    elif abs(conflict - gap) <= _ROUNDING:
        why = "They are equal, so what the attacker loses by guessing is just what the weaker member costs"
    else:
        why = "The first number is not the larger, so the weaker member costs more than the guessing saves"
    return met + f"{why}: no mixture beats the {which} member alone, at {risk:.1%} (Theorem 1)."


@dataclass(frozen=True)
class Theorem1Test(Plain):
    """Theorem 1 as a statement about the distribution that the inputs come from.

    value: P(R₁) − |η₁ − η₂| over the inputs seen. low, high: an interval for it over the distribution, at
    `confidence`. p_value: how likely inputs like these are if drawing does not help. verdict: "helps" (p_value at
    most 1 − confidence), "does not help" (high at most 0), or "undecided".
    """

    value: float
    low: float
    high: float
    p_value: float
    confidence: float
    verdict: str


def theorem1_test(profile: RiskProfile, n: int | None = None, *, confidence: float = 0.95) -> Theorem1Test:
    """Does drawing between two members help on the distribution, or only on the inputs seen (Theorem 1)?

    P(R₁) − |η₁ − η₂| is the smaller of p₁ + p₃ − p₄ and p₁ − p₃ + p₄, in the notation of Equation 7. Each is a
    difference of two shares: drawing helps iff both are above 0. The p-value is the larger one of two exact sign
    tests, and the interval takes Clopper and Pearson's limits of the shares; both hold for every n. The witnesses
    are taken as they are: a stronger attack can only lower P(R₁) of an input and raise the risks.

    Parameters
    ----------
    profile : RiskProfile
        Of two members; for two of a larger ensemble, pass `profile.restrict((i, j))`.
    n : int, optional
        The number of inputs; by default the profile's own.
    confidence : float
        Of the interval and of the verdict.

    Returns
    -------
    Theorem1Test
        `.verdict`, `.value` with `.low` and `.high`, and the p-value.

    Examples
    --------
    >>> sets = [FIGURE_3["either-not-both"], FIGURE_3["neither"]]
    >>> found = theorem1_test(RiskProfile.from_configurations(sets, [0.2, 0.8]), 100)
    >>> found.verdict, round(found.value, 2), found.low > 0
    ('helps', 0.2, True)
    """
    found = two_classifiers(profile)
    size = profile.size if n is None else n
    inputs = as_count("n", 0 if size is None else size)
    alpha = 1.0 - as_share("confidence", confidence)
    share = [
        round(found.frequencies[name] * inputs) for name in ("either-not-both", "first-only", "second-only")
    ]
    conflict, first, second = share
    sides = ((conflict + first, second), (conflict + second, first))
    value = min(up - down for up, down in sides) / inputs
    # Below: whichever side is the smaller one, its own limit must fail. Above: both limits must hold.
    low = min(_low(up, inputs, alpha / 4) - _high(down, inputs, alpha / 4) for up, down in sides)
    high = min(_high(up, inputs, alpha / 8) - _low(down, inputs, alpha / 8) for up, down in sides)
    p_value = max(_sign_test(up, down) for up, down in sides)
    verdict = "helps" if p_value <= alpha else "does not help" if high <= 0 else "undecided"
    return Theorem1Test(value, low, high, p_value, 1.0 - alpha, verdict)


def _sign_test(up: int, down: int) -> float:
    """P(at least `up` heads in up + down tosses of a fair coin)."""
    return 1.0 if up == 0 else float(betainc(up, down + 1, 0.5))


def _low(count: int, n: int, alpha: float) -> float:
    """Clopper and Pearson's lower limit of a share."""
    return 0.0 if count == 0 else float(betaincinv(count, n - count + 1, alpha))


def _high(count: int, n: int, alpha: float) -> float:
    """Clopper and Pearson's upper limit of a share."""
    return 1.0 if count == n else float(betaincinv(count + 1, n - count, 1.0 - alpha))
