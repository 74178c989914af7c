"""Theorem 1 and Corollary 1: two classifiers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.risk.risk_cases import profiles, simplex_points, weights

from randens.errors import InputError
from randens.risk import FIGURE_3, RiskProfile, bounds, exact_sampling, two_classifiers


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
