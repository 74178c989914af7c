"""Readers of data files: from bytes to arrays. Sizes are checked before memory is taken for them.

Readers of official files take a mapping from file name to content and give `Parts` in the data set's official
order, so that all sources of one data set decode to identical bytes. Damaged content is a `FileError`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from randens.core.errors import FileError
from randens.core.files import file_errors, open_file

Bytes = npt.NDArray[np.uint8]
Parts = dict[str, tuple[Bytes, Bytes]]  # images [n, channels, h, w] and labels [n] of "train" and "test"
_LARGEST_NPZ = 1 << 36
_MOST_INFLATED = 100  # times its compressed size, for arrays of more than 64 MiB


@dataclass(frozen=True)
class FileFormat:
    """One official form of a data set: its files, how many bytes each may have, and how they are read."""

    members: tuple[str, ...]
    largest: int
    decode: Callable[[Mapping[str, bytes]], Parts]


def digest(x: Bytes, y: Bytes) -> str:
    """SHA-256 of decoded content: shape, pixels [n, channels, h, w], labels as uint8."""
    content = hashlib.sha256(",".join(map(str, x.shape)).encode())
    content.update(np.ascontiguousarray(x, dtype=np.uint8).data)
    content.update(np.ascontiguousarray(y, dtype=np.uint8).data)
    return content.hexdigest()


def cifar_binary(train: tuple[str, ...], test: str, labels: int) -> FileFormat:
    """Records of `labels` label bytes (the last is the fine label), then 3072 pixel bytes by channel."""
    record = labels + 3072

    def read(name: str, content: bytes) -> tuple[Bytes, Bytes]:
        if not content or len(content) % record:
            raise FileError(f"{name} has {len(content)} bytes, not whole {record}-byte records")
        rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
        return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].copy()

    def decode(files: Mapping[str, bytes]) -> Parts:
        parts = [read(name, files[name]) for name in train]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return {"train": (x, y), "test": read(test, files[test])}

    return FileFormat((*train, test), 50_000 // len(train) * record, decode)


def cifar_rows(train: tuple[str, ...], test: str, labels: tuple[str, str]) -> FileFormat:
    """The npm package's form: PNGs in which every row of 1024 pixels is one 32×32 image, and labels in JSON."""

    def read(name: str, content: bytes) -> Bytes:
        with file_errors("decode", name), Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != 1024 or image.height > 10_000:
                raise ValueError(f"it is a {image.mode} image of {image.size}, not rows of 1024 pixels")
            rows = np.asarray(image, dtype=np.uint8)
        return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))

    def read_labels(name: str, content: bytes) -> Bytes:
        with file_errors("decode", name):
            return np.array(json.loads(content), dtype=np.uint8)

    def decode(files: Mapping[str, bytes]) -> Parts:
        train_y, test_y = (read_labels(name, files[name]) for name in labels)
        train_x = np.concatenate([read(name, files[name]) for name in train])
        return {"train": (train_x, train_y), "test": (read(test, files[test]), test_y)}

    return FileFormat((*train, test, *labels), 1 << 26, decode)


def idx() -> FileFormat:
    """Four IDX files, each gzipped or not: big-endian sizes, then bytes."""
    names = tuple(
        f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    )
    largest = 16 + 60_000 * 28 * 28

    def read(name: str, content: bytes) -> Bytes:
        content = gunzip(name, content, largest) if content[:2] == b"\x1f\x8b" else content
        dimensions = 3 if "idx3" in name else 1
        header = 4 + 4 * dimensions
        if len(content) < header or content[:4] != bytes((0, 0, 8, dimensions)):
            raise FileError(f"{name} is not an IDX file of bytes in {dimensions} dimensions")
        shape = struct.unpack(f">{dimensions}I", content[4:header])
        if len(content) != header + math.prod(shape):
            raise FileError(
                f"{name} has {len(content)} bytes; its header promises {header + math.prod(shape)}"
            )
        return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)

    def decode(files: Mapping[str, bytes]) -> Parts:
        train_x, train_y, test_x, test_y = (read(name, files[name]) for name in names)
        return {"train": (train_x[:, None], train_y), "test": (test_x[:, None], test_y)}

    return FileFormat(names, largest, decode)


def gunzip(name: str, packed: bytes, largest: int) -> bytes:
    """What a gzip file holds, if that is not more than `largest` bytes."""
    with file_errors("unpack", name), gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacked:
        content = unpacked.read(largest + 1)
    if len(content) > largest:
        raise FileError(f"{name} unpacks to more than {largest} bytes; it is not the official file")
    return content


def read_tar(name: str, content: bytes, form: FileFormat) -> dict[str, bytes]:
    """The members of a gzipped tar archive that `form` needs, in memory: nothing is unpacked to disk."""
    content = gunzip(name, content, form.largest * len(form.members) + (1 << 20))
    files: dict[str, bytes] = {}
    with file_errors("unpack", name), tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            inner = member.name.rsplit("/", 1)[-1]
            if inner in form.members and member.isfile():
                if member.size > form.largest:
                    raise ValueError(f"{inner} has {member.size} bytes, more than the official file")
                extracted = archive.extractfile(member)
                files[inner] = extracted.read() if extracted else b""
    if missing := sorted(set(form.members) - set(files)):
        raise FileError(f"{name} does not hold {', '.join(missing)}; it is another archive, or truncated")
    return files


def read_npz(path: Path, names: Iterable[str]) -> list[npt.NDArray[Any]]:
    """Arrays of an ``.npz`` file; what is damaged, encrypted or unpacks to far more than its size is refused."""
    with open_file(path, _LARGEST_NPZ) as file, zipfile.ZipFile(file) as archive:
        return [_npy(archive, f"{name}.npy", os.fstat(file.fileno()).st_size) for name in names]


def _npy(archive: zipfile.ZipFile, name: str, available: int) -> npt.NDArray[Any]:
    info = archive.getinfo(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} has another compression than deflate")
    packed = min(info.compress_size, available)
    if info.file_size > max(1 << 26, _MOST_INFLATED * packed):
        raise ValueError(f"{name} unpacks to {info.file_size} bytes from {packed}; save it uncompressed")
    with archive.open(info) as member:
        first = np.lib.format.read_magic(member) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(member)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or size != info.file_size - member.tell():
            raise ValueError(f"{name} does not hold {shape} numbers of type {dtype}")
        array = np.frombuffer(member.read(size), dtype)
    return array.reshape(shape, order="F" if fortran else "C")
