"""The check of published tables: what numbers imply, and which are impossible."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from paper.published import Reported, ReportedAttack, audit_published, included, lines, paper_rows, repeated
from tests.risk.risk_cases import profiles

from randens.risk import RiskProfile


@settings(deadline=None, max_examples=30)
@given(profiles(2, 4))
def test_true_numbers_never_violate_anything(profile: RiskProfile) -> None:
    alpha = np.arange(1.0, profile.members + 1) / np.arange(1.0, profile.members + 1).sum()
    uniform = np.full(profile.members, 1 / profile.members)
    members = tuple(100 * (1 - profile.member_risks))
    for at, probs in ((uniform, None), (alpha, tuple(alpha))):
        found = audit_published(Reported("row", members, 100 * (1 - profile.risk(at)), probs))
        assert found.violations == ()
        assert found.gain == pytest.approx(profile.gain(at), abs=1e-9)
        if found.probs_range is not None:
            assert found.uniform_possible
            assert all(
                low - 1e-6 <= p <= high + 1e-6 for p, (low, high) in zip(at, found.probs_range, strict=True)
            )


def test_two_members_by_hand() -> None:
    """η = 0.6, 0.58 and 0.53 sampled uniformly: P(R₁) = 0.6 + 0.58 − 2·0.53 = 0.12 > 0.02."""
    found = audit_published(Reported("row", (40, 42), 47))
    assert found.conflict == pytest.approx(0.12)
    assert found.gain == pytest.approx(0.06)
    assert "uniformly beats both members" in found.notes[0]
    # α = (a, 1 − a) gives at least max(a, 1 − a)·0.58 + 0.02·a, which is 0.53 at a = 0.05/0.56 and at a = 0.53/0.6.
    assert found.probs_range is not None
    assert found.probs_range[0] == pytest.approx((0.05 / 0.56, 0.53 / 0.6), abs=1e-3)


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        (Reported("row", (40, 42), 72), "floor 30.00%"),
        (Reported("row", (40, 42), 35), "weakest member's, 60.00%"),
        (Reported("row", (40, 42), 35, (0.5, 0.5)), "from 30.00% to 59.00%"),
        (Reported("row", (20, 80), 55, (0.1, 0.9)), "from 24.00% to 26.00%"),
    ],
)
def test_violations_are_named(reported: Reported, said: str) -> None:
    assert any(said in text for text in audit_published(reported).violations)


def test_natural_accuracies_tell_alpha() -> None:
    """Natural accuracy is linear in α: 0.8 of members with 0.9 and 0.7 is reached by (½, ½) alone."""
    row = Reported("row", (40, 42), 47, natural=80, members_natural=(90, 70))
    for each, prob in ((row, 0.5), (dataclasses.replace(row, natural=75), 0.25)):
        found = audit_published(each)
        assert found.uniform_possible == (prob == 0.5)
        assert found.probs_range is not None
        assert found.probs_range[0] == pytest.approx((prob, prob), abs=1e-3)
    # No α has a natural accuracy above every member's.
    assert audit_published(dataclasses.replace(row, natural=95)).violations


def test_an_attack_on_the_larger_set_must_not_find_less() -> None:
    """The cube of 8/255 has corners at 8/255·√3072 = 1.739."""
    small = ReportedAttack("A", 45, "linf", 8 / 255)
    wide = [ReportedAttack("B", 45, "l2", eps) for eps in (2.0, 1.7)]
    assert [included(small, each, 3072) for each in wide] == [True, False]
    assert included(ReportedAttack("A", 45, "l2", 1.0), ReportedAttack("B", 45, "l1", 3.0), 9)
    for robust, eps, weak in ((56, 2.0, True), (44, 2.0, False), (56, 1.5, False)):
        row = Reported("row", attacks=(small, ReportedAttack("B", robust, "l2", eps)))
        assert any("at least 11.00 points" in said for said in audit_published(row).violations) == weak


def test_the_papers_own_tables() -> None:
    said = list(lines(paper_rows()))
    assert "49 rows, 9 with violations." in said
    assert all("ACW is weak" in line for line in said if "VIOLATION" in line)
    by_name = {line.split(": ")[0]: line for line in said}
    # η₁ + η₂ − 2η: 58.01 + 58.82 − 2·55.62; the natural accuracies leave one α.
    pair = by_name["Table 2, ResNet-20, CIFAR-10, BARRE, M = 2"]
    assert "P(R1) 5.59%" in pair
    assert pair.endswith("possible α: 0.50–0.50, 0.50–0.50")
    # Its natural accuracy is 83.54 and the mean of its members 83.52.
    assert "(uniform is not)" in by_name["Table 1, ResNet-18, CIFAR-10, BARRE"]
    same = [line for line in repeated() if "have the same robust accuracy" in line]
    assert (len(same), sum("exclude uniform" in line for line in same)) == (8, 1)
    assert any("M = 3 and M = 4 have the same numbers" in line for line in repeated())
    by_size = [line for line in repeated() if "by size" in line]
    assert any("AT, M = 1: [80.96, 48.72] in Table 1 and [80.96, 48.7]" in line for line in by_size)
    assert any("BARRE, M = 4: [54.63, 26.93] in Table 1 and [54.63, 26.9]" in line for line in by_size)
