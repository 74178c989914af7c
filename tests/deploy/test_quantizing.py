"""Eight bits: what they do to natural and robust accuracy is measured, on the quantised members themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.deploy.conftest import Exported

from randens import RandomizedEnsemble, Threat, attacks, data, models
from randens.core.errors import InputError
from randens.deploy import Bundle, Predictor, quantize
from randens.deploy.quantizing import StraightThrough

THREAT = Threat("linf", 0.1)


@pytest.fixture(scope="module")
def coarse(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return quantize(
        exported.bundle,
        exported.rec,
        tmp_path_factory.mktemp("int8") / "bundle",
        calibration=data.load("digits", "validation"),
        test=data.load("digits", "test").subset(slice(0, 60)),
        attack=[attacks.create("pgd", THREAT, steps=10)],
    )


def test_weights_are_eight_bits_and_answers_nearly_the_same(exported: Exported, coarse: Bundle) -> None:
    assert coarse.precision == "int8"
    assert coarse.probs == exported.bundle.probs
    assert sum(m.size for m in coarse.members) < 0.5 * sum(m.size for m in exported.bundle.members)
    assert any(w.dtype == "int8" for w in coarse.members[0].weights)
    x = data.load("digits", "test").x.numpy()
    fine, rough = Predictor(exported.bundle).logits(x), Predictor(coarse).logits(x)
    assert (fine.argmax(axis=2) == rough.argmax(axis=2)).mean() > 0.95
    assert np.abs(fine - rough).max() > 1e-3  # it is another network
    np.testing.assert_allclose(Predictor(coarse, lean=True).logits(x), rough, atol=1e-4)


def test_accuracies_are_those_of_the_quantised_members(exported: Exported, coarse: Bundle) -> None:
    accuracy = coarse.sign_off["accuracy"]
    part = data.load("digits", "test").subset(slice(0, 60))
    labels = Predictor(coarse).logits(part.x.numpy()).argmax(axis=2)
    natural = float((np.asarray(coarse.probs) @ (labels == part.y.numpy())).mean())
    assert accuracy["int8"]["natural"]["value"] == pytest.approx(natural, abs=1e-9)
    assert accuracy["float32"]["natural"]["value"] == pytest.approx(exported.rec.accuracy(*part[:]), abs=1e-9)
    for precision in ("float32", "int8"):
        robust = accuracy[precision]["robust"]["value"]
        assert robust < accuracy[precision]["natural"]["value"] - 0.1  # the attacks did attack
    assert (accuracy["data"], accuracy["split"], accuracy["inputs"]) == ("digits", "test", 60)
    assert [a["name"] for a in accuracy["attacks"]] == ["pgd", "random"]
    assert coarse.sign_off["calibration"] == {"data": "digits", "split": "validation", "inputs": 180}
    assert "upper bounds" in accuracy["how"]


def test_int8_is_attacked_at_least_as_hard_as_by_transfer(exported: Exported, coarse: Bundle) -> None:
    part = data.load("digits", "test").subset(slice(0, 60))
    rec8 = RandomizedEnsemble([models.onnx(coarse.path / m.file) for m in coarse.members], coarse.probs)
    found = attacks.create("pgd", THREAT, steps=10)(exported.rec, part.x, part.y)
    transfer_only = rec8.accuracy(found.x_adv, part.y)
    assert coarse.sign_off["accuracy"]["int8"]["robust"]["value"] <= transfer_only + 1e-9


def test_straight_through_answers_by_int8_and_differentiates_float32(
    exported: Exported, coarse: Bundle
) -> None:
    twin = exported.rec.members[0]
    exact = models.onnx(coarse.path / coarse.members[0].file)
    member = StraightThrough(exact, twin)
    x = data.load("digits", "test").x[:8].requires_grad_(True)
    z = member(x)
    with torch.no_grad():
        assert torch.equal(z, exact(x))
        assert torch.equal(member(x), z)
        assert not torch.equal(z, twin(x))
    (ours,) = torch.autograd.grad(z[:, 3].sum(), x)
    (theirs,) = torch.autograd.grad(twin(x)[:, 3].sum(), x)
    assert torch.equal(ours, theirs)
    assert float(ours.abs().sum()) > 0


def test_refusals(exported: Exported, coarse: Bundle, tmp_path: Path) -> None:
    test, validation = data.load("digits", "test"), data.load("digits", "validation")
    attack = attacks.create("pgd", THREAT)
    with pytest.raises(InputError, match="calibration is test data"):
        quantize(exported.bundle, exported.rec, tmp_path / "b", calibration=test, test=test, attack=attack)
    with pytest.raises(InputError, match="not the float32 export"):
        quantize(coarse, exported.rec, tmp_path / "b", calibration=validation, test=test, attack=attack)
    other = RandomizedEnsemble([models.create("convnet", classes=10, input_shape=(1, 8, 8), seed=9)])
    with pytest.raises(InputError, match="not the float32 export"):
        quantize(exported.bundle, other, tmp_path / "b", calibration=validation, test=test, attack=attack)
    assert list(tmp_path.iterdir()) == []
