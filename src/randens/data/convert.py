"""`as_data`: inputs and labels from arrays, data sets, loaders, folders, files or names.

Conversions that change values or axes (bytes to [0, 1], channels last to first) are made only if they are
unambiguous, and `Data.notes` lists them.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from randens.core.devices import is_dense
from randens.core.errors import FileError, InputError, shown, typed, unknown, whole
from randens.core.files import file_errors, open_file
from randens.data.catalogue import CATALOGUE
from randens.data.data import SPLITS, Data, ImageFiles, read_image
from randens.data.fetch import load

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_IN_MEMORY = 1 << 30
_LARGEST_NPZ = 1 << 36
_MOST_INFLATED = 100  # times the file's size, for arrays of more than 64 MiB
_CHANNELS = (1, 3, 4)
_SPLIT_FOLDERS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLIT_FOLDERS |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
_IMAGE_KEYS = ("pixel_values", "image", "images", "img", "x", "inputs", "features", "data")
_LABEL_KEYS = ("labels", "label", "y", "target", "targets", "fine_label")
_KINDS = "(x, y), a Dataset, a DataLoader, a Hugging Face data set, Data, a folder or the name of a data set"


@typed(split=str | None)
def as_data(
    data: Any,
    *,
    split: str | None = None,
    limit: int | None = None,
    classes: int | Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
) -> Data:
    """Make `Data` of anything that holds inputs and labels.

    Parameters
    ----------
    data : tuple, Dataset, DataLoader, datasets.Dataset, Data, str or path
        ``(x, y)`` of tensors, NumPy arrays or lists; a torch data set or loader of pairs (or of mappings with an
        image and a label); a split of a Hugging Face data set; a name that `randens.data.load` knows; an ``.npz``
        file with ``x`` and ``y``; images (PNG, JPEG, BMP, GIF, WebP) in ``path/<class>/`` or ``path/<split>/<class>/``.
    split : str, optional
        Of names and folders with several splits the one to read, ``"test"`` by default. Of arrays, loaders and data
        sets what they are, ``"unknown"`` by default.
    limit : int, optional
        Use only this many inputs, from the first on.
    classes : int or sequence of str, optional
        The classes' number or names, where the data do not say.
    size : (int, int), optional
        Height and width to which the images of a folder are scaled; otherwise all must have the first one's. All
        have its kind (gray or color), too. Up to 1 GiB of pixels are decoded at once, of more the rows that are used.

    Returns
    -------
    Data
        On the CPU. uint8 becomes [0, 1] and channels last become channels first; `notes` says so.

    Examples
    --------
    >>> as_data((np.zeros((2, 8, 8, 3), dtype=np.uint8), [0, 1]), split="train")
    Data(arrays train, 2 × (3, 8, 8), 0 classes)
    """
    if split is not None and split not in SPLITS:
        unknown("split", split, SPLITS)
    if limit is not None:
        whole("limit", limit)
    found = _convert(data, split, limit, size).subset(slice(0, limit))
    if not len(found):
        raise InputError("data is empty; give at least one input")
    if isinstance(data, str | os.PathLike):
        split = None  # it said what to read; of a file or folder without splits, nothing is known
    elif split is not None and found.split not in ("unknown", split):
        raise InputError(f"split is {shown(split)}, but data is the {found.split} split of {found.name}")
    if classes is not None and not isinstance(classes, Sequence):
        classes = list(map(str, range(whole("classes", classes, 2, 1 << 20, ", or a list of names"))))
    names = found.classes if classes is None else tuple(map(str, classes))
    low, high = int(found.y.min()), int(found.y.max())
    count = len(names) or high + 1
    if low < 0 or high >= count:
        raise InputError(f"labels are {low} to {high}; labels of {count} classes are 0 to {count - 1}")
    return replace(found, classes=names, split=split or found.split)


def _convert(data: Any, split: str | None, limit: int | None, size: tuple[int, int] | None) -> Data:
    if isinstance(data, Data):
        return data
    if isinstance(data, str | os.PathLike):
        text = os.fspath(data)
        if text in CATALOGUE:
            return load(text, split or "test")
        if text.endswith(".npz"):
            x, y = read_npz(Path(text), ("x", "y"))
            return _from_arrays(x, y, Path(text).name)
        if os.path.isdir(text):  # noqa: PTH112 - Path.is_dir raises for names that are too long
            return _folder(Path(text), split, size)
        if len(Path(text).parts) > 1 or text.startswith("."):
            raise FileError(f"{text} is no folder of images and no .npz file")
        unknown("data set", text, CATALOGUE)
    if all(hasattr(data, attribute) for attribute in ("column_names", "features", "__getitem__")):
        # Of Hugging Face.
        names = tuple(getattr(data.features[_keys(data.column_names)[1]], "names", ()))
        called = getattr(data.info, "dataset_name", None) or "datasets"
        return replace(_collected(data, limit), classes=names, name=called)
    if _is_pair(data):
        x, y = data
        return _from_arrays(x, y, "tensors" if isinstance(x, Tensor) else "arrays")
    return _collected(data, limit)


def _folder(root: Path, split: str | None, size: tuple[int, int] | None) -> Data:
    """Images below ``root/<class>`` or ``root/<split>/<class>``, decoded at once if they are not too many."""
    if size is not None and (np.shape(size) != (2,) or not all(value in range(1, 4097) for value in size)):
        raise InputError(f"size is {shown(size)}; it must be (height, width), both from 1 to 4096")
    place, found, folders = root.absolute(), "unknown", _subfolders(root)
    splits = {_SPLIT_FOLDERS[folder.name]: folder for folder in folders if folder.name in _SPLIT_FOLDERS}
    if folders and len(splits) == len(folders):
        found = split or "test"
        if found not in splits:
            raise InputError(f"{root} has no {found} folder; it holds the splits {', '.join(splits)}")
        folders = _subfolders(splits[found])
    elif place.name in _SPLIT_FOLDERS:
        place, found = place.parent, _SPLIT_FOLDERS[place.name]
        if split not in (None, found):
            raise InputError(f"split is {shown(split)}, but {root} holds the {found} split")
    if len(folders) < 2:
        raise FileError(f"{root} holds {len(folders)} folders of images; a classifier needs two or more")
    files: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        with file_errors("read", folder):
            images = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
        if not images:
            raise FileError(f"{folder} holds no images ({', '.join(_SUFFIXES)}); add some or remove it")
        files += images
        labels += [label] * len(images)
    channels, *first = read_image(files[0]).shape
    height, width = size or first
    scaled = f"images of {first[0]}×{first[1]} pixels were scaled to {height}×{width}"
    lazy = ImageFiles(tuple(files), (height, width), channels, size is not None)
    stored = lazy[:] if math.prod(lazy.shape) <= _IN_MEMORY else lazy
    classes, notes = tuple(folder.name for folder in folders), () if [height, width] == first else (scaled,)
    return Data(stored, torch.tensor(labels), classes, place.name, found, notes)


def _subfolders(root: Path) -> list[Path]:
    with file_errors("read", root):
        return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def read_npz(path: Path, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Arrays of an ``.npz`` file; other compression than NumPy's, or far more content than file, is refused."""
    with open_file(path, _LARGEST_NPZ) as file:
        most = max(1 << 26, _MOST_INFLATED * os.fstat(file.fileno()).st_size)
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                usual = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                if not usual or info.file_size > most:
                    raise ValueError(f"{info.filename} is compressed too far; save it uncompressed")
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]


