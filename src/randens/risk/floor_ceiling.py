"""Bounds on the risk of every randomized ensemble from its members' risks alone (Theorem 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError
from randens.core.files import Plain
from randens.risk.checks import as_probs, as_risks, frozen
from randens.risk.profile import RiskProfile

__all__ = [
    "Bounds",
    "RuleOfThumb",
    "auxiliary_risk",
    "bounds",
    "necessary_size",
    "rule_of_thumb",
    "tight_profile",
]

_TIE = 1e-12  # ratios this close to each other are equal up to rounding


@dataclass(frozen=True, eq=False)
class Bounds(Plain):
    """floor ≤ η(α) ≤ ceiling for every α (Theorem 3), given the member risks and nothing else.

    member_risks: η_i [M], in the caller's order. floor: min_k η_(k)/k over the sorted risks. ceiling: the
    largest. m: the smallest k that attains the floor. probs: [M], 1/m on the m most robust members; they
    reach the floor if it can be reached.
    """

    member_risks: NDArray[np.float64]
    floor: float
    ceiling: float
    m: int
    probs: NDArray[np.float64]


@dataclass(frozen=True)
class RuleOfThumb:
    """low ≤ η_{m+1} ≤ high for the next member to be useful (rule of thumb after Theorem 3).

    necessary: whether it is more than a rule of thumb, namely for the second member: above `high` the first
    member alone is better than any mixture.
    """

    low: float
    high: float
    necessary: bool


def bounds(member_risks: ArrayLike) -> Bounds:
    """The tightest bounds on η(α) that the risks of the members allow (Theorem 3).

    Parameters
    ----------
    member_risks : array
        η_i [M].

    Returns
    -------
    Bounds
        Floor and ceiling, and the probabilities that reach the floor.

    Examples
    --------
    >>> b = bounds([0.5, 0.4, 0.45])
    >>> b.m, round(b.floor, 4), b.ceiling
    (3, 0.1667, 0.5)
    """
    risks = as_risks("member_risks", member_risks)
    order = np.argsort(risks, kind="stable")
    ratios = risks[order] / np.arange(1, len(risks) + 1)
    # The smallest k: 0.3/3 is a little less than 0.1, which is no reason to draw three members.
    m = int(np.argmax(ratios <= ratios.min() * (1 + _TIE))) + 1
    probs = np.zeros(len(risks))
    probs[order[:m]] = 1.0 / m
    return Bounds(frozen(risks), float(ratios.min()), float(risks.max()), m, frozen(probs))


def rule_of_thumb(member_risks: ArrayLike) -> RuleOfThumb:
    """The risk the next member should have: η_m ≤ η_{m+1} ≤ (1 + 1/m) η_m, with η_m the largest so far.

    Below `low` it would lower the floor as well, but then it comes first in the order of Theorem 3.

    Parameters
    ----------
    member_risks : array
        η_i [M].

    Returns
    -------
    RuleOfThumb
        A range of risks for a further member.

    Examples
    --------
    >>> rule_of_thumb([0.5, 0.6]).high <= 1
    True
    """
    risks = as_risks("member_risks", member_risks)
    m, largest = len(risks), float(risks.max())
    return RuleOfThumb(low=largest, high=min(1.0, (1.0 + 1.0 / m) * largest), necessary=m == 1)


def necessary_size(eta1: float) -> int:
    """⌊1/η₁⌋ + 1: the fewest members with which one robust member among broken ones can beat f₁ (Theorem 3).

    Broken means η_i = 1, as in BAT, where η(α) ≥ min(η₁, 1/M). With ⌈1/η₁⌉ members, the size of
    Equation 16, they can be as good as f₁. Either size is necessary, not sufficient.

    Parameters
    ----------
    eta1 : float
        Risk of the best member.

    Returns
    -------
    int
        M.

    Examples
    --------
    >>> necessary_size(0.3)
    4
    """
    (risk,) = as_risks("eta1", [eta1])
    if risk == 0:
        raise InputError("eta1 is 0; a member that is never fooled cannot be improved on")
    # The tolerance keeps the rounding of 1/η₁ from hiding a whole number.
    return math.floor(1.0 / float(risk) + 1e-9) + 1


def auxiliary_risk(member_risks: ArrayLike, probs: ArrayLike) -> float:
    """h(α) = Σ_i (η_i − η_{i−1}) max_{j ≥ i} α_j over members sorted by risk, η_0 = 0 (proof of Theorem 3).

    The risk of the best conceivable members with these risks: η(α) ≥ h(α) ≥ floor.

    Parameters
    ----------
    member_risks : array
        η_i [M].
    probs : array
        α [M].

    Returns
    -------
    float
        A lower bound of the risk.

    Examples
    --------
    >>> auxiliary_risk([0.5, 0.5], [0.5, 0.5]) <= 0.5
    True
    """
    risks = as_risks("member_risks", member_risks)
    alpha = as_probs(probs, len(risks))
    order = np.argsort(risks, kind="stable")
    steps = np.diff(risks[order], prepend=0.0)
    largest_from = np.maximum.accumulate(alpha[order][::-1])[::-1]
    return float(steps @ largest_from)


def tight_profile(member_risks: ArrayLike) -> RiskProfile:
    """The construction that makes Theorem 3 tight: η = h, so the floor is reached.

    The inputs at which members fail are nested, T_1 ⊆ T_2 ⊆ …, and every perturbation fools just one of them.

    Parameters
    ----------
    member_risks : array
        η_i [M].

    Returns
    -------
    RiskProfile
        One that reaches the floor.

    Examples
    --------
    >>> tight_profile([0.5, 0.5]).members
    2
    """
    risks = as_risks("member_risks", member_risks)
    members = len(risks)
    order = np.argsort(risks, kind="stable")
    single = np.eye(members, dtype=np.bool_)
    sets = [single[order[i:]] for i in range(members)] + [np.zeros((1, members), dtype=np.bool_)]
    weights = np.append(np.diff(risks[order], prepend=0.0), 1.0 - risks.max())
    return RiskProfile.from_configurations(sets, weights, members=members)
