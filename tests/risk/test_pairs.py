"""Theorem 1 and Corollary 1: two classifiers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.risk.risk_cases import profiles, simplex_points, weights

from randens.core.errors import InputError
from randens.risk import FIGURE_3, RiskProfile, bounds, exact_sampling, theorem1_test, two_classifiers


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
        assert best.probs.tolist() == [0.5, 0.5]
    assert found.limit - 1e-12 <= found.risk
    assert found.limit == pytest.approx(bounds(profile.member_risks).floor, abs=1e-12)


@settings(deadline=None)
@given(profiles(2, 2), st.data())
def test_the_five_frequencies_are_the_whole_risk(profile: RiskProfile, data: st.DataObject) -> None:
    a, b = data.draw(simplex_points(2))
    p = list(two_classifiers(profile).frequencies.values())
    assert sum(p) == pytest.approx(1)
    assert p[0] * max(a, b) + p[1] + p[2] * a + p[3] * b == pytest.approx(profile.risk([a, b]), abs=1e-12)


@settings(deadline=None)
@given(weights(5))
def test_figure_3_by_name(p: list[float]) -> None:
    assert list(FIGURE_3) == ["either-not-both", "both", "first-only", "second-only", "neither"]
    found = two_classifiers(RiskProfile.from_configurations(FIGURE_3.values(), p))
    assert list(found.frequencies.values()) == pytest.approx(p, abs=1e-12)
    assert found.member_risks == pytest.approx((p[0] + p[1] + p[2], p[0] + p[1] + p[3]))
    assert found.conflict == pytest.approx(p[0])


def test_the_limit_is_reached_by_nested_conflict() -> None:
    profile = RiskProfile.from_configurations(
        [FIGURE_3["either-not-both"], FIGURE_3["second-only"], FIGURE_3["neither"]], [0.3, 0.1, 0.6]
    )
    found = two_classifiers(profile)
    assert found.risk == pytest.approx(found.limit) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("p", "helps", "words"),
    [
        ([0.6, 0.0, 0.0, 0.0, 0.4], True, "from 60.0% down to 30.0%"),
        ([0.2, 0.0, 0.3, 0.0, 0.5], False, "no mixture beats the second member alone, at 20.0%"),
        ([0.25, 0.0, 0.25, 0.0, 0.5], False, "They are equal"),
        ([0.0, 0.4, 0.0, 0.1, 0.5], False, "fools them at once"),
        ([0.0, 0.0, 0.5, 0.2, 0.3], False, "no input at which the attacker has to guess"),
    ],
)
def test_explanations_name_the_reason(p: list[float], helps: bool, words: str) -> None:
    found = two_classifiers(RiskProfile.from_configurations(FIGURE_3.values(), p))
    assert found.helps is helps
    assert words in found.explanation
    assert found.to_json()["explanation"] == found.explanation


def test_only_pairs_are_accepted() -> None:
    profile = RiskProfile.from_configurations([np.eye(3)], [1.0])
    with pytest.raises(InputError, match="profile has 3 members; Theorem 1 is about 2"):
        two_classifiers(profile)
    assert two_classifiers(profile.restrict((0, 2))).helps


def _profile(counts: tuple[int, int, int, int, int]) -> RiskProfile:
    return RiskProfile.from_configurations(FIGURE_3.values(), np.array(counts) / sum(counts))


def test_theorem_1_as_a_test_by_hand() -> None:
    """40 of 100 inputs in conflict, 5 and 15 foolable in one member only: 0.4 − |0.05 − 0.15| = 0.3."""
    found = theorem1_test(_profile((40, 10, 5, 15, 30)), 100)
    assert found.value == pytest.approx(0.3)
    # The smaller side has 45 inputs for drawing and 15 against: a sign test on 60.
    assert found.p_value == pytest.approx(sum(math.comb(60, k) for k in range(45, 61)) / 2**60)
    assert found.verdict == "helps"
    assert 0 < found.low < 0.3 < found.high < 0.6


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [((1, 0, 0, 0, 9), "undecided"), ((0, 0, 0, 50, 50), "does not help"), ((60, 0, 0, 0, 40), "helps")],
)
def test_verdicts_of_the_test(counts: tuple[int, int, int, int, int], verdict: str) -> None:
    assert theorem1_test(_profile(counts), sum(counts)).verdict == verdict


def test_the_interval_covers_and_the_test_keeps_its_level() -> None:
    """Drawn 400 times from a distribution at the edge, where drawing just does not help."""
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


def test_the_test_needs_to_know_how_many_inputs() -> None:
    with pytest.raises(InputError, match="n must be a whole number"):
        theorem1_test(_profile((1, 1, 1, 1, 1)))
    with pytest.raises(InputError, match="confidence"):
        theorem1_test(_profile((1, 1, 1, 1, 1)), 5, confidence=1.5)
