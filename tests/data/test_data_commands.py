"""`randens data` from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data import official
from typer.testing import CliRunner

from randens import data
from randens.cli.data import app
from randens.core.errors import FileError, InputError
from randens.data.catalogue import CATALOGUE
from randens.data.formats import digest

run = CliRunner()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small CIFAR-10 that the catalogue takes for the real one."""
    arrays = official.color()
    sha256 = (digest(*arrays["train"]), digest(*arrays["test"]))
    entry = replace(CATALOGUE["cifar10"], train_size=20, test_size=10, held_out=1, sha256=sha256)
    monkeypatch.setitem(CATALOGUE, "cifar10", replace(entry, addresses=(), npm=None))
    monkeypatch.setenv("RANDENS_DATA", str(tmp_path / "cache"))
    assert entry.format is not None
    return official.write(official.binary(arrays, entry.format.members), tmp_path / "mine")


def test_fetch_list_verify_and_load(source: Path, tmp_path: Path) -> None:
    listed = json.loads(run.invoke(app, ["list", "--json"]).stdout)
    assert {row["name"]: row["present"] for row in listed} == {
        name: name == "digits" for name in ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")
    }
    fetched = run.invoke(app, ["fetch", "cifar10", "--from", str(source)])
    assert fetched.exit_code == 0
    assert (
        fetched.stdout.strip() == f"cifar10 is in {tmp_path / 'cache' / 'cifar10'}; source: files in {source}"
    )
    assert "yes" in run.invoke(app, ["list"]).stdout.splitlines()[4]
    verified = run.invoke(app, ["verify", "cifar10"])
    assert verified.exit_code == 0
    assert "cifar10: ok — checksums match; source: files in" in verified.stdout
    assert len(data.load("cifar10", "train")) == 10
    assert data.load("cifar10", "validation").counts().tolist() == [1] * 10


def test_digits_need_no_fetching() -> None:
    result = run.invoke(app, ["fetch", "digits"])
    assert result.stdout.strip() == "digits needs no fetching; source: scikit-learn, which carries it"


def test_verify_finds_damage_and_what_is_missing(source: Path, tmp_path: Path) -> None:
    assert run.invoke(app, ["verify", "cifar10"]).exit_code == 1
    assert run.invoke(app, ["verify"]).exit_code == 0, "what was never fetched is not damage"
    run.invoke(app, ["fetch", "cifar10", "--from", str(source)])
    (tmp_path / "cache" / "cifar10" / "test.safetensors").write_bytes(b"short")
    result = run.invoke(app, ["verify", "--json"])
    assert result.exit_code == 1
    verdict = {row["name"]: row for row in json.loads(result.stdout)}["cifar10"]
    assert (verdict["present"], verdict["ok"]) == (True, False)
    assert "cifar10: DAMAGED" in run.invoke(app, ["verify"]).stdout


def test_errors_reach_the_caller(source: Path) -> None:
    wrong_name = run.invoke(app, ["fetch", "cifar10", "cifar11"])
    assert isinstance(wrong_name.exception, InputError)
    assert not data.present()["cifar10"], "names are checked before anything is fetched"
    nothing = run.invoke(app, ["fetch", "cifar10"])
    assert isinstance(nothing.exception, FileError)
    assert source.exists()
