"""Whoever opens a file sees the old content or the new one, never a part."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from randens.errors import FileError, InputError
from randens.files import new_folder, read_json, sha256, write_atomic, write_json


def test_content_is_written_with_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.bin"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["b.bin"]
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(FileError, match=r"file: No space left on device; nothing was changed"):
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(FileError, match="cannot write"):
        write_atomic(tmp_path / "file" / "below", b"")
    assert (tmp_path / "file").read_text() == "kept"


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None, True], "a": {"η": "ö"}}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert (tmp_path / "x.json").read_text().index('"a"') < (tmp_path / "x.json").read_text().index('"b"')


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, {"a": float("inf")}])
def test_what_is_not_json_is_refused_before_anything_is_written(tmp_path: Path, value: object) -> None:
    write_json(tmp_path / "x.json", 1)
    with pytest.raises(InputError, match=r"x\.json"):
        write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == 1


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe", b"{'a': 1}"])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(FileError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")
    with pytest.raises(FileError, match=r"cannot read .*y\.json"):
        read_json(tmp_path / "y.json")


def test_a_folder_is_never_taken_twice(tmp_path: Path) -> None:
    assert new_folder(tmp_path / "a" / "b").is_dir()
    with pytest.raises(FileError, match="exists already"):
        new_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot create"):
        new_folder(tmp_path / "file" / "b")


def test_sha256_is_the_standard_one() -> None:
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
