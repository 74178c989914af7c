"""The cache folder: decoded data sets in one canonical form, and loading from it.

Each official part is one safetensors file, `<folder>/<name>/train.safetensors` and `test.safetensors`, with
`images` uint8 [n, channels, h, w] and `labels` uint8 [n].  Files are written completely or not at all.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy
import torch

from randens.core.errors import FileError, unknown
from randens.core.files import data_folder, write_atomic
from randens.data.catalogue import CATALOGUE, Listed
from randens.data.formats import Arrays, Bytes, digest
from randens.data.images import SPLITS, ImageData, held_out
from randens.data.sources import check_space

__all__ = ["data_folder", "entry", "load", "names"]

_SPLIT_SEED = 0


def names() -> tuple[str, ...]:
    """The data sets that `load` knows.

    Returns
    -------
    tuple of str
        For `load`.

    Examples
    --------
    >>> names()[0]
    'digits'
    """
    return tuple(CATALOGUE)


def entry(name: str) -> Listed:
    """What is known about a data set: title, classes, shape, sizes, sources.

    Parameters
    ----------
    name : str
        One of `names()`.

    Returns
    -------
    Entry
        From the catalogue.

    Examples
    --------
    >>> entry("digits").shape
    (1, 8, 8)
    """
    if name not in CATALOGUE:
        unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]


def load(name: str, split: str, *, folder: str | os.PathLike[str] | None = None) -> ImageData:
    """Load one split of a data set: "train", "validation" (taken from the official training part, the same
    number from every class, always the same images) or "test".

    `digits` needs no files; the others must have been fetched (`randens data fetch NAME`) into `folder`.

    Parameters
    ----------
    name : str
        One of `names()`.
    split : str
        ``"train"``, ``"validation"`` or ``"test"``.
    folder : str or path, optional
        Where data sets are kept.

    Returns
    -------
    ImageData
        In memory.

    Examples
    --------
    >>> len(load("digits", "test"))
    360
    """
    known = entry(name)
    if split not in SPLITS:
        unknown("split", split, SPLITS)
    part = "test" if split == "test" else "train"
    stored: npt.NDArray[Any]
    if name == "digits":
        steps, labels = digits().part(part)
        stored = steps.astype(np.float32) / 16
    else:
        stored, labels, _ = read_part(known, part, data_folder(folder))
    if split != "test":
        kept, out = held_out(labels, [known.held_out] * len(known.classes), _SPLIT_SEED)
        chosen = kept if split == "train" else out
        stored, labels = stored[chosen], labels[chosen]
    y = torch.from_numpy(labels.astype(np.int64))
    return ImageData(torch.from_numpy(stored), y, known.classes, name, split)


def digits() -> Arrays:
    """scikit-learn's digits, whose pixels run from 0 to 16; 36 of every class are the test part."""
    # Its file is read as `sklearn.datasets.load_digits` reads it, because importing scikit-learn takes a second.
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            table = np.loadtxt(file, delimiter=",").astype(np.uint8)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}); install scikit-learn again") from error
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    train, test = held_out(labels, [36] * 10, _SPLIT_SEED)
    return Arrays(images[train], labels[train], images[test], labels[test])


def part_path(known: Listed, split: str, folder: Path) -> Path:
    """The canonical file of the official part that holds `split`."""
    return folder / known.name / ("test.safetensors" if split == "test" else "train.safetensors")


def write_parts(known: Listed, arrays: Arrays, source: str, folder: Path) -> None:
    """Store both parts, each atomically, with their digests and the source in the header."""
    size = sum(part.nbytes for part in (arrays.train_x, arrays.train_y, arrays.test_x, arrays.test_y))
    check_space(folder / known.name, size)
    for split in ("train", "test"):
        x, y = arrays.part(split)
        header = {"sha256": digest(x, y), "source": source}
        content = safetensors.numpy.save({"images": np.ascontiguousarray(x), "labels": y}, metadata=header)
        write_atomic(part_path(known, split, folder), content)


def read_part(known: Listed, split: str, folder: Path) -> tuple[Bytes, Bytes, dict[str, str]]:
    """Read images, labels and header of a stored part; a damaged file or other content is refused."""
    path = part_path(known, split, folder)
    remedy = f"run `randens data fetch {known.name}`"
    if not path.exists():
        raise FileError(f"{known.name} is not in {folder}; {remedy} first")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            x, y = file.get_tensor("images"), file.get_tensor("labels")
            header = file.metadata() or {}
    except (safetensors.SafetensorError, OSError) as error:
        raise FileError(f"{path} is damaged ({error}); delete it and {remedy}") from error
    size = known.test_size if split == "test" else known.train_size
    if x.shape != (size, *known.shape) or y.shape != (size,) or x.dtype != np.uint8 or y.dtype != np.uint8:
        raise FileError(f"{path} does not hold {size} images of shape {known.shape}; delete it and {remedy}")
    found = digest(x, y)
    expected = known.sha256[0 if split == "train" else 1] if known.sha256 else header.get("sha256")
    if found != expected:
        raise FileError(f"{path} has the content checksum {found}, not {expected}; delete it and {remedy}")
    return x, y, header
