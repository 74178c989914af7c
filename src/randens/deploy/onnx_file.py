"""Read the tensors of an ONNX file and their offsets from its bytes, without the onnx package.

An ONNX file may keep its weights in other files. Such a file is refused, because its checksum would not cover
those weights. Only the fields that lead to tensors are followed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

from randens.core.errors import FileError

__all__ = ["Content", "Tensor", "initializers"]

Content = bytes | bytearray | mmap.mmap

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Message types and those of their fields that lead to tensors, by the numbers of onnx.proto.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_DIMS, _TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
# TensorProto.DataType; 8 is text.
_DTYPES = dict(enumerate(("float32", "uint8", "int8", "uint16", "int16", "int32", "int64"), 1))
_DTYPES |= dict(enumerate(("bool", "float16", "float64", "uint32", "uint64"), 9))
_DEEPEST = 32
_MOST_FIELDS = 2_000_000


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file: `size` bytes of type `dtype` from byte `offset` on (None if it has no raw bytes)."""

    name: str
    dtype: str | None
    shape: tuple[int, ...]
    offset: int | None
    size: int


def initializers(content: Content) -> dict[str, Tensor]:
    """The graph's initializers by name; a file that is damaged or refers to other files is refused."""
    return _File(content).initializers()


class _File:
    def __init__(self, content: Content) -> None:
        self._content = content
        self._fields = 0

    def initializers(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for path, tensor in self._tensors("model", 0, len(self._content), ()):
            if path == ("model", "graph"):
                if tensor.name in found:
                    raise FileError(f"it holds two weights called {tensor.name[:80]!r}")
                found[tensor.name] = tensor
        return found

    def _tensors(
        self, kind: str, start: int, end: int, above: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        path = (*above, kind)
        if len(path) > _DEEPEST:
            raise FileError(f"its graphs are nested more than {_DEEPEST} deep")
        for number, wire, first, last in self._walk(start, end):
            inner = _INSIDE[kind].get(number)
            if inner is None:
                continue
            if wire != _BYTES:
                raise FileError("a field of it has another type than ONNX gives it")
            if inner == "tensor":
                yield path, self._tensor(first, last)
            else:
                yield from self._tensors(inner, first, last, path)

    def _tensor(self, start: int, end: int) -> Tensor:
        name, code, shape, offset, size = "", 0, [], None, 0
        for number, wire, first, last in self._walk(start, end):
            if number == _EXTERNAL or (number == _LOCATION and self._varint(first, last)[0] != 0):
                raise FileError("it keeps weights in another file, which its checksum does not cover")
            if number == _DIMS:
                while first < last:
                    value, first = self._varint(first, last)
                    shape.append(value)
            elif number == _TYPE and wire == _VARINT:
                code = self._varint(first, last)[0]
            elif number == _NAME and wire == _BYTES:
                name = bytes(self._content[first:last]).decode("utf-8", "replace")
            elif number == _RAW and wire == _BYTES:
                offset, size = first, last - first
        return Tensor(name, _DTYPES.get(code), tuple(shape), offset, size)

    def _walk(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Fields of a message: number, wire type, and where the content begins and ends."""
        position = start
        while position < end:
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise FileError(f"it has more than {_MOST_FIELDS} fields")
            tag, position = self._varint(position, end)
            wire = tag & 7
            if wire == _VARINT:
                last = self._varint(position, end)[1]
            elif wire == _BYTES:
                length, position = self._varint(position, end)
                last = position + length
            elif wire in (_FIXED64, _FIXED32):
                last = position + (8 if wire == _FIXED64 else 4)
            else:
                raise FileError("it is not a protocol buffer")
            if last > end:
                raise FileError("a field of it reaches beyond its end")
            yield tag >> 3, wire, position, last
            position = last

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if position >= end:
                break
            code = self._content[position]
            position += 1
            value |= (code & 0x7F) << shift
            if code < 0x80:
                return value, position
        raise FileError("it is not a protocol buffer")
