"""The check of published tables: what numbers imply, and which are impossible."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from tests.risk.risk_cases import profiles

from randens.cli.main import run as command
from randens.core.errors import InputError
from randens.risk import RiskProfile
from randens.risk.published import Reported, ReportedAttack, audit_published, included, reported_from


@settings(deadline=None, max_examples=30)
@given(profiles(2, 4))
def test_true_numbers_never_violate_anything(profile: RiskProfile) -> None:
    alpha = np.arange(1.0, profile.members + 1)
    alpha /= alpha.sum()
    members = tuple(1 - profile.member_risks)
    for probs in (None, tuple(alpha)):
        at = np.full(profile.members, 1 / profile.members) if probs is None else alpha
        found = audit_published(Reported("row", members, 1 - profile.risk(at), probs))
        assert found.violations == ()
        assert found.gain == pytest.approx(profile.gain(at), abs=1e-9)
        if probs is None:
            assert found.uniform_possible
            assert found.probs_range is not None
            assert all(
                low - 1e-6 <= p <= high + 1e-6 for p, (low, high) in zip(at, found.probs_range, strict=True)
            )


def test_two_members_by_hand() -> None:
    """η = 0.6, 0.58 and 0.53 drawn evenly: P(R₁) = 0.6 + 0.58 − 2·0.53 = 0.12 > 0.02."""
    found = audit_published(Reported("row", (0.4, 0.42), 0.47))
    assert found.conflict == pytest.approx(0.12)
    assert found.gain == pytest.approx(0.06)
    assert "drawing beats both members" in found.notes[0]
    # α = (a, 1 − a) gives at least max(a, 1 − a)·0.58 + 0.02·a, which is 0.53 at a = 0.05/0.56 and at a = 0.53/0.6.
    assert found.probs_range is not None
    (low, high), _ = found.probs_range
    assert low == pytest.approx(0.05 / 0.56, abs=1e-3)
    assert high == pytest.approx(0.53 / 0.6, abs=1e-3)


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        (Reported("row", (0.4, 0.42), 0.72), "below the floor 30.00%"),
        (Reported("row", (0.4, 0.42), 0.35), "above that of the weakest member, 60.00%"),
        (Reported("row", (0.4, 0.42), 0.35, (0.5, 0.5)), "must lie between 30.00% and 59.00%, not at 65.00%"),
        (Reported("row", (0.2, 0.8), 0.55, (0.1, 0.9)), "must lie between 24.00% and 26.00%"),
    ],
)
def test_violations_are_named(reported: Reported, said: str) -> None:
    assert any(said in text for text in audit_published(reported).violations)


def test_balls_inside_balls() -> None:
    # The cube of 8/255 has corners at 8/255·√3072 = 1.739 < 2.
    assert included("linf", 8 / 255, "l2", 2.0, 3072)
    assert not included("linf", 8 / 255, "l2", 1.7, 3072)
    assert included("l2", 0.5, "linf", 0.5, 3072)
    assert not included("l2", 0.5, "linf", 0.4, 3072)
    assert included("l2", 1.0, "l1", 3.0, 9)
    assert not included("l2", 1.0, "l1", 2.9, 9)
    assert included("l1", 1.0, "l2", 1.0, 9)
    with pytest.raises(InputError, match="norm is 'l0'"):
        included("l0", 1, "l2", 1.0, 9)


def test_an_attack_on_the_larger_set_must_not_find_less() -> None:
    small, large = ReportedAttack("A", 0.45, "linf", 8 / 255), ReportedAttack("B", 0.56, "l2", 2.0)
    (said,) = audit_published(Reported("row", attacks=(small, large))).violations
    assert "B is weak, and misses at least 11.00 points" in said
    assert (
        audit_published(Reported("row", attacks=(small, ReportedAttack("B", 0.44, "l2", 2.0)))).violations
        == ()
    )
    assert (
        audit_published(Reported("row", attacks=(small, ReportedAttack("B", 0.56, "l2", 1.5)))).violations
        == ()
    )


def test_the_papers_own_tables(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the paper's tables come with the code that reproduces them")
    assert command(["explain", "--table", "paper", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["rows"]) == 22 + 18 + 9
    wrong = [row for row in said["rows"] if row["violations"]]
    assert len(wrong) == 9
    assert all(row["name"].startswith("Table 5") and "ACW is weak" in row["violations"][0] for row in wrong)
    by_name = {row["name"]: row for row in said["rows"]}
    # η₁ + η₂ − 2η: 58.01 + 58.82 − 2·55.62.
    assert by_name["Table 2, ResNet-20, CIFAR-10, BARRE, M = 2"]["conflict"] == pytest.approx(
        0.0559, abs=1e-4
    )
    assert by_name["Table 1, MobileNetV1, CIFAR-10, MRBoost-R"]["gain"] == pytest.approx(0.0588, abs=1e-4)
    assert any("M = 3 and M = 4 have the same numbers" in text for text in said["repeated"])
    # Table 5 has IAT 49.57, MRBoost-R 48.05, BARRE 49.91 for MobileNetV1, Table 1 49.57, 48.91, 49.91.
    (mobile,) = [text for text in said["repeated"] if text.startswith("MobileNetV1: Table 1")]
    assert mobile.endswith("print the same robust accuracy for IAT, BARRE: OSP returned its start")
    assert sum("for IAT, MRBoost-R, BARRE" in text for text in said["repeated"]) == 2


def test_tables_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.toml"
    table.write_text(
        '[[rows]]\nname = "mine"\nmembers = [40.0, 42.0]\nrobust = 72.0\n'
        '[[rows]]\nname = "attacks"\nattacks = [{name = "A", robust = 0.5, norm = "linf", eps = 0.1}]\n'
    )
    assert command(["explain", "--table", str(table)]) == 0
    out = capsys.readouterr().out
    assert "VIOLATION: the risk 28.00% is below the floor 30.00%" in out.replace("\n", " ")
    assert "2 rows, 1 with violations" in out
    for content in ("x = 1", "[[rows]]\nmember = [1]", "[[rows]]\nmembers = [400.0]\nrobust = 1", "[[rows]"):
        table.write_text(content)
        assert command(["explain", "--table", str(table)]) == 2
    assert command(["explain"]) == 2
    assert command(["explain", "0.4", "--table", "paper"]) == 2
    with pytest.raises(InputError, match="needs name, robust, norm and eps"):
        reported_from({"attacks": [{"robust": 0.5}]})
