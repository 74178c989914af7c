"""Bundles on disk: whole, or refused with the file's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tests.deploy.planted import random_bundle

from randens.core.errors import FileError
from randens.core.files import sha256
from randens.deploy import Bundle, Predictor, layout
from randens.deploy.bundle import MANIFEST


def rewritten(folder: Path, **changes: Any) -> None:
    """Alter a manifest and make its checksum fit again: a forged file whose checksum is right."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest.pop("checksum")
    manifest.update(changes)
    manifest["checksum"] = sha256(json.dumps(manifest, sort_keys=True, ensure_ascii=True).encode())
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = random_bundle(tmp_path / "bundle")
    again = Bundle.open(tmp_path / "bundle", expect=made.checksum)
    assert again == made
    assert again.checksum == made.checksum
    assert again.probs == (0.5, 0.3, 0.2)
    assert again.bounds == (0.0, 1.0)
    assert again.opset == 20
    assert again.versions["onnxruntime"]
    assert sorted(p.name for p in (tmp_path / "bundle").iterdir()) == [
        MANIFEST,
        "member-00.onnx",
        "member-01.onnx",
        "member-02.onnx",
    ]


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "empty", "longer"])
def test_damaged_members_are_refused(tmp_path: Path, damage: str, lean: bool) -> None:
    bundle = random_bundle(tmp_path / "bundle")
    file = tmp_path / "bundle" / "member-01.onnx"
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        changed = {
            "truncated": bytes(content[:-7]),
            "altered": bytes(content),
            "empty": b"",
            "longer": bytes(content + b"0"),
        }
        file.write_bytes(changed[damage])
    with pytest.raises(FileError, match=r"member-01\.onnx"):
        Predictor(bundle, lean=lean)


@pytest.mark.parametrize("place", [0, 100, -3])
def test_altered_manifests_are_refused(tmp_path: Path, place: int) -> None:
    random_bundle(tmp_path / "bundle")
    file = tmp_path / "bundle" / MANIFEST
    content = bytearray(file.read_bytes())
    content[place] = ord("9") if content[place] != ord("9") else ord("8")
    file.write_bytes(content)
    with pytest.raises(FileError, match=MANIFEST):
        Predictor(tmp_path / "bundle")


def test_another_bundle_than_the_expected_one_is_refused(tmp_path: Path) -> None:
    first = random_bundle(tmp_path / "first")
    second = random_bundle(tmp_path / "second", seed=1)
    assert first.checksum != second.checksum
    Predictor(first, expect=first.checksum.upper() + "\n")
    with pytest.raises(FileError, match=second.checksum):
        Predictor(second, expect=first.checksum)


@pytest.mark.parametrize(
    "changes",
    [
        {"probs": [0.5, 0.5]},
        {"probs": [0.5, 0.6, -0.1]},
        {"probs": [0.5, 0.5, "x"]},
        {"probs": None},
        {"classes": ["one"]},
        {"classes": 3},
        {"input_shape": []},
        {"input_shape": [0, 4, 4]},
        {"input_shape": [1, 4, 5]},
        {"precision": "float7"},
        {"members": []},
        {"members": [{"file": "../../etc/passwd", "sha256": "0" * 64, "size": 1, "weights": []}] * 3},
        {"members": [{"file": "member-00.onnx"}] * 3},
        {"threat": {"norm": "linf"}},
        {"threat": {"norm": "linf", "eps": 1, "bounds": [0]}},
        {"versions": []},
        {"format": "something else"},
    ],
)
def test_manifests_that_make_no_sense_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    random_bundle(tmp_path / "bundle")
    rewritten(tmp_path / "bundle", **changes)
    with pytest.raises(FileError, match="bundle"):
        Predictor(tmp_path / "bundle")


@pytest.mark.parametrize("lean", [False, True])
def test_a_weight_outside_its_file_is_refused(tmp_path: Path, lean: bool) -> None:
    bundle = random_bundle(tmp_path / "bundle", shape=(1, 20, 20))
    manifest = json.loads((bundle.path / MANIFEST).read_text())
    manifest["members"][0]["weights"][0]["offset"] = bundle.members[0].size - 8
    rewritten(bundle.path, members=manifest["members"])
    with pytest.raises(FileError, match="outside its file"):
        Predictor(bundle.path, lean=lean)


def test_a_bundle_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not a folder"):
        Predictor(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=MANIFEST):
        Predictor(tmp_path / "empty")
    bundle = random_bundle(tmp_path / "bundle")
    file = tmp_path / "bundle" / "member-00.onnx"
    file.write_bytes(b"this is text")
    entries = json.loads((tmp_path / "bundle" / MANIFEST).read_text())["members"]
    entries[0].update(sha256=sha256(b"this is text"), size=12, weights=[])
    rewritten(tmp_path / "bundle", members=entries)
    with pytest.raises(FileError, match=r"member-00\.onnx is not an ONNX file"):
        Predictor(bundle.path)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    random_bundle(tmp_path / "bundle")
    with pytest.raises(FileError, match="exists already"):
        random_bundle(tmp_path / "bundle")


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.integers(1, 300))
def test_encoded_models_are_the_same_models_with_aligned_weights(sizes: list[int], name: int) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"{'w' * name}{i}": generator.normal(size=n).astype(np.float32) for i, n in enumerate(sizes)}
    graph = helper.make_graph(
        [helper.make_node("Identity", [next(iter(arrays))], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [sizes[0]])],
        # The other form in which ONNX keeps values.
        [
            helper.make_tensor(key, onnx.TensorProto.FLOAT, [len(a)], a.tolist())
            if i % 2
            else numpy_helper.from_array(a, key)
            for i, (key, a) in enumerate(arrays.items())
        ],
    )
    model = helper.make_model(graph)
    content, weights = layout.encode(model)
    again = onnx.load_from_string(content)
    assert {t.name: numpy_helper.to_array(t).tolist() for t in again.graph.initializer} == {
        key: a.tolist() for key, a in arrays.items()
    }
    assert again.graph.node == model.graph.node
    assert again.opset_import == model.opset_import
    assert [w.name for w in weights] == [key for key, a in arrays.items() if a.nbytes >= 1024]
    for weight in weights:
        assert weight.offset % 64 == 0
        found = np.frombuffer(content, weight.dtype, int(np.prod(weight.shape)), weight.offset)
        assert found.tolist() == arrays[weight.name].tolist()
