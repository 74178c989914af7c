"""A reader of a file sees the old content or the new one, never a part."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from randens.core.devices import read_tensors, tensor_checksum
from randens.core.errors import FileError, InputError
from randens.core.files import atomic_folder, only_writer, plain, read_json, write_atomic, write_json
from randens.training.recipe import read_toml


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
    with pytest.raises(FileError, match=r"file: No space left on device"):
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_only_regular_files_are_written_over(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(os.devnull)
    before = path.lstat()
    with pytest.raises(FileError, match=r"cannot write .*there: it is no regular file"):
        write_atomic(path, b"content")
    assert path.lstat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["there"]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, {"a": float("inf")}, "\ud800"])
def test_what_is_not_json_is_refused_before_anything_is_written(tmp_path: Path, value: object) -> None:
    good = {"b": [1, 2.5, None, True], "a": {"η": "ö"}}
    write_json(tmp_path / "x.json", good)
    with pytest.raises(InputError, match=r"x\.json"):
        write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == good


@pytest.mark.parametrize("read", [read_json, read_toml, read_tensors])
@pytest.mark.parametrize(
    "kind",
    ["missing", "folder", "pipe", "device", "long name", "zero byte", "surrogate", "large", "empty", "bytes"],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, read: Callable[[Any], Any], kind: str) -> None:
    path: Any = tmp_path / "file"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 37)
    elif kind in ("empty", "bytes"):
        path.write_bytes(b"" if kind == "empty" else b"\xff\xfe\x00\x00")
    else:
        path = {"missing": path, "long name": "x" * 5000, "zero byte": "a\0b", "surrogate": "\ud800"}[kind]
    if (read, kind) == (read_toml, "empty"):
        assert read(path) == {}
        return
    with pytest.raises(FileError) as caught:
        read(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_json, "[" * 100_000 + "]" * 100_000),
        (read_json, "1" * 5000),
        (read_json, "1e400"),
        (read_json, "NaN"),
        (read_json, "{'a': 1}"),
        (read_toml, "a = " + "[" * 5000 + "]" * 5000),
        (read_toml, "a = " + "1" * 5000),
        (read_toml, "a." * 100_000 + "a = 1"),
    ],
)
def test_damaged_documents_are_named(tmp_path: Path, read: Callable[[Any], Any], text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(FileError, match="file"):
        read(tmp_path / "file")


def test_a_tensor_checksum_covers_names_dtypes_shapes_and_bytes() -> None:
    torch = pytest.importorskip("torch", reason="tensors need torch")
    tensors = {"a": torch.tensor([1, 2, 3, 4], dtype=torch.int32), "b": torch.tensor([[True, False]])}
    before = tensor_checksum(tensors, {"format": "f"})
    assert tensor_checksum(dict(reversed(tensors.items())), {"format": "f"}) == before
    a = tensors["a"]
    for changed in ({"a": a.view(torch.float32)}, {"a": a.reshape(2, 2)}, {"a": a.flip(0)}, {"more": a[:0]}):
        assert tensor_checksum({**tensors, **changed}, {"format": "f"}) != before
    assert tensor_checksum(tensors, {"format": "g"}) != before
    assert tensor_checksum({"t": a.reshape(2, 2).T}) == tensor_checksum({"t": a.reshape(2, 2).T.contiguous()})


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "made"
    (tmp_path / ".made.tmp" / "left by a killed process").mkdir(parents=True)
    os.mkfifo(tmp_path / ".made.old")
    for content in ("one", "two"):
        with atomic_folder(target, overwrite=True) as folder:
            (folder / "file").write_text(content)
            with pytest.raises(FileError, match="another process"), atomic_folder(target, overwrite=True):
                pass
        with contextlib.suppress(KeyError), atomic_folder(target, overwrite=True) as folder:
            (folder / "file").write_text("never")
            raise KeyError
        assert (target / "file").read_text() == content
        assert os.listdir(tmp_path) == ["made"]
    with pytest.raises(FileError, match="exists already"), atomic_folder(target):
        pass
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="it is no folder"), atomic_folder(tmp_path / "pipe", overwrite=True):
        pass


_CHILD = """
import sys, time
from randens.core.files import only_writer
with only_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def enter(folder: Path) -> None:
    with only_writer(folder):
        pass


def test_one_writer_at_a_time_until_its_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with only_writer(folder):
        with pytest.raises(FileError, match="another process"):
            enter(folder)
        enter(tmp_path / "another")
    command = [sys.executable, "-c", _CHILD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(FileError, match="another process"):
            enter(folder)
        child.kill()
        child.wait()
    enter(folder)


@pytest.mark.parametrize("kind", ["link", "folder", "no-folder"])
def test_what_is_no_lock_file_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    victim, lock = tmp_path / "victim", tmp_path / ".run.lock"
    victim.write_text("precious")
    if kind == "link":
        lock.symlink_to(victim)
    elif kind == "folder":
        lock.mkdir()
    with pytest.raises(FileError, match="cannot lock"):
        enter(victim / "run" if kind == "no-folder" else tmp_path / "run")
    assert victim.read_text() == "precious"
    assert os.path.lexists(lock) == (kind != "no-folder")


def test_value_objects_become_plain_values() -> None:
    @dataclass(frozen=True)
    class Outer:
        probs: NDArray[np.float64]
        own: Counted
        path: Path = Path("here")
        missing: None = None

    outer = Outer(np.array([0.25, 0.75]), Counted())
    expected = {"probs": [0.25, 0.75], "own": {"counted": 3}, "path": "here", "missing": None}
    assert plain({"x": (outer,)}) == {"x": [expected]}
    assert type(plain(np.float64(0.5))) is float


class Counted:
    """Says itself how it is written."""

    def to_json(self) -> dict[str, int]:
        return {"counted": 3}
