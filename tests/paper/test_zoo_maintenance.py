"""Maintenance of the zoo: what goes in comes out, and nothing of the machine goes in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training.small_runs import small

import randens
from paper import zoo_maintenance as zoo
from randens import attacks, data, evaluation, training
from randens.core.errors import FileError, InputError

RADIUS = {"norm": "linf", "eps": 0.1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BARRE on digits whose first member comes from another run, evaluated on 40 test images."""
    folder = tmp_path_factory.mktemp("runs")
    training.train(small(threat=RADIUS), folder / "at")
    changes = {"method": "barre", "members": 2, "first": str(folder / "at")}
    rec = training.train(small(threat=RADIUS, **changes), folder / "barre")
    assert rec.threat is not None
    images = data.load("digits", "test").subset(slice(0, 40))
    evaluation.evaluate(rec, images, attacks.create("pgd", rec.threat, steps=3)).save(
        folder / "barre" / "evaluation.json"
    )
    return folder / "barre"


def test_what_goes_in_comes_out(run: Path, tmp_path: Path) -> None:
    place = zoo.add(run, "digits-barre", tmp_path, commit="abc")
    before, after = randens.load(run / "ensemble"), randens.load(place / "ensemble")
    assert torch.equal(before.probs, after.probs)
    for one, two in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not (place / "checkpoints").exists()
    text = (place / "CARD.md").read_text(encoding="utf-8")
    assert f"{100 * zoo.evaluations(place)['evaluation'].robust:.1f} %" in text
    manifest = (place / "manifest.json").read_text(encoding="utf-8")
    assert str(run.parent) not in manifest
    assert randens.Run.open(place).manifest["recipe"]["first"] == "at"
    # Adding again replaces, and leaves nothing behind.
    zoo.add(run, "digits-barre", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["digits-barre"]


def test_what_does_not_belong_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not a finished training run"):
        zoo.add(randens.Run.create(tmp_path / "unfinished").path, "foreign", tmp_path)
    other = run.parent / "at"
    (other / "evaluation.json").write_bytes((run / "evaluation.json").read_bytes())
    with pytest.raises(InputError, match="other members"):
        zoo.add(other, "mixed", tmp_path)