def _is_pair(data: Any) -> bool:
    """Whether data are inputs and labels; list(loader) with two batches [x, y] is a list of two as well."""
    if not isinstance(data, tuple | list) or len(data) != 2 or isinstance(data[0], tuple | Mapping):
        return False
    return not all(
        isinstance(part, list) and len(part) == 2 and isinstance(part[1], Tensor) and part[1].dim() == 1
        for part in data
    )


def _keys(names: Iterable[str]) -> tuple[str, str]:
    """The names of the image and of the label among those of columns or entries."""
    image, label = (next((key for key in keys if key in names), None) for keys in (_IMAGE_KEYS, _LABEL_KEYS))
    if image is None or label is None:
        raise InputError(
            f"data has the columns {list(names)}; rename the inputs to image and the labels to label"
        )
    return image, label


def _collected(data: Any, limit: int | None) -> Data:
    """Pairs from a loader (batches) or a data set (single inputs), read once and in order."""
    inner = getattr(data, "dataset", data)
    single = isinstance(data, torch.utils.data.Dataset)
    x: list[Tensor] = []
    y: list[Tensor] = []
    if isinstance(data, Mapping | np.generic) or not (
        hasattr(data, "__iter__") or hasattr(data, "__getitem__")
    ):
        raise InputError(f"data is a {type(data).__name__}; give {_KINDS}")
    indexed = single and hasattr(data, "__len__")
    for number, item in enumerate((data[index] for index in range(len(data))) if indexed else data):
        if isinstance(item, Mapping):
            one, label = (item[key] for key in _keys(item))
        elif isinstance(item, tuple | list) and len(item) == 2:
            one, label = item
        else:
            raise InputError(f"item {number} of data is a {type(item).__name__}; it must be a pair (x, y)")
        batched = not single and np.ndim(label) == 1
        x.append(_tensor(one) if batched else _tensor(one).unsqueeze(0))
        y.append(_labels(label if batched else [label]))
        if len(x[-1]) != len(y[-1]):
            raise InputError(f"item {number} of data has {len(x[-1])} inputs and {len(y[-1])} labels")
        if limit is not None and sum(map(len, y)) >= limit:
            break
    if not x:
        raise InputError("data is empty; give at least one input")
    kinds = sorted({(tuple(part.shape[1:]), str(part.dtype)) for part in x})
    if len(kinds) > 1:
        raise InputError(f"data has inputs of shape and type {kinds[0]} and {kinds[1]}; all must agree")
    names = getattr(inner, "classes", None)
    classes = tuple(map(str, names)) if isinstance(names, list | tuple) else ()
    name = inner.name if isinstance(inner, Data) else type(data).__name__.lower() if single else "loader"
    return _from_arrays(torch.cat(x), torch.cat(y), name, classes, str(getattr(inner, "split", "")))


