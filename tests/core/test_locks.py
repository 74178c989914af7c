"""One writer per folder, whatever lies in the lock's place and however its holder ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from randens.core.errors import FileError
from randens.core.locks import only_writer

_CHILD = """
import sys, time
from randens.core.locks import only_writer
with only_writer(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def enter(folder: Path) -> None:
    with only_writer(folder):
        pass


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with only_writer(folder):
        with pytest.raises(FileError, match="another process"):
            enter(folder)
        enter(tmp_path / "another")
    enter(folder)


def test_the_lock_is_released_however_the_process_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(FileError, match="another process"):
            enter(tmp_path / "run")
        child.kill()
        child.wait()
    enter(tmp_path / "run")


@pytest.mark.parametrize("kind", ["link", "folder", "no-folder"])
def test_what_is_no_lock_file_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    victim, lock = tmp_path / "victim", tmp_path / ".run.lock"
    victim.write_text("precious")
    if kind == "link":
        lock.symlink_to(victim)
    elif kind == "folder":
        lock.mkdir()
    folder = victim / "run" if kind == "no-folder" else tmp_path / "run"
    with pytest.raises(FileError, match="cannot lock"):
        enter(folder)
    assert victim.read_text() == "precious"
    assert os.path.lexists(lock) == (kind != "no-folder")
