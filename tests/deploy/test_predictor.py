"""Predicting from a bundle: right answers, independent draws, any thread, little memory, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray
from tests.deploy.planted import BOX, chi_squared, linear_bundle, random_bundle, telling_bundle

from randens.core.errors import InputError, ModelError
from randens.deploy import Bundle, Predictor

SURELY = 1e-7  # a right implementation fails such a test once in ten million runs


def images(n: int, shape: tuple[int, ...] = (1, 4, 4), seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


@pytest.mark.parametrize("lean", [False, True])
def test_logits_are_those_of_the_members(tmp_path: Path, lean: bool) -> None:
    generator = np.random.default_rng(3)
    weights = generator.normal(size=(3, 400, 5)).astype(np.float32)
    biases = generator.normal(size=(3, 5)).astype(np.float32)
    bundle = linear_bundle(tmp_path / "b", weights, biases, (0.5, 0.3, 0.2), (1, 20, 20))
    assert [w.name for w in bundle.members[0].weights] == ["weight"]
    predictor = Predictor(bundle, lean=lean)
    x = images(600, (1, 20, 20))
    expected = np.einsum("nd,mdc->mnc", x.reshape(600, -1), weights) + biases[:, None]
    found = predictor.logits(x)
    assert found.shape == (3, 600, 5)
    np.testing.assert_allclose(found, expected, atol=2e-4)

    answer = predictor.predict(x)
    np.testing.assert_allclose(answer.logits, expected[answer.members, np.arange(600)], atol=2e-4)
    assert answer.labels.tolist() == answer.logits.argmax(axis=1).tolist()
    assert set(answer.members.tolist()) == {0, 1, 2}
    assert answer.part(10, 12).labels.tolist() == answer.labels[10:12].tolist()


def test_one_input_and_none(tmp_path: Path) -> None:
    predictor = Predictor(random_bundle(tmp_path / "b"))
    x = images(1)
    answer = predictor.predict(x)
    np.testing.assert_array_equal(answer.logits, predictor.logits(x)[answer.members, 0])
    empty = predictor.predict(x[:0])
    assert len(empty) == 0
    assert empty.logits.shape == (0, 5)


def test_draws_follow_the_probabilities_and_skip_zeros(tmp_path: Path) -> None:
    probs = (0.0, 0.45, 0.3, 0.2, 0.05, 0.0)
    predictor = Predictor(telling_bundle(tmp_path / "b", probs))
    n = 20_000
    labels = predictor.predict(np.zeros((n, 1, 2, 2), dtype=np.float32)).labels
    counts = np.bincount(labels, minlength=6)
    assert counts[0] == counts[5] == 0
    assert chi_squared(counts[1:5].tolist(), probs[1:5]) > SURELY


def test_a_cumulative_sum_below_one_never_draws_beyond_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor(telling_bundle(tmp_path / "b", (0.1,) * 9 + (0.0999999,)))
    monkeypatch.setattr("randens.deploy.predictor._random_bytes", lambda n: b"\xff" * n)
    assert predictor.draw(3).tolist() == [9, 9, 9]
    assert predictor.draw(1).tolist() == [9]
    monkeypatch.setattr("randens.deploy.predictor._random_bytes", lambda n: b"\x00" * n)
    assert predictor.draw(3).tolist() == [0, 0, 0]


def test_one_draw_follows_the_rule_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(telling_bundle(tmp_path / "b", (0.25, 0.0, 0.5, 0.25)))
    words = np.random.default_rng(0).integers(0, 2**64, 200, dtype=np.uint64)
    # Just below, at and just above the first step, and both ends.
    quarter = 1 << 62
    edges = np.array([quarter - 2048, quarter, quarter + 2048, 0, 2**64 - 1], dtype=np.uint64)
    words = np.concatenate([words, edges])
    monkeypatch.setattr("randens.deploy.predictor._random_bytes", lambda n: words.tobytes()[:n])
    many = predictor.draw(len(words)).tolist()
    single = []
    for word in words:
        one = word.tobytes()
        monkeypatch.setattr("randens.deploy.predictor._random_bytes", lambda n, one=one: one[:n])
        single += predictor.draw(1).tolist()
    assert single == many
    assert set(many) == {0, 2, 3}
    assert many[-5:] == [0, 2, 2, 0, 3]


def test_draws_of_neighbours_are_independent(tmp_path: Path) -> None:
    predictor = Predictor(telling_bundle(tmp_path / "b", (0.6, 0.3, 0.1)))
    drawn = predictor.draw(40_000).reshape(-1, 2)
    table = np.zeros((3, 3))
    np.add.at(table, (drawn[:, 0], drawn[:, 1]), 1)
    assert scipy.stats.chi2_contingency(table).pvalue > SURELY


def test_seeds_of_the_process_do_not_decide_draws(tmp_path: Path) -> None:
    predictor = Predictor(telling_bundle(tmp_path / "b", (0.5, 0.5)))
    drawn = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 - the very thing that must not matter
        drawn.append(predictor.draw(128).tolist())
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("lean", [False, True])
def test_threads_do_not_disturb_each_other(tmp_path: Path, lean: bool) -> None:
    predictor = Predictor(random_bundle(tmp_path / "b", shape=(1, 20, 20)), lean=lean)
    everything = [images(8, (1, 20, 20), seed) for seed in range(8)]
    expected = [predictor.logits(x) for x in everything]

    def work(job: int) -> bool:
        x, known = everything[job % 8], expected[job % 8]
        answer = predictor.predict(x)
        return bool(np.allclose(answer.logits, known[answer.members, np.arange(8)], atol=1e-5))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(400)))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros((2, 1, 4, 5), np.float32), r"shape \[2, 1, 4, 5\]"),
        (np.zeros((1, 4, 4), np.float32), r"shape \[1, 4, 4\]"),
        (np.float32(0.5), r"shape \[\]"),
        (np.full((1, 1, 4, 4), np.nan, np.float32), "NaN"),
        (np.full((1, 1, 4, 4), np.inf), "infinite"),
        (np.full((1, 1, 4, 4), 1e300), "infinite"),
        (np.full((1, 1, 4, 4), 1.5), r"\[1.5, 1.5\]"),
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


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_threads_must_be_a_whole_number(tmp_path: Path, threads: int) -> None:
    with pytest.raises(InputError, match="threads"):
        Predictor(random_bundle(tmp_path / "b"), threads=threads)


def test_logits_that_overflow_are_an_error_and_not_an_answer(tmp_path: Path) -> None:
    weights = np.full((1, 4, 2), 1e30, dtype=np.float32)
    bundle = linear_bundle(tmp_path / "b", weights, np.zeros((1, 2), np.float32), (1.0,), (4,), threat=None)
    x = np.zeros((3, 4), dtype=np.float32)
    x[1] = 1e30
    with pytest.raises(ModelError, match="input 1 "):
        Predictor(bundle).predict(x)
    with pytest.raises(ModelError, match="input 0 "):
        Predictor(bundle).predict(x[1:2])


def test_one_input_gets_the_answer_it_gets_among_others(tmp_path: Path) -> None:
    predictor = Predictor(random_bundle(tmp_path / "b"))
    x = images(16, (1, 4, 4), 0)
    known = predictor.logits(x)
    for row in range(16):
        answer = predictor.predict(x[row : row + 1])
        assert answer.labels.dtype == answer.members.dtype == np.int64
        np.testing.assert_allclose(answer.logits[0], known[answer.members[0], row], atol=1e-5)
        assert answer.labels.tolist() == [int(answer.logits[0].argmax())]


def test_the_byte_order_of_inputs_does_not_matter(tmp_path: Path) -> None:
    predictor = Predictor(random_bundle(tmp_path / "b"))
    x = images(3, (1, 4, 4), 0)
    swapped = x.astype(x.dtype.newbyteorder())
    np.testing.assert_array_equal(predictor.logits(swapped), predictor.logits(x))
    with pytest.raises(InputError, match="valid inputs lie in"):
        predictor.check(swapped + 1)


@pytest.mark.parametrize("high", [1.0, 0.1, 255.0])
def test_bounds_are_inclusive_to_the_last_bit(tmp_path: Path, high: float) -> None:
    threat = BOX | {"bounds": [0.0, high]}
    weights = np.ones((1, 4, 2), np.float32)
    bundle = linear_bundle(tmp_path / "b", weights, np.zeros((1, 2), np.float32), (1.0,), (4,), threat=threat)
    predictor = Predictor(bundle)
    inside = np.float32(high) if float(np.float32(high)) <= high else np.nextafter(np.float32(high), 0)
    for value in (0.0, -0.0, 1e-45, inside):
        predictor.check(np.full((1, 4), value, np.float32))
    for value in (-1e-45, np.nextafter(inside, np.float32(np.inf))):
        with pytest.raises(InputError, match="valid inputs lie in"):
            predictor.check(np.array([[0.0, value, 0.0, 0.0]], np.float32))


_LEAN = """
import json, sys
import numpy as np
from randens.deploy import Predictor
def memory():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {k: int(lines[k].split()[0]) * 1024 for k in ("RssAnon", "RssFile")}
start = memory()
predictor = Predictor(sys.argv[1], lean=sys.argv[2] == "lean")
loaded = memory()
x = np.zeros((1, 1, 32, 32), dtype=np.float32)
found = []
for _ in range(12):
    member = int(predictor.predict(x).members[0])
    found.append(memory())
