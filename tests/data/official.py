"""Small files in each official format, made from the same arrays, as the makers' programs write them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from randens.data.catalogue import Bytes, Parts


def color(train: int = 20, test: int = 10, classes: int = 10, seed: int = 0) -> Parts:
    """Random 32×32 color images, every class equally often."""
    return _random((3, 32, 32), train, test, classes, seed)


def gray(train: int = 20, test: int = 10, classes: int = 10, seed: int = 1) -> Parts:
    """Random 28×28 gray images."""
    return _random((1, 28, 28), train, test, classes, seed)


def _random(shape: tuple[int, int, int], train: int, test: int, classes: int, seed: int) -> Parts:
    rng = np.random.default_rng(seed)
    return {
        split: (
            rng.integers(0, 256, (count, *shape), dtype=np.uint8),
            rng.permutation(np.arange(count) % classes).astype(np.uint8),
        )
        for split, count in (("train", train), ("test", test))
    }


def _chunks(arrays: Parts, batches: int) -> list[tuple[Bytes, Bytes]]:
    x, y = arrays["train"]
    return [*zip(np.split(x, batches), np.split(y, batches), strict=True), arrays["test"]]


def binary(arrays: Parts, names: tuple[str, ...], coarse: bool = False) -> dict[str, bytes]:
    """CIFAR's binary version: label byte(s) and pixels, record after record."""
    files = {}
    for name, (x, y) in zip(names, _chunks(arrays, len(names) - 1), strict=True):
        prefix = [y // 5] if coarse else []
        files[name] = np.column_stack([*prefix, y, x.reshape(len(x), -1)]).astype(np.uint8).tobytes()
    return files


def pngs(arrays: Parts) -> dict[str, bytes]:
    """CIFAR-10 as pictures whose rows are images, with the labels in JSON lists."""
    names = (*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png")
    files = {}
    for name, (x, _) in zip(names, _chunks(arrays, 5), strict=True):
        buffer = io.BytesIO()
        rows = x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)
        Image.fromarray(np.ascontiguousarray(rows)).save(buffer, "PNG")
        files[name] = buffer.getvalue()
    files["train_lables.json"] = json.dumps(arrays["train"][1].tolist()).encode()
    files["test_lables.json"] = json.dumps(arrays["test"][1].tolist()).encode()
    return files


def idx(arrays: Parts, zipped: bool) -> dict[str, bytes]:
    """MNIST's four IDX files."""
    files = {}
    for stem, (x, y) in (("train", arrays["train"]), ("t10k", arrays["test"])):
        images = bytes((0, 0, 8, 3)) + struct.pack(">3I", len(x), *x.shape[2:]) + x.tobytes()
        files[f"{stem}-images-idx3-ubyte"] = images
        files[f"{stem}-labels-idx1-ubyte"] = bytes((0, 0, 8, 1)) + struct.pack(">I", len(y)) + y.tobytes()
    return {f"{name}.gz": gzip.compress(content) for name, content in files.items()} if zipped else files


def write(files: Mapping[str, bytes], folder: Path) -> Path:
    """Loose files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def tar(files: Mapping[str, bytes], path: Path, inner: str) -> Path:
    """A gzipped tar archive with the files under the folder `inner`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{inner}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
