"""Readers of the official file formats: from bytes to uint8 arrays.

Every reader takes a mapping from file name to content and gives `Arrays` in the data set's official order,
so that all sources of one data set decode to identical bytes.  Damaged content raises `FileError`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from randens.core.errors import FileError

__all__ = ["Arrays", "FileFormat", "cifar_binary", "cifar_pngs", "cifar_python", "idx"]

Bytes = npt.NDArray[np.uint8]
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True, eq=False)
class Arrays:
    """Decoded images [n, channels, h, w] and labels [n], both uint8, of the official train and test parts."""

    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes

    def part(self, split: str) -> tuple[Bytes, Bytes]:
        """Images and labels of "train" or "test"."""
        return (self.train_x, self.train_y) if split == "train" else (self.test_x, self.test_y)


@dataclass(frozen=True)
class FileFormat:
    """One official form of a data set: which files it consists of and how they are read."""

    title: str
    members: tuple[str, ...]
    decode: Callable[[Mapping[str, bytes]], Arrays]


def digest(x: Bytes, y: Bytes) -> str:
    """SHA-256 of decoded content: the shape, the pixels [n, channels, h, w], then the labels as uint8."""
    content = hashlib.sha256(",".join(map(str, x.shape)).encode())
    content.update(np.ascontiguousarray(x, dtype=np.uint8).data)
    content.update(np.ascontiguousarray(y, dtype=np.uint8).data)
    return content.hexdigest()


# --- CIFAR, binary version -----------------------------------------------------------------------------


def cifar_binary(train: tuple[str, ...], test: str, labels: int) -> FileFormat:
    """Records of `labels` label bytes (the last is the fine label), then 3072 pixel bytes by channel."""
    return _in_files("CIFAR binary", (*train, test), partial(_cifar_records, labels))


def _in_files(
    title: str, names: tuple[str, ...], read: Callable[[str, bytes], tuple[Bytes, Bytes]]
) -> FileFormat:
    """Images with their labels in each file; the last file is the test part."""

    def decode(files: Mapping[str, bytes]) -> Arrays:
        *train, test = (read(name, files[name]) for name in names)
        return Arrays(np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), *test)

    return FileFormat(title, names, decode)


def _cifar_records(labels: int, name: str, content: bytes) -> tuple[Bytes, Bytes]:
    record = labels + _PIXELS
    if not content or len(content) % record:
        _refuse_page(name, content)
        raise FileError(
            f"{name} has {len(content)} bytes, not whole {record}-byte records: truncated or altered"
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return rows[:, labels:].reshape(-1, 3, _SIDE, _SIDE), rows[:, labels - 1].copy()


# --- CIFAR, Python version -----------------------------------------------------------------------------


def cifar_python(train: tuple[str, ...], test: str, labels: str) -> FileFormat:
    """Pickled dictionaries with the pixels under "data" and a list of integers under `labels`."""
    return _in_files("CIFAR Python", (*train, test), partial(_cifar_pickle, labels))


class _Dtype:
    """Stands for `numpy.dtype` inside a pickle: records its code and builds nothing."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and similar state: the only accepted type is a byte."""


class _Array:
    """Stands for `numpy.ndarray` inside a pickle: keeps the raw bytes for checking."""

    shape: tuple[int, ...] = ()
    content: bytes = b""
    fortran: bool = False

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple() as shape, _Dtype(code=b"u1" | "u1"), int() as fortran, bytes() as content):
                self.shape, self.content, self.fortran = shape, content, bool(fortran)
            case _:
                raise pickle.UnpicklingError("an array of something other than bytes")


def _reconstruct(*_: object) -> _Array:
    return _Array()


class _CifarUnpickler(pickle.Unpickler):
    """Accepts the three NumPy names that occur in the CIFAR files and maps them to inert stand-ins.

    Nothing that a pickle names is ever imported or called, so no content of the file can run code.
    """

    ADMITTED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self.ADMITTED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module_name}.{global_name}, which CIFAR files do not"
            ) from None


def _cifar_pickle(labels: str, name: str, content: bytes) -> tuple[Bytes, Bytes]:
    _refuse_page(name, content)
    try:
        loaded = _CifarUnpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise FileError(f"{name} was refused: {error}; take the official file") from error
    except Exception as error:
        # A damaged pickle can raise anything (EOFError, IndexError, ValueError, ...) from its opcodes.
        raise FileError(f"{name} is not a whole CIFAR file ({type(error).__name__}: {error})") from error
    match loaded:
        case {b"data": _Array(shape=(int() as n, 3072), content=data, fortran=False)} if (
            len(data) == n * _PIXELS
        ):
            x = np.frombuffer(data, dtype=np.uint8).reshape(n, 3, _SIDE, _SIDE)
        case _:
            raise FileError(f"{name} does not hold n × 3072 bytes of pixels under 'data'")
    return x, _labels(name, loaded.get(labels.encode()), n)


