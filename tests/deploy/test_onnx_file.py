"""Tensors found in an ONNX file's bytes are those that the onnx package finds; files that reach others are refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.deploy.planted import linear_bundle, linear_model, random_bundle
from tests.deploy.test_bundle import rewritten

from randens.core.errors import FileError
from randens.core.files import sha256
from randens.deploy import Predictor, layout
from randens.deploy.bundle import MANIFEST
from randens.deploy.onnx_file import initializers

X = np.random.default_rng(3).random((50, 1, 20, 20)).astype(np.float32)


def model(seed: int = 0) -> onnx.ModelProto:
    generator = np.random.default_rng(seed)
    weight, bias = generator.normal(size=(400, 5)), generator.normal(size=5)
    return linear_model(weight.astype(np.float32), bias.astype(np.float32), (1, 20, 20))


def external(tensor: onnx.TensorProto) -> None:
    """Say that the tensor's values are in another file."""
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "weights.bin"


def in_initializer(made: onnx.ModelProto) -> None:
    external(made.graph.initializer[0])


def without_location(made: onnx.ModelProto) -> None:
    entry = made.graph.initializer[0].external_data.add()
    entry.key, entry.value = "location", "weights.bin"


def in_constant(made: onnx.ModelProto) -> None:
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "c")
    external(tensor)
    made.graph.node.append(helper.make_node("Constant", [], ["c"], value=tensor))


def in_branch(made: onnx.ModelProto) -> None:
    inner = model().graph
    external(inner.initializer[1])
    made.graph.node.append(helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner))


def in_function(made: onnx.ModelProto) -> None:
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "c")
    external(tensor)
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor)]
    made.functions.append(helper.make_function("d", "f", [], ["c"], nodes, []))


def in_sparse(made: onnx.ModelProto) -> None:
    sparse = made.graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.zeros(3, np.float32), "c"))
    external(sparse.values)


@pytest.mark.parametrize(
    "hide", [in_initializer, without_location, in_constant, in_branch, in_function, in_sparse]
)
def test_weights_in_other_files_are_refused_wherever_they_are(hide: Any) -> None:
    made = model()
    assert set(initializers(made.SerializeToString())) == {"weight", "bias"}
    hide(made)
    with pytest.raises(FileError, match="another file"):
        initializers(made.SerializeToString())


@pytest.mark.parametrize("lean", [False, True])
def test_a_bundle_with_weights_in_another_file_is_refused(tmp_path: Path, lean: bool) -> None:
    bundle = random_bundle(tmp_path / "b", shape=(1, 20, 20))
    made = onnx.load_from_string(bundle.read(1))
    (bundle.path / "weights.bin").write_bytes(made.graph.initializer[0].raw_data)
    made.graph.initializer[0].ClearField("raw_data")
    in_initializer(made)
    content = made.SerializeToString()
    (bundle.path / "member-01.onnx").write_bytes(content)
    entries = json.loads((bundle.path / MANIFEST).read_text())["members"]
    entries[1].update(sha256=sha256(content), size=len(content), weights=[])
    rewritten(bundle.path, members=entries)
    with pytest.raises(FileError, match=r"member-01\.onnx .* keeps weights in another file"):
        Predictor(bundle.path, lean=lean)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(
    "change",
    [{"offset": 64}, {"dtype": "int32"}, {"shape": [5, 400]}, {"shape": [399, 5]}, {"name": "bias"}],
)
def test_forged_places_of_weights_are_refused(tmp_path: Path, lean: bool, change: dict[str, Any]) -> None:
    bundle = random_bundle(tmp_path / "b", shape=(1, 20, 20))
    entries = json.loads((bundle.path / MANIFEST).read_text())["members"]
    if "offset" in change:
        change = {"offset": entries[0]["weights"][0]["offset"] - change["offset"]}
    entries[0]["weights"][0].update(change)
    rewritten(bundle.path, members=entries)
    with pytest.raises(FileError, match=r"member-00\.onnx does not hold the weight"):
        Predictor(bundle.path, lean=lean)


def test_lean_and_usual_answers_agree(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(2, 400, 5)).astype(np.float32)
    biases = generator.normal(size=(2, 5)).astype(np.float32)
    bundle = linear_bundle(tmp_path / "b", weights, biases, (0.5, 0.5), (1, 20, 20))
    usual, lean = Predictor(bundle).logits(X), Predictor(bundle, lean=True).logits(X)
    np.testing.assert_allclose(usual, lean, atol=1e-4)
    np.testing.assert_allclose(usual[1], X.reshape(50, -1) @ weights[1] + biases[1], atol=1e-3)


@given(
    st.lists(
        st.tuples(st.sampled_from(["float32", "int8", "int64", "float16", "bool"]), st.integers(0, 40)),
        min_size=1,
        max_size=5,
    )
)
def test_the_same_tensors_as_the_onnx_package_finds(kinds: list[tuple[str, int]]) -> None:
    made = model()
    made.graph.initializer.extend(
        numpy_helper.from_array(np.zeros((n, 2), dtype), f"w{i}") for i, (dtype, n) in enumerate(kinds)
    )
    for content in (made.SerializeToString(), layout.encode(made)[0]):
        found = initializers(content)
        again = onnx.load_from_string(content).graph.initializer
        assert list(found) == [t.name for t in again]
        for tensor in again:
            ours = found[tensor.name]
            assert ours.shape == tuple(tensor.dims)
            assert ours.dtype == helper.tensor_dtype_to_np_dtype(tensor.data_type).name
            if ours.offset is not None:
                assert content[ours.offset : ours.offset + ours.size] == tensor.raw_data


def test_two_weights_of_one_name_are_refused() -> None:
    made = model()
    made.graph.initializer.append(made.graph.initializer[0])
    with pytest.raises(FileError, match="two weights called 'weight'"):
        initializers(made.SerializeToString())


@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8), st.floats(0, 1)
)
def test_damaged_files_are_read_or_refused(changes: list[tuple[float, int]], kept: float) -> None:
    content = bytearray(model().SerializeToString()[:600])
    for place, value in changes:
        content[int(place * len(content))] = value
    with contextlib.suppress(FileError):
        initializers(bytes(content[: round(kept * len(content))]))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(FileError):
        initializers(content)


def test_deep_nesting_is_refused() -> None:
    content = b""
    for _ in range(3000):
        for tag in (0x32, 0x2A, 0x0A):  # a graph in an attribute of a node of a graph
            content = bytes([tag]) + layout.varint(len(content)) + content
    with pytest.raises(FileError, match="deep"):
        initializers(b"\x3a" + layout.varint(len(content)) + content)
