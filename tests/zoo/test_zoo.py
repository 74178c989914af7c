"""The zoo: what ships is whole and small, and its commands name, copy and describe it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.commands import Shell, shell

import randens
from paper import zoo_maintenance
from randens import zoo
from randens.core.errors import FileError, InputError
from randens.report.runs import load_runs

__all__ = ["shell"]

NAME = "cifar10-resnet20-at"


def test_what_ships_is_whole_and_small() -> None:
    sizes = 0
    for name in zoo.names():
        rec = zoo.load(name)
        for found in zoo_maintenance.evaluations(zoo.path(name)).values():
            found.check(rec)
            assert f"| {100 * float(found.robust):.1f} % |" in zoo.card(name)
        (run,) = load_runs([zoo.path(name)])
        assert run.problems == {}
        sizes += sum(path.stat().st_size for path in zoo.path(name).rglob("*") if path.is_file())
    assert 0 < sizes < 15e6


def test_a_copy_is_a_run_folder(tmp_path: Path) -> None:
    run = zoo.copy(NAME.upper(), tmp_path / "mine")
    assert randens.load(run.ensemble).probs.tolist() == zoo.load(NAME).probs.tolist()
    with pytest.raises(FileError, match="exists already"):
        zoo.copy(NAME, tmp_path / "mine")


def test_damage_and_wrong_names_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=NAME):
        zoo.load("cifar10-resnet20-att")
    shutil.copytree(zoo.path(NAME), tmp_path / NAME)
    member = tmp_path / NAME / "ensemble" / "member-00.safetensors"
    content = bytearray(member.read_bytes())
    content[-1] ^= 1
    member.write_bytes(bytes(content))
    monkeypatch.setattr(zoo, "_root", lambda: tmp_path)
    with pytest.raises(FileError, match="member-00"):
        zoo.load(NAME)
    with pytest.raises(FileError, match="member-00"):
        zoo.copy(NAME, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_commands(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = {row["name"]: row for row in shell.json("zoo", "list")}
    assert listed[NAME]["images"] == 2000
    assert listed["cifar10-resnet20-barre-m3"]["members"] == 3
    code, _, _ = shell("zoo", "load", NAME)
    assert code == 0
    assert (tmp_path / "runs" / NAME / "ensemble").is_dir()
    assert shell("zoo", "card", NAME) == (0, zoo.card(NAME), "")
    assert NAME in shell.refused("zoo", "card", "cifar10-resnet")
