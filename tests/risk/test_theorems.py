"""Theorems 1 to 3 and Corollary 1 as properties: pairs, the ten candidates of three, bounds, and advice from them."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.risk.risk_cases import profiles, risk_lists, simplex_points

from randens.risk import (
    FIGURE_3,
    RiskProfile,
    auxiliary_risk,
    bounds,
    candidate_sampling,
    candidates,
    exact_sampling,
    explain,
    necessary_size,
    rule_of_thumb,
    theorem1_test,
    tight_profile,
    two_classifiers,
)


@settings(deadline=None)
@given(profiles(2, 2))
def test_theorem_1_gives_the_optimum(profile: RiskProfile) -> None:
    found = two_classifiers(profile)
    best = exact_sampling(profile)
    assert found.risk == pytest.approx(best.risk, abs=1e-10)
    assert profile.risk(found.probs) == pytest.approx(found.risk, abs=1e-12)
    first, second = profile.member_risks
    assert found.helps == (best.risk < min(first, second) - 1e-11)
    if found.helps:
        assert best.probs == pytest.approx([0.5, 0.5], abs=1e-9)
    assert found.limit - 1e-12 <= found.risk
    assert found.limit == pytest.approx(bounds(profile.member_risks).floor, abs=1e-12)


@settings(deadline=None)
@given(profiles(2, 2), st.data())
def test_the_five_frequencies_are_the_whole_risk(profile: RiskProfile, data: st.DataObject) -> None:
    a, b = data.draw(simplex_points(2))
    found = two_classifiers(profile)
    assert list(found.frequencies) == ["either-not-both", "both", "first-only", "second-only", "neither"]
    p = list(found.frequencies.values())
    assert sum(p) == pytest.approx(1)
    assert p[0] * max(a, b) + p[1] + p[2] * a + p[3] * b == pytest.approx(profile.risk([a, b]), abs=1e-12)


def _profile(counts: tuple[int, int, int, int, int]) -> RiskProfile:
    return RiskProfile.from_configurations(FIGURE_3.values(), np.array(counts) / sum(counts))


def test_theorem_1_as_a_test_by_hand() -> None:
    """40 of 100 inputs in conflict, 5 and 15 foolable in one member only: 0.4 − |0.05 − 0.15| = 0.3."""
    found = theorem1_test(_profile((40, 10, 5, 15, 30)), 100)
    assert found.value == pytest.approx(0.3)
    # The smaller side has 45 inputs for sampling and 15 against: a sign test on 60.
    assert found.p_value == pytest.approx(sum(math.comb(60, k) for k in range(45, 61)) / 2**60)
    assert found.verdict == "helps"
    assert 0 < found.low < 0.3 < found.high < 0.6


def test_the_interval_covers_and_the_test_keeps_its_level() -> None:
    """400 samples from a distribution at the edge, where sampling just does not help."""
    generator = np.random.default_rng(0)
    p = np.array([0.1, 0.2, 0.05, 0.15, 0.5])
    truth = p[0] - abs(p[2] - p[3])
    wrong = missed = 0
    for _ in range(400):
        counts = generator.multinomial(150, p)
        found = theorem1_test(_profile(tuple(counts)), 150, confidence=0.9)
        wrong += found.verdict == "helps"
        missed += not found.low <= truth <= found.high
    assert truth == pytest.approx(0.0)
    assert wrong <= 60
    assert missed <= 40


THEOREM_2 = [
    tuple(map(Fraction, row.split()))
    for row in (
        *("1 0 0", "0 1 0", "0 0 1", "1/2 1/2 0", "0 1/2 1/2", "1/2 0 1/2"),
        *("1/2 1/4 1/4", "1/4 1/2 1/4", "1/4 1/4 1/2", "1/3 1/3 1/3"),
    )
]

# The paper's configurations for three classifiers, and its ten vectors p as positions among them.
A, B, C = (1, 0, 0), (0, 1, 0), (0, 0, 1)
EQUATION = [
    *([A, B, C], [(1, 1, 0), C], [(0, 1, 1), A], [(1, 0, 1), B], [A, B], [B, C], [A, C]),
    *([A], [B], [C], [(1, 1, 1)], [(0, 0, 0)]),
]
PAPER = [(9, 10), (8, 10), (8, 9), (5, 10), (6, 8), (7, 9), (3, 6), (4, 7), (2, 5), (1,)]


def test_the_candidates_are_those_of_theorems_1_and_2() -> None:
    assert set(candidates(2)) == {(1, 0), (0, 1), (Fraction(1, 2), Fraction(1, 2))}
    assert set(candidates(3)) == set(THEOREM_2)
    assert candidates(1) == ((Fraction(1),),)


@pytest.mark.parametrize(("index", "used"), list(enumerate(PAPER)))
def test_each_of_the_papers_vectors_has_its_own_unique_minimizer(index: int, used: tuple[int, ...]) -> None:
    profile = RiskProfile.from_configurations([EQUATION[k - 1] for k in used], [1 / len(used)] * len(used))
    risks = {c: profile.risk(np.array(c, dtype=float)) for c in candidates(3)}
    expected = THEOREM_2[index]
    assert [c for c, risk in risks.items() if risk < min(risks.values()) + 1e-12] == [expected]
    assert candidate_sampling(profile).probs == pytest.approx([float(x) for x in expected])


@pytest.mark.parametrize("members", [2, 3])
def test_candidates_are_vertices_found_by_solving_every_system(members: int) -> None:
    """The slow way: every choice of M − 1 hyperplanes (u − v)·α = 0, in rational numbers."""
    normals = [d for d in itertools.product((-1, 0, 1), repeat=members) if d > tuple(-x for x in d)]
    found = set()
    for rows in itertools.combinations(normals, members - 1):
        matrix = np.array([*rows, (1,) * members], dtype=np.float64)
        determinant = np.linalg.det(matrix)
        if abs(determinant) < 0.5:
            continue
        solution = np.linalg.solve(matrix, np.eye(members)[-1])
        if solution.min() > -1e-9:
            found.add(tuple(Fraction(float(x)).limit_denominator(100) for x in solution))
    assert found == set(candidates(members))


@settings(deadline=None)
@given(profiles(1, 3), st.data())
def test_no_point_of_the_simplex_beats_the_candidates(profile: RiskProfile, data: st.DataObject) -> None:
    alpha = data.draw(simplex_points(profile.members))
    best = candidate_sampling(profile)
    assert best.risk <= profile.risk(alpha) + 1e-11
    assert best.gap == 0


def test_ties_go_to_lower_clean_risk_then_to_fewer_members() -> None:
    # Members 0 and 1 fail exactly alike: all mixtures of them are equally good.
    profile = RiskProfile.from_configurations([[(1, 1, 0)], [(0, 0, 1)]], [0.3, 0.7])
    assert candidate_sampling(profile).probs.tolist() == [1, 0, 0]
    assert candidate_sampling(profile, clean_risks=[0.2, 0.1, 0.0]).probs.tolist() == [0, 1, 0]


@given(st.data(), st.integers(1, 6), st.floats(0, 1), st.floats(0, 1))
def test_lemma_3_redistribution(data: st.DataObject, members: int, p: float, q: float) -> None:
    """Moving the smaller weight p from two sets I and J to their union and their intersection lowers the sum."""
    alpha = data.draw(simplex_points(members))
    p, q = sorted((p, q))
    subset = st.sets(st.integers(0, members - 1), min_size=1)
    first, second = data.draw(subset), data.draw(subset)

    def largest(chosen: set[int]) -> float:
        return max((float(alpha[i]) for i in chosen), default=0.0)

    before = p * largest(first) + q * largest(second)
    after = p * largest(first | second) + (q - p) * largest(second) + p * largest(first & second)
    assert before >= after - 1e-12


@settings(deadline=None)
@given(profiles(), st.data())
def test_every_risk_lies_between_floor_and_ceiling(profile: RiskProfile, data: st.DataObject) -> None:
    alpha = data.draw(simplex_points(profile.members))
    limits = bounds(profile.member_risks)
    auxiliary = auxiliary_risk(profile.member_risks, alpha)
    assert limits.floor - 1e-12 <= auxiliary <= profile.risk(alpha) + 1e-12
    assert profile.risk(alpha) <= limits.ceiling + 1e-12


@settings(deadline=None)
@given(risk_lists(), st.data())
def test_the_tight_construction_meets_floor_ceiling_and_auxiliary(
    risks: list[float], data: st.DataObject
) -> None:
    profile = tight_profile(risks)
    limits = bounds(risks)
    alpha = data.draw(simplex_points(len(risks)))
    assert profile.member_risks == pytest.approx(np.array(risks), abs=1e-12)
    assert profile.risk(alpha) == pytest.approx(auxiliary_risk(risks, alpha), abs=1e-12)
    assert profile.risk(limits.probs) == pytest.approx(limits.floor, abs=1e-12)
    assert exact_sampling(profile).risk == pytest.approx(limits.floor, abs=1e-10)
    worst = np.eye(len(risks))[int(np.argmax(risks))]
    assert profile.risk(worst) == pytest.approx(limits.ceiling, abs=1e-12)


@settings(deadline=None)
@given(risk_lists())
def test_the_floor_is_the_smallest_sorted_risk_over_its_rank(risks: list[float]) -> None:
    limits = bounds(risks)
    ratios = [risk / k for k, risk in enumerate(sorted(risks), start=1)]
    assert limits.floor == min(ratios)
    # The first of those that are equal up to rounding.
    assert limits.m == [ratio <= min(ratios) * (1 + 1e-12) for ratio in ratios].index(True) + 1
    assert limits.ceiling == max(risks)
    drawn = [risks[i] for i in np.flatnonzero(limits.probs)]
    assert sorted(drawn) == sorted(risks)[: limits.m]
    assert limits.probs[limits.probs > 0] == pytest.approx(1 / limits.m)
    assert bounds([0.1, 0.2, 0.3]).m == 1  # although 0.3/3 is a float below 0.1


def test_rule_of_thumb() -> None:
    one = rule_of_thumb([0.3])
    assert (one.low, one.high, one.necessary) == (0.3, 0.6, True)
    three = rule_of_thumb([0.6, 0.3, 0.4])
    assert three.low == 0.6
    assert three.high == pytest.approx(0.8)
    assert not three.necessary
    assert rule_of_thumb([0.9]).high == 1.0


@settings(deadline=None)
@given(st.floats(0.01, 0.49))
def test_a_second_member_above_the_rule_never_helps(eta: float) -> None:
    high = rule_of_thumb([eta]).high
    worse = min(1.0, high * 1.01)
    assert bounds([eta, worse]).floor == eta
    assert exact_sampling(tight_profile([eta, worse])).risk == pytest.approx(eta, abs=1e-10)
    assert bounds([eta, high * 0.99]).floor < eta


@settings(deadline=None)
@given(st.integers(1, 40))
def test_the_necessary_size_is_the_first_above_the_reciprocal(k: int) -> None:
    assert necessary_size(1 / k) == k + 1
    assert necessary_size(min(1.0, 1 / k * 1.001)) == (k if k > 1 else 2)
    assert necessary_size(1 / k * 0.999) == k + 1


@pytest.mark.parametrize("eta", [0.3, 0.5, 1 / 3, 0.25, 0.7])
def test_broken_members_help_only_from_the_necessary_size_on(eta: float) -> None:
    size = necessary_size(eta)
    for members in range(1, 7):
        floor = bounds([eta] + [1.0] * (members - 1)).floor
        assert floor == pytest.approx(min(eta, 1 / members))
        assert (floor < eta - 1e-12) == (members >= size)


def test_explanation_says_what_the_numbers_say() -> None:
    found = explain([0.45, 0.99, 0.5, 0.47])
    assert (found.m, found.floor) == (3, bounds([0.45, 0.99, 0.5, 0.47]).floor)
    # The weak member 1 is left out, so it must not loosen the advice for a further one.
    assert found.next_member.high == pytest.approx(0.5 * 4 / 3)
    text = " ".join(found.sentences)
    for words in ("16.67%", "99.00%", "Too weak to lower the floor: member 1.", "NeurIPS 2023"):
        assert words in text
    assert found.to_json()["floor"] == found.floor
    assert not any("threshold vote" in sentence for sentence in explain([0.3, 0.3], classes=10).sentences)
    broken = explain([1.0, 0.3, 1.0])
    assert broken.needed_size == 4
    assert any("too small" in sentence for sentence in broken.sentences)