def _from_arrays(x: Any, y: Any, name: str, classes: tuple[str, ...] = (), split: str = "") -> Data:
    """The one place that decides on types and axes."""
    inputs, labels, notes = _tensor(x), _labels(y), []
    shape = tuple(inputs.shape)
    if len(shape) < 2 or len(inputs) != len(labels):
        raise InputError(f"x has shape {shape} and y ({len(labels)},); give inputs [n, ...] and labels [n]")
    if len(shape) == 4 and shape[3] in _CHANNELS and shape[1] not in _CHANNELS:
        inputs = inputs.permute(0, 3, 1, 2).contiguous()
        notes.append(f"x has shape {shape}, channels last; it was read as {tuple(inputs.shape)}")
    if inputs.dtype == torch.uint8:
        inputs = inputs.unsqueeze(1) if inputs.dim() == 3 else inputs
        notes.append("x is uint8; it was divided by 255")
    elif not inputs.is_floating_point():
        raise InputError(f"x has type {inputs.dtype}; give floating point, or uint8 for images in 0..255")
    # Tensors in float64 are meant so; in NumPy it is what one gets without asking.
    elif inputs.dtype != torch.float64 or not isinstance(x, Tensor):
        inputs = inputs.float()
    return Data(inputs, labels, classes, name, split if split in SPLITS else "unknown", tuple(notes))


def _tensor(item: Any) -> Tensor:
    """One input, or a batch of them, as a tensor on the CPU."""
    if isinstance(item, Tensor):
        if not is_dense(item):
            kind = f"{item.layout} tensor of {item.dtype} on {item.device}"
            raise InputError(f"data holds a {kind}; it must be dense and real")
        found = item.detach().cpu()
        # A tensor of inference mode cannot take part in autograd; its copy can.
        return found.clone() if found.is_inference() else found
    try:
        array = np.asarray(item)
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError, RuntimeError):  # the last one from tensors inside
        name = type(item).__name__
        raise InputError(f"data holds a {name}; inputs must be tensors, arrays or images") from None


def _labels(y: Any) -> Tensor:
    try:
        found = _tensor(y)
    except InputError:
        raise InputError(f"labels are {y!r:.80}; give class numbers, integers from 0 on") from None
    if found.dim() == 2 and found.shape[1] == 1:
        found = found.squeeze(1)
    if found.dim() != 1 or found.is_floating_point() or found.dtype == torch.bool:
        hint = ", e.g. y.argmax(1) of one-hot labels" if found.dim() == 2 else ""
        raise InputError(f"y has shape {tuple(found.shape)} and type {found.dtype}; give integers [n]{hint}")
    return found.to(torch.int64)
