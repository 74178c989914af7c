"""ONNX files whose large weights start at multiples of 64 bytes, so that they can be mapped instead of read.

A protocol buffer is a list of fields in any order, so a comment (`doc_string`) of the right length can
precede a weight's bytes. The files are plain ONNX, and every reader sees the same model.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from randens.core.errors import FileError, InputError
from randens.core.files import sha256, write_atomic
from randens.core.runs import versions
from randens.deploy.bundle import Average, Bundle, MemberFile, Weight

__all__ = ["encode", "store", "varint"]

_ALIGNMENT = 64
_MAPPED = 1024  # bytes; smaller weights are not mapped
_LARGEST = 2**31 - 1
# Tags of the fields written by hand: number << 3 | 2 (length-delimited).
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW, _TENSOR_DOC = 0x3A, 0x2A, 0x4A, 0x62


def store(
    path: str | os.PathLike[str],
    members: Sequence[onnx.ModelProto],
    *,
    probs: Sequence[float],
    classes: Sequence[str],
    input_shape: Sequence[int],
    threat: Mapping[str, Any] | None,
    precision: str,
    ensemble: str,
    sign_off: Mapping[str, Any] | None = None,
    averages: Sequence[Average] = (),
) -> Bundle:
    """Write members and manifest into `path`, which must not exist."""
    folder = Path(path)
    if folder.exists():
        raise FileError(f"{folder} exists already; choose another folder or remove it first")
    opsets = {
        entry.version for model in members for entry in model.opset_import if entry.domain in ("", "ai.onnx")
    }
    if len(opsets) != 1:
        raise InputError(f"members have the opsets {sorted(opsets)}; they must share one")
    files = []
    try:
        for index, model in enumerate(members):
            content, weights = encode(model)
            name = f"member-{index:02d}.onnx"
            write_atomic(folder / name, content)
            files.append(MemberFile(file=name, sha256=sha256(content), size=len(content), weights=weights))
        bundle = Bundle(
            path=folder,
            probs=tuple(float(p) for p in probs),
            classes=tuple(str(c) for c in classes),
            input_shape=tuple(int(s) for s in input_shape),
            threat=threat,
            precision=precision,
            opset=opsets.pop(),
            members=tuple(files),
            ensemble=ensemble,
            sign_off=sign_off or {},
            averages=tuple(averages),
            versions={**versions(), "onnx": onnx.__version__, "onnxruntime": metadata.version("onnxruntime")},
        )
        bundle.write()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return bundle


def encode(model: onnx.ModelProto) -> tuple[bytes, tuple[Weight, ...]]:
    """The file's bytes, and where in them the large weights lie."""
    shell, graph = onnx.ModelProto(), onnx.GraphProto()
    shell.CopyFrom(model)
    shell.ClearField("graph")
    graph.CopyFrom(model.graph)
    graph.ClearField("initializer")
    tensors = [_raw(tensor) for tensor in model.graph.initializer]
    if sum(len(tensor.raw_data) for tensor in tensors) > _LARGEST // 2:
        raise InputError("a member is larger than 1 GB; ONNX files end at 2 GB, so it cannot be exported")
    head, body = shell.SerializeToString(), graph.SerializeToString()
    # Where the graph begins depends on how many bytes its length takes, and its length on the padding inside.
    for width in range(1, 6):
        parts, weights = [body], []
        position = len(head) + 1 + width + len(body)
        for tensor in tensors:
            field, start = _field(tensor, position)
            if len(tensor.raw_data) >= _MAPPED:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name
                place, shape = position + start, tuple(tensor.dims)
                weights.append(Weight(name=tensor.name, offset=place, dtype=dtype, shape=shape))
            parts.append(field)
            position += len(field)
        whole = b"".join(parts)
        length = varint(len(whole))
        if len(length) == width:
            return head + bytes([_MODEL_GRAPH]) + length + whole, tuple(weights)
    raise InputError("a member is larger than 2 GB; it cannot be exported")


def _raw(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return the tensor with its values as little-endian bytes."""
    if tensor.HasField("raw_data") and math.prod(tensor.dims):
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name)


def _field(tensor: onnx.TensorProto, position: int) -> tuple[bytes, int]:
    """An initializer as a field that will begin at `position`, and where in it the values begin."""
    bare = onnx.TensorProto()
    bare.CopyFrom(tensor)
    bare.ClearField("raw_data")
    bare.ClearField("doc_string")
    values = bytes([_TENSOR_RAW]) + varint(len(tensor.raw_data))
    rest = bare.SerializeToString() + values
    padding = b""
    # A comment takes a tag and a length, and the field's own length may grow with it: hence the search.
    for size in (0, *range(2, 2 * _ALIGNMENT + 4)):
        padding = b"" if size == 0 else bytes([_TENSOR_DOC]) + varint(size - 2) + b" " * (size - 2)
        content = padding + rest
        head = bytes([_GRAPH_INITIALIZER]) + varint(len(content) + len(tensor.raw_data))
        start = len(head) + len(content)
        if len(tensor.raw_data) < _MAPPED or (position + start) % _ALIGNMENT == 0:
            return head + content + tensor.raw_data, start
    raise AssertionError("one of 64 consecutive paddings always aligns")


def varint(value: int) -> bytes:
    """A whole number as protocol buffers write it: seven bits a byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