def _labels(name: str, values: object, count: int) -> Bytes:
    if not isinstance(values, list) or len(values) != count:
        raise FileError(f"{name} does not hold {count} labels")
    if not all(type(value) is int and 0 <= value < 256 for value in values):
        raise FileError(f"{name} holds labels that are not integers from 0 to 255")
    return np.array(values, dtype=np.uint8)


# --- CIFAR-10 as pictures in which every row is an image -------------------------------------------------


def cifar_pngs(train: tuple[str, ...], test: str, train_labels: str, test_labels: str) -> FileFormat:
    """PNG pictures 1024 pixels wide: every row is one 32×32 RGB image; the labels are JSON lists."""

    def decode(files: Mapping[str, bytes]) -> Arrays:
        train_x = np.concatenate([_png_rows(name, files[name]) for name in train])
        test_x = _png_rows(test, files[test])
        train_y = _json_labels(train_labels, files[train_labels], len(train_x))
        test_y = _json_labels(test_labels, files[test_labels], len(test_x))
        return Arrays(train_x, train_y, test_x, test_y)

    return FileFormat("CIFAR pictures", (*train, test, train_labels, test_labels), decode)


def _png_rows(name: str, content: bytes) -> Bytes:
    _refuse_page(name, content)
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            mode = picture.mode
            rows = np.asarray(picture, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise FileError(f"{name} is not a whole PNG picture ({error})") from error
    if mode != "RGB" or rows.shape[1:] != (_SIDE * _SIDE, 3):
        raise FileError(f"{name} is a {mode} picture of shape {rows.shape}; expected RGB, 1024 pixels wide")
    return np.ascontiguousarray(rows.reshape(-1, _SIDE, _SIDE, 3).transpose(0, 3, 1, 2))


def _json_labels(name: str, content: bytes, count: int) -> Bytes:
    try:
        values = json.loads(content)
    except ValueError as error:
        raise FileError(f"{name} is not valid JSON ({error}); it is truncated or was altered") from error
    return _labels(name, values, count)


# --- IDX (MNIST and its kin) -----------------------------------------------------------------------------

_IDX_MEMBERS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx() -> FileFormat:
    """Four IDX files, each gzipped or not: big-endian sizes, then bytes."""

    def decode(files: Mapping[str, bytes]) -> Arrays:
        train_x, train_y, test_x, test_y = (
            _idx_array(name, files[name], dimensions)
            for name, dimensions in zip(_IDX_MEMBERS, (3, 1, 3, 1), strict=True)
        )
        for images, labels, name in ((train_x, train_y, _IDX_MEMBERS[1]), (test_x, test_y, _IDX_MEMBERS[3])):
            if len(images) != len(labels):
                raise FileError(f"{name} holds {len(labels)} labels for {len(images)} images")
        return Arrays(train_x[:, None], train_y, test_x[:, None], test_y)

    return FileFormat("IDX", _IDX_MEMBERS, decode)


def _idx_array(name: str, content: bytes, dimensions: int) -> Bytes:
    if content[:2] == b"\x1f\x8b":
        content = _gunzip(name, content)
    _refuse_page(name, content)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, 8, dimensions)):
        raise FileError(f"{name} is not an IDX file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise FileError(
            f"{name} has {len(content)} bytes, its header promises {expected}: truncated or altered"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


_LARGEST = 1 << 28


def _gunzip(name: str, content: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            plain = file.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{name} is not a whole gzip file ({error})") from error
    if len(plain) > _LARGEST:
        raise FileError(f"{name} unpacks to more than {_LARGEST >> 20} MiB; it is not the official file")
    return plain


def _refuse_page(name: str, content: bytes) -> None:
    if looks_like_page(content):
        raise FileError(f"{name} is a web page, not data; delete it and fetch again")


def looks_like_page(content: bytes) -> bool:
    """Whether some bytes begin as an HTML page does (a login or error page saved in place of data)."""
    start = content[:256].lstrip().lower()
    return start.startswith((b"<!doctype", b"<html", b"<head", b"<?xml"))
