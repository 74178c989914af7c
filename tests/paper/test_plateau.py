"""The plateau experiment: its table is recomputed by hand, its members are whole; BAT's account."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import paper.plateau.__main__ as plateau
import pytest
from paper.bat import lines as account
from paper.plateau.__main__ import first, lines, main, measure, members
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import THREAT, digits, ensemble

import randens
from randens import RandomizedEnsemble, attacks
from randens.core.files import read_json
from randens.evaluation import Evaluation
from randens.training import load_recipe, train


def test_shipped_members_are_whole_and_say_what_they_took(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(members("iat")) >= 2
    for run in members("iat"):
        rec = randens.load(run / "ensemble")
        assert (len(rec), rec.threat) == (1, randens.Threat("linf", 8 / 255))
    main([])
    said = capsys.readouterr().out
    assert "at50-s0: 1 × resnet20, seed 0, 9.0 million passes, 2.6 h" in said
    assert said == (plateau.FOLDER / "table.md").read_text(encoding="utf-8")


def test_the_table_follows_from_the_witnesses(tmp_path: Path) -> None:
    rec, data = ensemble("linear", "mlp"), digits("test").subset(slice(0, 60))
    also = {"first 1": first(1, 2), "chosen": [0.9, 0.1]}
    found = evaluate(rec, data, attacks.create("pgd", THREAT), also=also)
    found.save(tmp_path / "iat-arc-r.json")
    few = evaluate(rec, data.subset(slice(0, 30)), attacks.create("fgsm", THREAT), also=also)
    few.save(tmp_path / "iat-standard.json")
    table = "\n".join(lines(tmp_path))
    risks, best = found.pool.best([0.5, 0.5])[0], found.foolable.mean(axis=0).min()
    assert f"| {100 * np.mean(1 - risks):.1f} (" in table
    assert f"| {100 * np.mean((1 - risks) ** 10):.1f} (" in table
    assert f"| {100 * (best - risks.mean()):+.1f} (" in table
    common = found.foolable[:30].mean(axis=0).min() - risks[:30].mean()
    assert f"the first 60 of 10,000 test images ({100 * common:+.1f} (" in table
    chosen = 1 - found.pool.best([0.9, 0.1])[0].mean()
    assert f"| α = (0.90, 0.10) | {100 * found.at([0.9, 0.1]).natural.value:.1f} (" in table
    assert f" | {100 * chosen:.1f} (" in table
    # Sampling two members of digits cannot be judged by the rule for CIFAR-10 on 60 of its images.
    assert "73.18 / 41.99" in table
    assert "+3.8 over AT" in table
    assert "interval over seeds and images" in table


def test_measuring_goes_on_block_by_block_and_with_a_further_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {split: digits(split) for split in ("test", "validation")}
    monkeypatch.setattr("randens.data.load", lambda _, split: known[split])
    monkeypatch.setattr(plateau, "VALIDATION", 10)
    monkeypatch.setattr(plateau, "BLOCK", 8)
    counted, choices = Mock(side_effect=randens.evaluate), Mock(side_effect=randens.optimize_sampling)
    monkeypatch.setattr(plateau, "evaluate", counted)
    monkeypatch.setattr(plateau, "optimize_sampling", choices)
    rec = ensemble("linear", "mlp", "linear")
    pair = RandomizedEnsemble(list(rec.members)[:2], threat=THREAT)
    path = tmp_path / "iat-arc-r.json"
    for limit, blocks in ((8, 1), (20, 2), (20, 0)):
        counted.reset_mock()
        measure(pair, "iat", "arc-r", limit, tmp_path, tmp_path / "store")
        assert counted.call_count == blocks
    choices.assert_called_once()
    found = Evaluation.load(path)
    fresh = randens.evaluate(pair, digits("test"), "arc-r", limit=8, also=found.also)
    assert isinstance(fresh, Evaluation)
    assert found.average is not None
    assert fresh.average is not None
    assert (found.n, len(found.average[1])) == (20, 20)
    assert np.array_equal(found.foolable[:8], fresh.foolable)
    assert np.array_equal(found.average[1][:8], fresh.average[1])
    measure(rec, "iat", "arc-r", 20, tmp_path, tmp_path / "store")
    further = Evaluation.load(path)
    assert (further.n, further.members) == (20, 3)
    # The searches for the first two members are counted, and were not made again.
    assert further.cost.backwards > further.now.backwards
    assert "| 3 | " in "\n".join(lines(tmp_path))


def test_the_zoos_entry_is_the_members_with_what_they_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plateau, "FOLDER", tmp_path)
    recipe = 'method = "at"\nepochs = 1\nmodel.name = "linear"\ndata.name = "digits"\nthreat.eps = 0.1\n'
    (tmp_path / "at50.toml").write_text(recipe, encoding="utf-8")
    for seed in (0, 1):
        train(load_recipe(tmp_path / "at50.toml", [f"seed={seed}"]), tmp_path / f"at50-s{seed}")
    pair = RandomizedEnsemble(
        [randens.load(run / "ensemble").members[0] for run in members("iat")], threat=THREAT
    )
    found = evaluate(pair, digits("test").subset(slice(0, 20)), attacks.create("pgd", THREAT))
    for judge in plateau.JUDGES:
        found.save(tmp_path / f"iat-{judge}.json")
    main(["zoo", "--out", str(tmp_path), "--zoo", str(tmp_path / "zoo"), "--commit", "abc"])
    entry = tmp_path / "zoo" / "cifar10-resnet20-iat-m2"
    rec = randens.load(entry / "ensemble")
    found.check(rec)
    assert rec.probs.tolist() == [0.5, 0.5]
    passes = [read_json(run / "training.json")["cost"]["forwards"] for run in members("iat")]
    assert read_json(entry / "training.json")["cost"]["forwards"] == sum(passes)
    assert "sources at commit abc" in (entry / "CARD.md").read_text(encoding="utf-8")


def test_bat_is_judged_by_theorem_1() -> None:
    rec = ensemble("linear", "mlp").with_probs([0.9, 0.1])
    data = digits("test").subset(slice(0, 40))
    found = evaluate(rec, data, attacks.create("pgd", THREAT), also={"uniform": None})
    said = account(found, dataclasses.replace(found))
    first_risk, second = found.member_risks
    assert f"η₁ = {first_risk:.1%}, η₂ = {second:.1%}" in said[0]
    assert ("cannot" in said[1]) == (not randens.risk.two_classifiers(found.profile).helps)
