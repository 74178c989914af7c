"""A report's numbers come from the run's witness store: its sections agree, and no member is asked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.report.made_runs import THREAT, trained_ensemble

import randens
from randens.core.runs import Run
from randens.evaluation import Evaluation
from randens.report import measure, write_report
from randens.report.from_store import from_store, read_run
from randens.report.load import load_run
from randens.witness.store import WitnessStore


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run evaluated by a weak attack, then measured, and attacked by a strong one, all with one store."""
    rec, data = trained_ensemble(members=2, steps=20)
    recipe = {"method": "iat", "data": {"name": "digits"}}
    run = Run.create(tmp_path_factory.mktemp("runs") / "learnt", recipe=recipe, seed=0)
    rec.threat = THREAT
    rec.save(run.ensemble)
    store = WitnessStore(run.path / "witnesses")
    weak = randens.attacks.create("fgsm", THREAT)
    randens.evaluate(rec, data, weak, folder=store).save(run.path / "evaluation.json")
    measure(rec, data, THREAT, attack=("fgsm",), compared=("fgsm",), factors=(0.5, 1.0), folder=store).save(
        run
    )
    randens.attacks.create("saddle", THREAT).survey(rec, data, folder=store)
    return run.path


def asked(*_: object, **__: object) -> None:
    raise AssertionError("a member was asked")


def test_sections_agree_and_no_member_is_asked(learnt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = load_run(learnt)
    with monkeypatch.context() as patched:
        for layer in (torch.nn.Linear, torch.nn.Conv2d):
            patched.setattr(layer, "forward", asked)
        one = read_run(learnt)
        write_report([learnt])
    assert written.evaluation is not None
    assert one.evaluation is not None
    assert one.radii is not None
    assert float(one.evaluation.robust) < float(written.evaluation.robust)
    assert one.radii.radii[1].robust.value == pytest.approx(float(one.evaluation.robust), abs=1e-12)
    for member, accuracy in zip(one.radii.radii[1].members, one.evaluation.member_accuracies, strict=True):
        assert member.value == pytest.approx(accuracy.robust.value, abs=1e-12)
    assert one.evaluation.deterministic is not None
    assert one.radii.radii[1].deterministic is not None
    assert one.radii.radii[1].deterministic.value == pytest.approx(one.evaluation.deterministic.robust.value)
    values = [radius.robust.value for radius in one.radii.radii]
    assert values == sorted(values, reverse=True)
    assert one.evaluation.profile.risk(one.evaluation.probs) == pytest.approx(
        1 - float(one.evaluation.robust)
    )


def test_they_are_the_numbers_of_a_new_evaluation(learnt: Path) -> None:
    one = read_run(learnt)
    assert one.evaluation is not None
    rec, data = randens.load(learnt / "ensemble"), randens.data.load("digits", "test")
    again = randens.evaluate(
        rec,
        data.subset(slice(0, one.evaluation.n)),
        randens.attacks.create("fgsm", THREAT),
        folder=learnt / "witnesses",
    )
    assert again.now.backwards == 0
    assert float(again.robust) == pytest.approx(float(one.evaluation.robust), abs=1e-12)
    assert (again.points.foolable == one.evaluation.points.foolable).all()


def test_without_the_store_the_documents_are_shown(learnt: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(learnt, bare)
    shutil.rmtree(bare / "witnesses")
    written = load_run(bare)
    assert from_store(written) is written
    (bare / "witnesses").mkdir()  # begun anew: what the documents know is kept
    one = read_run(bare)
    assert written.evaluation is not None
    assert one.evaluation is not None
    assert float(one.evaluation.robust) == float(written.evaluation.robust)
    assert one.evaluation.points.sources == written.evaluation.points.sources
    assert one.radii == written.radii


def test_a_store_of_other_members_changes_nothing(learnt: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(learnt, other)
    shutil.rmtree(other / "ensemble")
    rec, _ = trained_ensemble(members=2, steps=5)
    rec.threat = THREAT
    rec.save(other / "ensemble")
    written = load_run(other)
    assert from_store(written) is written
    shutil.rmtree(other / "ensemble")  # nor does an ensemble that is not there
    assert from_store(written) is written
    assert isinstance(written.evaluation, Evaluation)
