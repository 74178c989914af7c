"""Inputs and labels as tensors, from arrays, data sets, loaders, files or names.

Conversions that change values or axes (bytes to [0, 1], channels last to first) are made only if they are
unambiguous, and `Inputs.notes` lists them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from randens.core.errors import FileError, InputError, unknown, whole
from randens.data.cache import load, names
from randens.data.image_folders import image_folder
from randens.data.images import SPLITS, ImageData

__all__ = ["Inputs", "as_inputs", "called", "check_range"]

_CHANNELS = (1, 3, 4)
_IMAGE_KEYS = ("pixel_values", "image", "images", "img", "x", "inputs", "features", "data")
_LABEL_KEYS = ("labels", "label", "y", "target", "targets", "fine_label")
_TAKEN = "(x, y), a Dataset, a DataLoader, a Hugging Face data set, ImageData or the name of a data set"
_EMPTY = "data is empty; give at least one input"


@dataclass(frozen=True)
class Inputs:
    """n inputs with labels in memory, on the CPU.

    Parameters
    ----------
    x : Tensor
        Floating point [n, ...].
    y : Tensor
        int64 [n].
    name, split : str
        The name of the data and the split; ``"unknown"`` if not given.
    classes : int or None
        The number of classes that the data name.
    notes : tuple of str
        What was converted, a sentence each.

    Examples
    --------
    >>> found = as_inputs((np.zeros((2, 8, 8, 3), dtype=np.uint8), [0, 1]))
    >>> tuple(found.x.shape), len(found.notes)
    ((2, 3, 8, 8), 2)
    """

    x: Tensor
    y: Tensor
    name: str
    split: str
    classes: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)


def as_inputs(data: Any, *, split: str = "test", limit: int | None = None) -> Inputs:
    """Convert data of any kind to inputs and labels.

    Parameters
    ----------
    data : tuple, Dataset, DataLoader, datasets.Dataset, ImageData, str or path
        ``(x, y)`` of tensors, NumPy arrays or lists; a torch data set or loader of pairs (or of mappings with an
        image and a label); a Hugging Face ``datasets`` object; a name that `randens.data.load` knows; an ``.npz``
        file with ``x`` and ``y``; a folder with one folder of images per class.
    split : str
        Which split of a named data set.
    limit : int, optional
        Use only this many inputs, from the first on.

    Returns
    -------
    Inputs
        Tensors on the CPU. uint8 becomes float in [0, 1] and channels last become channels first; `notes` says so.

    Examples
    --------
    >>> as_inputs((np.zeros((3, 4), dtype=np.float32), [0, 1, 0])).y.tolist()
    [0, 1, 0]
    """
    if limit is not None:
        whole("limit", limit)
    file = None
    if isinstance(data, (str, os.PathLike)):
        file, data = Path(data).name, _named(data, split)
    if isinstance(data, ImageData):
        part = data if limit is None else data.subset(slice(0, limit))
        return Inputs(part.x, part.y, part.name, part.split, len(part.classes))
    if isinstance(data, Mapping) and all(
        not isinstance(v, (Tensor, np.ndarray, list)) for v in data.values()
    ):
        raise InputError(f"data holds the splits {', '.join(map(str, data))}; choose one, e.g. data['test']")
    if all(hasattr(data, name) for name in ("column_names", "features", "__getitem__")):
        x, y, name, found, classes = _hugging_face(data, limit)
    elif _is_pair(data):
        kind = file or ("tensors" if isinstance(data[0], Tensor) else "arrays")
        x, y, name, found, classes = data[0], data[1], kind, "unknown", None
    else:
        x, y, name, found, classes = _collected(data, limit)
    inputs, notes = _inputs(x)
    labels = _labels(y)
    if len(inputs) != len(labels):
        raise InputError(
            f"data has {len(inputs)} inputs and {len(labels)} labels; there must be as many of both"
        )
    if not len(labels):
        raise InputError(_EMPTY)
    return Inputs(inputs[:limit], labels[:limit], name, found, classes, notes)


def called(name: str, split: str) -> str:
    """What to call some data in a sentence.

    Parameters
    ----------
    name, split : str
        As in `Inputs`.

    Returns
    -------
    str
        Without a split where none is known.

    Examples
    --------
    >>> called("digits", "test"), called("tensors", "unknown"), called("mine.npz", "unknown")
    ('digits test', 'the given tensors', 'mine.npz')
    """
    if split != "unknown":
        return f"{name} {split}"
    return f"the given {name}" if name in ("tensors", "arrays", "loader") else name


def _named(data: str | os.PathLike[str], split: str) -> Any:
    text, path = os.fspath(data), Path(data)
    if text in names():
        return load(text, split)
    if path.suffix == ".npz":
        if not path.is_file():
            raise InputError(f"{path} does not exist; give an .npz file with the arrays x and y")
        try:
            with np.load(path, allow_pickle=False) as content:
                return content["x"], content["y"]
        except (KeyError, ValueError, OSError) as error:
            raise FileError(f"{path} does not hold two arrays named x and y ({error})") from error
    if path.is_dir():
        return image_folder(path, split=split if split in SPLITS else "test")
    return unknown("data set", text, names())


def _is_pair(data: Any) -> bool:
    """Whether data are inputs and labels; list(loader) with two batches [x, y] is a list of two as well."""
    if not isinstance(data, (tuple, list)) or len(data) != 2 or isinstance(data[0], (tuple, Mapping)):
        return False
    return not all(
        isinstance(part, list) and len(part) == 2 and isinstance(part[1], Tensor) and part[1].dim() == 1
        for part in data
    )


def _hugging_face(data: Any, limit: int | None) -> tuple[Any, Any, str, str, int | None]:
    columns = list(data.column_names)
    classed = [c for c in columns if hasattr(data.features[c], "names")]
    label = next((c for c in [*classed, *_LABEL_KEYS] if c in columns), None)
    image = next((c for c in _IMAGE_KEYS if c in columns), None)
    if label is None or image is None:
        raise InputError(
            f"data has the columns {columns}; an image column ({', '.join(_IMAGE_KEYS[:4])}) and a label column "
            "(label, labels) are needed: rename them with data.rename_column"
        )
    part = data if limit is None else data.select(range(min(limit, len(data))))
    x = [_array(item) for item in part.with_format("numpy")[image]]
    classes = len(data.features[label].names) if label in classed else None
    found = str(getattr(data, "split", None) or "unknown")
    about = getattr(data, "info", None)
    name = getattr(about, "dataset_name", None) or getattr(about, "builder_name", None) or "datasets"
    values = _stacked(x)
    # Bytes come back as wider integers.
    if not values.is_floating_point() and int(values.min()) >= 0 and int(values.max()) <= 255:
        values = values.to(torch.uint8)
    return values, part[label][:], str(name), found if found in SPLITS else "unknown", classes


def _collected(data: Any, limit: int | None) -> tuple[Any, Any, str, str, int | None]:
    """Pairs from a loader (batches) or a data set (single inputs), read once and in order."""
    inner = getattr(data, "dataset", data)
    single = isinstance(data, torch.utils.data.Dataset)
    x: list[Tensor] = []
    y: list[int] = []
    batched = False
    for number, item in enumerate(_items(data)):
        one, label = _split_item(item, number)
        batched = not single and np.ndim(label) == 1
        x.append(_array(one))
        try:
            y.extend(_labels(label).tolist() if batched else [int(label)])
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"item {number} of data has the label {label!r}; labels are integers") from None
        if batched and len(x[-1]) != len(label):
            raise InputError(
                f"item {number} of data has {len(x[-1])} inputs and {len(label)} labels; there must be as many of both"
            )
        if limit is not None and len(y) >= limit:
            break
    if not x:
        raise InputError(_EMPTY)
    classes = getattr(inner, "classes", None)
    count = len(classes) if isinstance(classes, (list, tuple)) else None
    found = inner.split if isinstance(getattr(inner, "split", None), str) else "unknown"
    name = inner.name if isinstance(inner, ImageData) else type(data).__name__.lower() if single else "loader"
    values = torch.cat(x) if batched else _stacked(x)
    return values, y, name, found if found in SPLITS else "unknown", count


def _items(data: Any) -> Iterable[Any]:
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        return (data[index] for index in range(len(data)))
    try:
        return iter(data)
    except TypeError:
        raise InputError(f"data is a {type(data).__name__}; give {_TAKEN}") from None


def _split_item(item: Any, number: int) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        image, label = (
            next((item[k] for k in keys if k in item), None) for keys in (_IMAGE_KEYS, _LABEL_KEYS)
        )
        if image is not None and label is not None:
            return image, label
        raise InputError(
            f"item {number} of data has the keys {sorted(map(str, item))}; it needs an image and a label"
        )
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return item[0], item[1]
    raise InputError(
        f"item {number} of data is a {type(item).__name__}; it must be a pair (x, y), inputs with labels"
    )


def _array(item: Any) -> Tensor:
    """One input, or one batch of them, as a tensor."""
    if isinstance(item, Tensor):
        return item.detach().cpu()
    try:
        array = np.asarray(item)
        if array.dtype == object:
            raise TypeError
        return torch.from_numpy(np.array(array, order="C"))
    except (TypeError, ValueError):
        raise InputError(
            f"data holds a {type(item).__name__}; inputs must be tensors, arrays or images"
        ) from None


def _stacked(parts: list[Tensor]) -> Tensor:
    shapes = sorted({tuple(part.shape) for part in parts})
    if len(shapes) > 1:
        raise InputError(f"data has inputs of shapes {shapes[0]} and {shapes[1]}; all must agree")
    return torch.stack(parts)


def _inputs(x: Any) -> tuple[Tensor, tuple[str, ...]]:
    found = _array(x)
    notes = []
    if found.dim() < 2:
        raise InputError(f"x has shape {tuple(found.shape)}; it must be [n, ...], one row per input")
    if found.dim() == 4 and found.shape[-1] in _CHANNELS and found.shape[1] not in _CHANNELS:
        shape = tuple(found.shape)
        found = found.permute(0, 3, 1, 2).contiguous()
        notes.append(f"x has shape {shape}, channels last; it was read as {tuple(found.shape)}")
    if found.dtype == torch.uint8:
        if found.dim() == 3:
            found = found.unsqueeze(1)
        found = found.float().div_(255)
        notes.append("x is uint8; it was divided by 255")
    if not found.is_floating_point():
        raise InputError(
            f"x has type {found.dtype}; it must be floating point, or uint8 for images in 0..255"
        )
    if found.dtype in (torch.float16, torch.bfloat16) or (
        not isinstance(x, Tensor) and found.dtype == torch.float64
    ):
        found = found.float()
    return found, tuple(notes)


def _labels(y: Any) -> Tensor:
    found = _array(y)
    if found.dim() == 2 and found.shape[1] == 1:
        found = found.squeeze(1)
    if found.dim() != 1 or found.is_floating_point() or found.dtype == torch.bool or found.is_complex():
        raise InputError(f"y has shape {tuple(found.shape)} and type {found.dtype}; give integers [n]")
    return found.to(torch.int64)


def check_range(x: Tensor, bounds: tuple[float, float] | None) -> None:
    """Refuse inputs outside the box, and name the likely reason.

    Parameters
    ----------
    x : Tensor
        [n, ...].
    bounds : (float, float) or None
        The box; None: no box.

    Examples
    --------
    >>> check_range(torch.zeros(2, 3), (0.0, 1.0))
    """
    if bounds is None or not x.numel():
        return
    low, high = float(x.min()), float(x.max())
    if low != low:
        raise InputError("x holds NaN; every input must be a number")
    if low >= bounds[0] and high <= bounds[1]:
        return
    said = f"x ranges over [{low:g}, {high:g}], and inputs must lie in [{bounds[0]:g}, {bounds[1]:g}]"
    if bounds == (0.0, 1.0) and low >= 0 and high <= 255:
        raise InputError(f"{said}: these look like bytes, so divide them by 255")
    if bounds == (0.0, 1.0) and -10 < low < 0 and high < 10:
        raise InputError(
            f"{said}: these look normalised already, so give images in [0, 1] and preprocessing=(mean, std)"
        )
    raise InputError(f"{said}: scale them, or give bounds=(lowest, highest), or bounds=None for tables")
