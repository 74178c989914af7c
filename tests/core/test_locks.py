"""One writer per folder: a second one is told which process writes; the lock of an ended process is taken over."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from randens.core import locks
from randens.core.errors import FileError
from randens.core.locks import lock_of, only_writer

_CHILD = """
import sys, time
from randens.core.locks import only_writer
with only_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def enter(folder: Path) -> None:
    with only_writer(folder):
        pass


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with only_writer(folder):
        with pytest.raises(FileError) as caught:
            enter(folder)
        with only_writer(tmp_path / "another"):
            pass
    assert f"{folder} is being written by process {os.getpid()} on {platform.node()} since 20" in str(
        caught.value
    )
    assert not lock_of(folder).exists()
    enter(folder)


def test_the_lock_is_released_however_the_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(folder)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(FileError, match=f"process {child.pid} on"):
            enter(folder)
        child.kill()
        child.wait()
    assert lock_of(folder).exists()
    enter(folder)
    assert not lock_of(folder).exists()


def left(folder: Path, age: float = 0.0, **changes: object) -> None:
    """A lock file as a process leaves it that had no time to remove it."""
    content = {**locks._identity(), **changes}
    lock_of(folder).write_text(json.dumps(content))
    os.utime(lock_of(folder), (time.time() - age,) * 2)


def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)


@pytest.mark.parametrize("flock", [True, False])
def test_what_another_machine_wrote_holds_for_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: bool
) -> None:
    if not flock:
        without_flock(monkeypatch)
    left(tmp_path / "run", age=300, host="node-7", pid=12)
    with pytest.raises(FileError, match="process 12 on node-7"):
        enter(tmp_path / "run")
    left(tmp_path / "run", age=601, host="node-7", pid=12)
    enter(tmp_path / "run")


def test_without_flock_a_living_process_of_this_machine_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_flock(monkeypatch)
    left(tmp_path / "run", age=10_000)
    with pytest.raises(FileError, match=f"process {os.getpid()} on"):
        enter(tmp_path / "run")


@pytest.mark.parametrize("changes", [{"pid": 2**22 + 1}, {"started": "1"}, {"pid": "x"}, {"pid": None}])
@pytest.mark.parametrize("flock", [True, False])
def test_what_a_dead_process_left_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], flock: bool
) -> None:
    if not flock:
        without_flock(monkeypatch)
    left(tmp_path / "run", **changes)  # type: ignore[arg-type]
    with only_writer(tmp_path / "run"):
        assert json.loads(lock_of(tmp_path / "run").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 4096, b"3", b'{"pid": 1}'])
def test_a_damaged_lock_file_is_no_obstacle(tmp_path: Path, content: bytes) -> None:
    lock_of(tmp_path / "run").write_bytes(content)
    enter(tmp_path / "run")


def test_a_holder_renews_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEWED_SECONDS", 0.01)
    with only_writer(tmp_path / "run"):
        os.utime(lock_of(tmp_path / "run"), (0, 0))
        until = time.monotonic() + 300
        while lock_of(tmp_path / "run").stat().st_mtime < 1e9 and time.monotonic() < until:
            time.sleep(0.01)
        assert lock_of(tmp_path / "run").stat().st_mtime > 1e9


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot write"):
        enter(tmp_path / "file" / "run")
