"""The plateau experiment: its table is recomputed by hand, its members are whole; BAT's account."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from paper.bat import lines as account
from paper.plateau.__main__ import FOLDER, first, lines, members
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import THREAT, digits, ensemble

import randens
from randens import attacks


def test_shipped_members_are_whole() -> None:
    found = members("iat")
    assert len(found) >= 2
    for path in found:
        rec = randens.load(path)
        assert len(rec) == 1
        assert rec.threat == randens.Threat("linf", 8 / 255)
    assert (FOLDER / "at50.toml").is_file()


def test_the_table_follows_from_the_witnesses(tmp_path: Path) -> None:
    rec = ensemble("linear", "mlp")
    found = evaluate(
        rec, digits("test").subset(slice(0, 60)), attacks.create("pgd", THREAT), also={"first 1": first(1, 2)}
    )
    found.save(tmp_path / "iat-arc-r.json")
    table = "\n".join(lines(tmp_path))
    risks = found.pool.best([0.5, 0.5])[0]
    assert f"| {100 * np.mean(1 - risks):.1f} (" in table
    assert f"| {100 * np.mean((1 - risks) ** 10):.1f} (" in table
    best = found.foolable.mean(axis=0).min()
    assert f"{100 * (best - risks.mean()):+.1f} (" in table
    assert "73.18 / 41.99" in table


def test_bat_is_judged_by_theorem_1() -> None:
    data = digits("test").subset(slice(0, 40))
    rec = ensemble("linear", "mlp").with_probs([0.9, 0.1])
    found = evaluate(rec, data, attacks.create("pgd", THREAT), also={"uniform": None})
    said = account(found, dataclasses.replace(found))
    first_risk, second = found.member_risks
    assert f"η₁ = {first_risk:.1%}, η₂ = {second:.1%}" in said[0]
    assert ("cannot" in said[1]) == (not randens.risk.two_classifiers(found.profile).helps)


@pytest.mark.parametrize(("m", "expected"), [(1, [1, 0, 0]), (2, [0.5, 0.5, 0]), (3, [1 / 3] * 3)])
def test_uniform_over_the_first(m: int, expected: list[float]) -> None:
    assert first(m, 3) == pytest.approx(expected)
