"""The theorems about randomized ensembles, by number.

Theorem 1 and Corollary 1, two classifiers: `two_classifiers`, `theorem1_test`. Theorem 2, three: `candidates`.
Theorem 3, any number: `bounds`, with h of Lemmas 4 and 5 (`auxiliary_risk`), the tight case (`tight_profile`), the rule
of thumb and Equation 16; `explain` says it in words. Theorem 4 is in `optimal`, Proposition 1 in `profile`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc

from randens.core.errors import InputError, typed, whole
from randens.core.files import Plain
from randens.risk.intervals import Estimate, exact_binomial
from randens.risk.optimal import Sampling
from randens.risk.profile import RiskProfile
from randens.risk.sets import as_number, as_probs, as_risks, frozen

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

# α of Theorems 1 and 2.
_CANDIDATES = {
    1: "1",
    2: "1 0, 0 1, 1/2 1/2",
    3: "1 0 0, 0 1 0, 0 0 1, 1/2 1/2 0, 1/2 0 1/2, 0 1/2 1/2, "
    "1/2 1/4 1/4, 1/3 1/3 1/3, 1/4 1/2 1/4, 1/4 1/4 1/2",
}
MOST_CANDIDATE_MEMBERS = max(_CANDIDATES)

_EQUAL = 1e-11  # risks this close are equal
_TIE = 1e-12  # frequencies and ratios this close are equal up to rounding


@dataclass(frozen=True, eq=False)
class TwoClassifiers(Plain):
    """What Theorem 1 and Corollary 1 say about two classifiers.

    frequencies: p_k of each configuration of Figure 3, by name. conflict: P(R₁), how often either can be fooled but
    never both at once. helps: P(R₁) > |η₁ − η₂|, which is necessary and sufficient for sampling to beat both members.
    probs, risk: the optimum, (½, ½) if it helps and the better member otherwise. limit: what no ensemble of two
    members with these risks can go below (Corollary 1). explanation: all of it in words.
    """

    frequencies: Mapping[str, float]
    member_risks: tuple[float, float]
    conflict: float
    helps: bool
    probs: NDArray[np.float64]
    risk: float
    limit: float
    explanation: str


@typed(profile=RiskProfile)
def two_classifiers(profile: RiskProfile) -> TwoClassifiers:
    """Whether sampling from the two members of a profile helps (Theorem 1), and the best they could do.

    >>> sets = [FIGURE_3["either-not-both"], FIGURE_3["neither"]]
    >>> found = two_classifiers(RiskProfile.from_configurations(sets, [0.6, 0.4]))
    >>> found.helps, found.probs.tolist(), found.risk
    (True, [0.5, 0.5], 0.3)
    """
    if profile.members != 2:
        raise InputError(f"profile has {profile.members} members; Theorem 1 is about 2: restrict((i, j))")
    first, second = (float(risk) for risk in profile.member_risks)
    conflict, both = profile.conflict(0, 1), profile.jointly(0, 1)
    frequencies = {
        "either-not-both": conflict,
        "both": both,
        "first-only": max(0.0, first - conflict - both),
        "second-only": max(0.0, second - conflict - both),
    }
    frequencies["neither"] = max(0.0, 1.0 - sum(frequencies.values()))
    better, gap = min(first, second), abs(first - second)
    helps = conflict > gap + _TIE
    if helps:
        probs, risk = np.array([0.5, 0.5]), 0.5 * (first + second - conflict)
        verdict = f"more than that, so sampling both alike is the only optimum, at {risk:.1%} instead of {better:.1%}"
    else:
        probs, risk = np.array([1.0, 0.0] if first <= second else [0.0, 1.0]), better
        which = "first" if first <= second else "second"
        verdict = f"not more than that, so no mixture beats the {which} member alone, at {risk:.1%}"
    return TwoClassifiers(
        frequencies=MappingProxyType(frequencies),
        member_risks=(first, second),
        conflict=conflict,
        helps=helps,
        probs=frozen(probs),
        risk=risk,
        limit=min(0.5 * max(first, second), first, second),
        explanation=(
            f"The members' risks {first:.1%} and {second:.1%} differ by {gap:.1%}. At {conflict:.1%} of the inputs "
            f"either can be fooled but never both by one perturbation: {verdict} (Theorem 1)."
        ),
    )


@dataclass(frozen=True)
class Theorem1Test(Plain):
    """Theorem 1 as a statement about the distribution that the inputs come from.

    value: P(R₁) − |η₁ − η₂| over the inputs seen. low, high: its interval. p_value: how likely such inputs are if
    sampling does not help. verdict: "helps", "does not help" (high at most 0), or "undecided".
    """

    value: float
    low: float
    high: float
    p_value: float
    confidence: float
    verdict: str


@typed(profile=RiskProfile)
def theorem1_test(profile: RiskProfile, n: int | None = None, *, confidence: float = 0.95) -> Theorem1Test:
    """Does sampling from two members help on the distribution, or only on the inputs seen (Theorem 1)?

    P(R₁) − |η₁ − η₂| is the smaller of p₁ + p₃ − p₄ and p₁ − p₃ + p₄, in the notation of Equation 7. Each is a
    difference of two shares: sampling helps iff both are above 0. The p-value is the larger one of two exact sign
    tests, and the interval takes Clopper and Pearson's limits of the shares; both hold for every n. The witnesses
    are taken as they are: a stronger attack can only lower P(R₁) of an input and raise the risks. n: the number of
    inputs, by default the profile's own.
    """
    found = two_classifiers(profile)
    inputs = whole("n", (profile.size or 0) if n is None else n)
    alpha = 1.0 - as_number("confidence", confidence, high=1.0)
    conflict, first, second = (
        round(found.frequencies[name] * inputs) for name in ("either-not-both", "first-only", "second-only")
    )
    sides = ((conflict + first, second), (conflict + second, first))
    value = min(up - down for up, down in sides) / inputs

    def share(count: int, tail: float) -> Estimate:
        return exact_binomial(count, inputs, 1 - 2 * tail)

    # Below: whichever side is the smaller one, its own limit must fail. Above: both limits must hold.
    low = min(share(up, alpha / 4).low - share(down, alpha / 4).high for up, down in sides)
    high = min(share(up, alpha / 8).high - share(down, alpha / 8).low for up, down in sides)
    # P(at least `up` heads in up + down tosses of a fair coin).
    p_value = max(float(betainc(up, down + 1, 0.5)) if up else 1.0 for up, down in sides)
    verdict = "helps" if p_value <= alpha else "does not help" if high <= 0 else "undecided"
    return Theorem1Test(value, low, high, p_value, 1.0 - alpha, verdict)


def candidates(M: int) -> tuple[tuple[Fraction, ...], ...]:
    """The probabilities among which there is always an optimum: Theorem 1 for two members, Theorem 2 for three.

    >>> [tuple(map(str, c)) for c in candidates(2)]
    [('1', '0'), ('0', '1'), ('1/2', '1/2')]
    """
    whole("M", M, 1, MOST_CANDIDATE_MEMBERS, " (Theorems 1 and 2); method='exact' has no such limit")
    return tuple(tuple(map(Fraction, row.split())) for row in _CANDIDATES[M].split(", "))


@typed(profile=RiskProfile)
def candidate_sampling(profile: RiskProfile, *, clean_risks: ArrayLike | None = None) -> Sampling:
    """The best candidate, which is optimal (Theorems 1 and 2); ties: lower clean risk, then fewer members."""
    table = [np.array(row, dtype=np.float64) for row in candidates(profile.members)]
    members = profile.members
    clean = np.zeros(members) if clean_risks is None else as_risks("clean_risks", clean_risks, members)
    risks = np.array([profile.risk(probs) for probs in table])
    best = [probs for probs, risk in zip(table, risks, strict=True) if risk <= risks.min() + _EQUAL]
    cleanest = min(float(clean @ probs) for probs in best)
    probs = next(probs for probs in best if clean @ probs <= cleanest + _EQUAL)
    risk = profile.risk(probs)
    return Sampling(frozen(probs), risk, risk, method="candidates", iterations=len(table))


@dataclass(frozen=True, eq=False)
class Bounds(Plain):
    """floor ≤ η(α) ≤ ceiling for every α (Theorem 3), given the member risks η_i [M] and nothing else.

    floor: min_k η_(k)/k over the sorted risks. ceiling: the largest. m: the smallest k that attains the floor.
    probs: [M], 1/m on the m most robust members; they reach the floor if it can be reached.
    """

    member_risks: NDArray[np.float64]
    floor: float
    ceiling: float
    m: int
    probs: NDArray[np.float64]


def bounds(member_risks: ArrayLike) -> Bounds:
    """The tightest bounds on η(α) that the member risks η_i [M] allow (Theorem 3).

    >>> b = bounds([0.5, 0.4, 0.45])
    >>> b.m, round(b.floor, 4), b.ceiling
    (3, 0.1667, 0.5)
    """
    risks = as_risks("member_risks", member_risks)
    order = np.argsort(risks, kind="stable")
    ratios = risks[order] / np.arange(1, len(risks) + 1)
    # The smallest k: 0.3/3 is a little less than 0.1, which is no reason to sample three members.
    m = int(np.argmax(ratios <= ratios.min() * (1 + _TIE))) + 1
    probs = np.zeros(len(risks))
    probs[order[:m]] = 1.0 / m
    return Bounds(frozen(risks), float(ratios.min()), float(risks.max()), m, frozen(probs))


@dataclass(frozen=True)
class RuleOfThumb(Plain):
    """low ≤ η_{m+1} ≤ high for the next member to be useful (after Theorem 3); `necessary` for the second one."""

    low: float
    high: float
    necessary: bool


def rule_of_thumb(member_risks: ArrayLike) -> RuleOfThumb:
    """The risk the next member should have: η_m ≤ η_{m+1} ≤ (1 + 1/m) η_m, with η_m the largest so far."""
    risks = as_risks("member_risks", member_risks)
    m, largest = len(risks), float(risks.max())
    return RuleOfThumb(low=largest, high=min(1.0, (1.0 + 1.0 / m) * largest), necessary=m == 1)


def necessary_size(eta1: float) -> int:
    """⌊1/η₁⌋ + 1: the fewest members with which f₁ can be beaten where all others always fail (Theorem 3)."""
    (risk,) = as_risks("eta1", [eta1])
    if risk == 0:
        raise InputError("eta1 is 0; a member that is never fooled cannot be improved on")
    # The tolerance keeps the rounding of 1/η₁ from hiding a whole number.
    return math.floor(1.0 / float(risk) + 1e-9) + 1


def auxiliary_risk(member_risks: ArrayLike, probs: ArrayLike) -> float:
    """h(α) = Σ_i (η_i − η_{i−1}) max_{j ≥ i} α_j, risks sorted, η_0 = 0: η(α) ≥ h(α) ≥ floor (proof of Theorem 3)."""
    risks = as_risks("member_risks", member_risks)
    order = np.argsort(risks, kind="stable")
    largest_from = np.maximum.accumulate(as_probs(probs, len(risks))[order][::-1])[::-1]
    return float(np.diff(risks[order], prepend=0.0) @ largest_from)


def tight_profile(member_risks: ArrayLike) -> RiskProfile:
    """The construction that makes Theorem 3 tight, η = h: nested inputs, and every perturbation fools one member."""
    risks = as_risks("member_risks", member_risks)
    order = np.argsort(risks, kind="stable")
    sets = [np.eye(len(risks))[order[i:]] for i in range(len(risks) + 1)]
    weights = np.append(np.diff(risks[order], prepend=0.0), 1.0 - risks.max())
    return RiskProfile.from_configurations(sets, weights, members=len(risks))


@dataclass(frozen=True, eq=False)
class Explanation(Bounds):
    """Theorem 3's bounds and the advice from them, in sentences.

    next_member: the risk a further member should have. needed_size: where all members but one are broken, the fewest
    members that can beat that one (`necessary_size`), else None.
    """

    next_member: RuleOfThumb
    needed_size: int | None
    sentences: tuple[str, ...]


def explain(member_risks: ArrayLike, *, classes: int | None = None) -> Explanation:
    """Which risks an ensemble can have if its members have these risks; with two classes a vote is as robust."""
    risks = as_risks("member_risks", member_risks)
    if classes is not None:
        whole("classes", classes, 2)
    limits = bounds(risks)
    # Members too weak to lower the floor must not make the advice for the next one more lenient.
    thumb = rule_of_thumb(risks[limits.probs > 0])
    best = int(np.argmin(risks))
    lowest = float(risks[best])
    broken = len(risks) > 1 and 0 < lowest < 1.0 <= np.delete(risks, best).min()
    size = necessary_size(lowest) if broken else None
    if len(risks) == 1:
        said = [f"There is one member, so there is nothing to sample: the risk is {limits.floor:.2%}."]
    else:
        said = [
            f"Whatever the probabilities, the risk of the ensemble lies between {limits.floor:.2%} and "
            f"{limits.ceiling:.2%}; from the members' risks alone nothing tighter can be said (Theorem 3).",
            f"Sampling cannot help: member {best} alone, at {lowest:.2%}, is as good as the floor."
            if limits.m == 1
            else f"The floor is reached, if at all, by sampling the {limits.m} most robust members alike: at best that "
            f"turns the {lowest:.2%} of member {best} into {limits.floor:.2%}. How much of it is real depends on how "
            "often one perturbation fools several members at once, which only an attack on the ensemble can tell.",
        ]
    if size is not None:
        verdict = "too small" if len(risks) < size else "large enough for that"
        said.append(
            f"All members but {best} are always fooled: it takes at least {size} members to beat that one "
            f"(Equation 16), and an ensemble of {len(risks)} is {verdict}."
        )
    unused = ", ".join(map(str, np.flatnonzero(limits.probs == 0)))
    if limits.m > 1 and unused:
        said.append(f"Too weak to lower the floor: member {unused}.")
    if thumb.low == 0:
        said.append("A member that is never fooled needs no other member.")
    elif (1 + 1 / limits.m) * thumb.low > 1:
        said.append("A further member lowers the floor whatever its risk.")
    else:
        why = "two are never better than one from there on" if thumb.necessary else "rule of thumb"
        said.append(f"A further member must have a risk below {thumb.high:.2%} to lower the floor ({why}).")
    if len(risks) > 1 and classes in (None, 2):
        said.append(
            "With two classes, some deterministic threshold vote of the same members is at least as robust as any way "
            "of sampling them (Gnecco-Heredia et al., NeurIPS 2023): there the advantage of sampling is compute alone."
        )
    return Explanation(**vars(limits), next_member=thumb, needed_size=size, sentences=tuple(said))
