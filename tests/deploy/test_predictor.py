"""Predict from a bundle: right answers, independent draws, any thread, no torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.deploy.planted import chi_squared, linear_bundle, random_bundle, telling_bundle
from tests.test_without_torch import without

from randens.core.errors import InputError
from randens.deploy import Predictor


def images(n: int, shape: tuple[int, ...] = (1, 4, 4), seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


def test_logits_are_those_of_the_members(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    weights = generator.normal(size=(3, 400, 5)).astype(np.float32)
    biases = generator.normal(size=(3, 5)).astype(np.float32)
    bundle = linear_bundle(tmp_path / "b", weights, biases, (0.5, 0.3, 0.2), (1, 20, 20))
    predictor = Predictor(bundle)
    x = images(200, (1, 20, 20))
    expected = np.einsum("nd,mdc->mnc", x.reshape(200, -1), weights) + biases[:, None]
    np.testing.assert_allclose(predictor.logits(x), expected, atol=2e-4)
    answer = predictor.predict(x)
    np.testing.assert_allclose(answer.logits, expected[answer.members, np.arange(200)], atol=2e-4)
    assert answer.labels.tolist() == answer.logits.argmax(axis=1).tolist()
    assert set(answer.members.tolist()) == {0, 1, 2}
    assert predictor.predict(x, member=1).members.tolist() == [1] * 200
    empty = predictor.predict(x[:0])
    assert len(empty) == 0
    assert empty.logits.shape == (0, 5)


def test_every_input_is_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So time does not tell which inputs shared a member."""
    predictor = Predictor(telling_bundle(tmp_path / "b", (0.5, 0.5)))
    sizes: list[int] = []
    run = predictor._run

    def watched(member: int, x: NDArray[np.float32]) -> NDArray[np.float32]:
        sizes.append(len(x))
        return run(member, x)

    monkeypatch.setattr(predictor, "_run", watched)
    predictor.predict(images(50, (1, 2, 2)))
    assert sizes == [1] * 50


def test_draws_follow_the_probabilities_and_skip_zeros(tmp_path: Path) -> None:
    probs = (0.0, 0.45, 0.3, 0.2, 0.05, 0.0)
    predictor = Predictor(telling_bundle(tmp_path / "b", probs))
    labels = predictor.predict(np.zeros((10_000, 1, 2, 2), dtype=np.float32)).labels
    counts = np.bincount(labels, minlength=6)
    assert counts[0] == counts[5] == 0
    # The cumulative sum may end just below 1.
    assert predictor.members_at(np.array([0, 2**64 - 1], dtype=np.uint64)).tolist() == [1, 4]
    assert chi_squared(counts[1:5].tolist(), probs[1:5]) > 1e-7


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros((2, 1, 4, 5), np.float32), r"shape \[2, 1, 4, 5\]"),
        (np.full((1, 1, 4, 4), np.nan, np.float32), "NaN"),
        (np.full((1, 1, 4, 4), 1e300), "infinite"),
        (np.full((1, 1, 4, 4), -0.01), "valid inputs lie in"),
        (np.zeros((1, 1, 4, 4), np.uint8), "uint8"),
        ([["a"]], "dtype"),
        ([[1.0], [1.0, 2.0]], "not an array"),
    ],
)
def test_bad_inputs_are_refused_with_the_reason(tmp_path: Path, x: object, reason: str) -> None:
    predictor = Predictor(random_bundle(tmp_path / "b"))
    with pytest.raises(InputError, match=reason):
        predictor.predict(x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threads"):
        Predictor(predictor.bundle, threads=0)


def test_no_torch_is_needed(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "b")
    code = """
import numpy, randens.deploy
from randens.deploy.server import create_app
predictor = randens.deploy.Predictor(sys.argv[1])
create_app(predictor)
print(predictor.predict(numpy.zeros((4, 1, 4, 4), numpy.float32)).labels.tolist())
"""
    unneeded = {"torch", "onnx", "onnxscript", "scipy", "sklearn", "safetensors", "lightning_fabric"}
    done = without(unneeded, code, str(bundle.path))
    assert done.returncode == 0, done.stderr
    possible = Predictor(bundle).logits(np.zeros((1, 1, 4, 4), np.float32)).argmax(axis=2)[:, 0].tolist()
    assert set(json.loads(done.stdout)) <= set(possible)
