"""Run folders: never overwritten, readable after a crash."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import randens
from randens.core.errors import FileError, InputError
from randens.core.runs import Run, versions


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r", recipe={"method": "at"}, seed=3)
    again = Run.open(tmp_path / "r")
    assert again.manifest == run.manifest
    assert again.manifest["recipe"] == {"method": "at"}
    assert again.manifest["seed"] == 3
    assert again.manifest["versions"]["randens"] == randens.__version__
    packages = {name for name in ("torch", "safetensors") if importlib.util.find_spec(name)}
    assert set(versions()) >= {"python", "numpy"} | packages
    commit = again.manifest["git_commit"]
    assert commit is None or len(commit) == 40
    assert again.ensemble == tmp_path / "r" / "ensemble"


def test_a_folder_is_never_taken_twice(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a" / "b")
    before = (run.path / "manifest.json").read_bytes()
    with pytest.raises(FileError, match="exists already"):
        Run.create(run.path, seed=9)
    assert (run.path / "manifest.json").read_bytes() == before
    with pytest.raises(FileError, match="cannot create"):
        Run.create(run.path / "manifest.json" / "c")


def test_metrics_are_appended_and_read_back(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "r")
    assert run.metrics() == []
    run.log(epoch=1, loss=0.5, name="ö")
    run.log(epoch=2, loss=0.25, name="ö")
    with pytest.raises(InputError, match="not JSON"):
        run.log(loss=float("nan"))
    assert run.metrics() == [{"epoch": n, "loss": 0.5 / n, "name": "ö"} for n in (1, 2)]


@pytest.mark.parametrize("cut", [1, 2, 9, 17])
def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path, cut: int) -> None:
    run = Run.create(tmp_path / "r")
    run.log(step=1)
    run.log(step=2, name="öööö")
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert run.metrics() == [{"step": 1}]


def test_other_folders_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileError, match=r"no run folder, which has a manifest\.json"):
            Run.open(folder)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(FileError, match="randens-run-1"):
        Run.open(tmp_path)