everyone = predictor.predict(np.zeros((256, 1, 32, 32), dtype=np.float32))
drawn = memory()
print(json.dumps({"start": start, "loaded": loaded, "one": found, "all": drawn}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_lean_keeps_only_drawn_members_in_memory(tmp_path: Path) -> None:
    members, size = 5, 1024 * 2000 * 4
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(members, 1024, 2000)).astype(np.float32)
    biases = np.zeros((members, 2000), dtype=np.float32)
    bundle = linear_bundle(tmp_path / "b", weights, biases, [1 / members] * members, (1, 32, 32))

    def measured(mode: str) -> dict[str, Any]:
        run = subprocess.run(
            [sys.executable, "-c", _LEAN, str(bundle.path), mode], capture_output=True, text=True, check=True
        )
        result = json.loads(run.stdout)
        assert isinstance(result, dict)
        return result

    lean, usual = measured("lean"), measured("usual")
    saved = usual["loaded"]["RssAnon"] - lean["loaded"]["RssAnon"]
    assert saved > 0.9 * members * size
    assert lean["loaded"]["RssFile"] < usual["loaded"]["RssFile"] + size
    base = lean["loaded"]["RssFile"]
    singles = [m["RssFile"] - base for m in lean["one"]]
    # One member's pages at a time, independent of earlier draws; all of them after a batch that draws all.
    assert max(singles) < 1.7 * size
    assert lean["all"]["RssFile"] - base > 0.9 * members * size


def test_no_torch_is_needed(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "b")
    program = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "onnx", "onnxscript", "scipy", "sklearn", "safetensors", "lightning_fabric"}:
            raise ImportError(f"{name} must not be needed")
sys.meta_path.insert(0, NoTorch())
import randens.deploy, numpy
predictor = randens.deploy.Predictor(sys.argv[1])
print(predictor.predict(numpy.zeros((4, 1, 4, 4), numpy.float32)).labels.tolist())
from randens.deploy.server import create_app
create_app(predictor)
assert "torch" not in sys.modules
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(bundle.path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    possible = Predictor(bundle).logits(np.zeros((1, 1, 4, 4), np.float32)).argmax(axis=2)[:, 0].tolist()
    assert set(json.loads(run.stdout)) <= set(possible)


def test_without_onnx_runtime_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = random_bundle(tmp_path / "b")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="pip install onnxruntime"):
        Predictor(bundle)


def test_a_bundle_object_is_taken_too(tmp_path: Path) -> None:
    bundle = random_bundle(tmp_path / "b")
    assert len(Predictor(Bundle.open(bundle.path))) == len(Predictor(bundle.path)) == 3
