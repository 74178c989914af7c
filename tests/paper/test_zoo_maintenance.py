"""Maintenance of the zoo: what goes in comes out, nothing of the machine goes in, the page is made from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from paper.results_page import best_ensembles, results
from tests.training.small_runs import small

import randens
from paper import zoo_maintenance as zoo
from randens import attacks, data, evaluation, training
from randens.core.errors import FileError, InputError

RADIUS = {"norm": "linf", "eps": 0.1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AT and BARRE on digits, evaluated on the same 40 test images."""
    folder = tmp_path_factory.mktemp("runs")
    images = data.load("digits", "test").subset(slice(0, 40))
    for name, changes in {"at": {}, "barre": {"method": "barre", "members": 2}}.items():
        rec = training.train(small(threat=RADIUS, **changes), folder / name)
        assert rec.threat is not None
        attack = attacks.create("pgd", rec.threat, steps=3)
        evaluation.evaluate(rec, images, attack).save(folder / name / "evaluation.json")
    return folder


@pytest.fixture
def filled(tmp_path: Path, runs: Path) -> Path:
    """A zoo with both."""
    place = tmp_path / "zoo"
    place.mkdir()
    for name in ("at", "barre"):
        zoo.add(runs / name, f"digits-{name}", place, commit="abc")
    return place


def test_what_goes_in_comes_out(filled: Path, runs: Path) -> None:
    assert zoo.names(filled) == ("digits-at", "digits-barre")
    kept = zoo.entry("digits-barre", filled)
    before, after = randens.load(runs / "barre" / "ensemble"), kept.load()
    assert torch.equal(before.probs, after.probs)
    for one, two in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not (kept.run.path / "checkpoints").exists()
    text = (kept.run.path / "CARD.md").read_text(encoding="utf-8")
    assert f"{100 * kept.evaluations['evaluation'].robust:.1f} %" in text
    # Adding again replaces, and leaves nothing behind.
    again = zoo.add(runs / "barre", "digits-at", filled, members=False)
    assert not again.ships
    assert sorted(path.name for path in filled.iterdir()) == ["digits-at", "digits-barre"]
    with pytest.raises(InputError, match="Bad Name"):
        zoo.add(runs / "at", "Bad Name", filled)
    with pytest.raises(FileError, match="not a finished training run"):
        zoo.add(randens.Run.create(filled / "unfinished").path, "foreign", filled)


def test_paths_of_the_machine_stay_outside(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    zoo_folder = tmp_path / "zoo"
    zoo_folder.mkdir()
    training.train(small(threat=RADIUS, method="barre", members=2, first=str(runs / "at")), run)
    zoo.add(run, "shared-first", zoo_folder)
    assert str(runs) not in (zoo_folder / "shared-first" / "manifest.json").read_text(encoding="utf-8")
    assert zoo.entry("shared-first", zoo_folder).recipe["first"] == "at"


def test_an_evaluation_of_other_members_is_refused(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    training.train(small(threat=RADIUS, seed=5), run)
    (run / "evaluation.json").write_bytes((runs / "at" / "evaluation.json").read_bytes())
    with pytest.raises(InputError, match="other members"):
        zoo.add(run, "mixed", tmp_path)


def test_the_zoos_page_names_the_best_ensembles() -> None:
    said = best_ensembles([zoo.entry(name) for name in zoo.names()])
    page = " ".join((zoo.ZOO.parent / "docs" / "zoo.md").read_text(encoding="utf-8").split())
    assert len(said) == 2
    for sentence in said:
        assert sentence in page


def test_results_compare_image_by_image(filled: Path) -> None:
    page = results(filled)
    one, two = (zoo.entry(f"digits-{name}", filled).evaluations["evaluation"] for name in ("barre", "at"))
    gain = 100 * float(np.mean(two.risk - one.risk))
    assert f"| BARRE | {gain:+.1f} (" in page
    assert one.deterministic is not None
    averaged = 100 * (one.deterministic.robust.value - two.robust)
    (row,) = [
        line
        for line in page.splitlines()
        if line.startswith("| BARRE, mean of all logits | ") and " to " in line
    ]
    assert f" {averaged:+.1f} (" in row
    assert f"{sum(one.flops) / two.flops[0]:.2f} times the FLOPs" in row
    best = max(a.robust.value for a in one.member_accuracies)
    drawn = f"drawing at random is worth {100 * (one.robust - best):+.1f} points"
    assert (drawn in page) == (one.probs.max() < 1)
    assert ("nothing is drawn" in page) == (one.probs.max() == 1)
    # Nothing else took as many passes as BARRE did.
    assert "the same number of training passes" not in page
    goal = 100 * (0.65 - two.natural)
    verdict = f"missed by {goal:.1f} points" if goal > 0 else "met"
    assert f"AT, natural accuracy: {100 * two.natural:.1f}, wanted at least 65: {verdict}" in page
