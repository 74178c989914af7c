"""Data files: right ones are decoded to the same bytes, wrong ones are refused before they take memory."""

from __future__ import annotations

import gzip
import io
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.data import official

from randens.core.errors import FileError
from randens.data import catalogue
from randens.data.catalogue import CATALOGUE, FileFormat, Parts
from randens.data.convert import read_npz
from randens.data.fetch import read_tar

COLOR, GRAY = official.color(), official.gray()


def cifar() -> FileFormat:
    form = CATALOGUE["cifar10"].format
    assert form is not None
    return form


def rows() -> FileFormat:
    npm = CATALOGUE["cifar10"].npm
    assert npm is not None
    return npm[1]


def idx() -> FileFormat:
    form = CATALOGUE["mnist"].format
    assert form is not None
    return form


def same(one: Parts, other: Parts) -> bool:
    pairs = [pair for split in one for pair in zip(one[split], other[split], strict=True)]
    return all(np.array_equal(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("form", "files", "arrays"),
    [
        (cifar(), official.binary(COLOR, cifar().members), COLOR),
        (rows(), official.pngs(COLOR), COLOR),
        (idx(), official.idx(GRAY, zipped=False), GRAY),
    ],
)
def test_every_form_decodes_to_the_same_arrays_and_damage_is_refused(
    form: FileFormat, files: dict[str, bytes], arrays: Parts
) -> None:
    assert same(form.decode(files), arrays)
    for name in form.members:
        for wrong in (b"\n", b"<!DOCTYPE html>", files[name][:-3], files[name] + b"\0"):
            try:
                found = form.decode({**files, name: wrong})
            except FileError:
                continue
            assert same(found, arrays), "bytes after the end of a PNG or gzip file do not matter"


@pytest.mark.parametrize(
    "content",
    [
        bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**31, 2**31, 4),
        bytes((0, 0, 8, 3)) + struct.pack(">3I", 1, 2, 3),
        gzip.compress(bytes(2 << 20)),
        gzip.compress(b"x" * 100)[:-5],
    ],
    ids=["huge", "short", "bomb", "truncated"],
)
def test_sizes_in_idx_files_are_not_believed(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "LARGEST", 1 << 20)
    files = {**official.idx(GRAY, zipped=False), "train-images-idx3-ubyte": content}
    with pytest.raises(FileError, match="train-images"):
        idx().decode(files)


@pytest.mark.parametrize("kind", ["truncated", "bomb", "member", "page", "missing", "no gzip"])
def test_bad_archives_are_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = official.binary(COLOR, cifar().members)
    if kind == "bomb":
        monkeypatch.setattr(catalogue, "LARGEST", 1 << 20)
        files["readme"] = bytes(2 << 20)
    elif kind == "member":
        monkeypatch.setattr(sys.modules[read_tar.__module__], "LARGEST", 20_000)
    elif kind == "missing":
        del files["test_batch.bin"]
    content = official.tar(files, tmp_path / "a.tar.gz", "x").read_bytes()
    change: dict[str, Callable[[bytes], bytes]] = {
        "truncated": lambda packed: packed[:20_000],
        "page": lambda _: b"<html>",
        "no gzip": gzip.decompress,
    }
    with pytest.raises(FileError, match=r"a\.tar\.gz"):
        read_tar("a.tar.gz", change.get(kind, bytes)(content), cifar())


def _npz(path: Path, kind: str) -> None:
    """A file that is wrong in one way."""
    small = io.BytesIO()
    np.savez_compressed(small, x=np.zeros((3, 4)), y=np.arange(3))
    content = small.getvalue()
    if kind == "npy":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"no array")
    elif kind == "bomb":
        np.savez_compressed(path, x=np.zeros(65 << 20, dtype=np.uint8), y=np.arange(3))
    elif kind == "objects":
        np.savez(path, x=np.array([{}, {}]), y=np.arange(2))
    elif kind == "names":
        np.savez(path, images=np.zeros(3))
    else:
        path.write_bytes(content[: {"half": len(content) // 2, "empty": 0}[kind]])


@pytest.mark.parametrize("kind", ["bomb", "names", "objects", "npy", "empty", "half"])
def test_bad_npz_files_are_refused(tmp_path: Path, kind: str) -> None:
    _npz(tmp_path / "bad.npz", kind)
    with pytest.raises(FileError, match=r"bad\.npz"):
        read_npz(tmp_path / "bad.npz", ("x", "y"))
