"""Labelled inputs that carry their split, so that nothing can be chosen on test data by accident."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from randens.core.devices import is_dense
from randens.core.errors import FileError, InputError, expect, number, shown, typed, whole
from randens.core.files import file_errors, read_file

SPLITS = ("train", "validation", "test")
Rows = slice | Sequence[int] | npt.NDArray[Any] | Tensor
# By content, not by name: other formats of Pillow start programs, or are rare enough to be badly tested.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
_LARGEST_IMAGE = 1 << 26
_MOST_PIXELS = 1 << 25


@dataclass(frozen=True)
class ImageFiles:
    """Image files as uint8 [n, channels, height, width]: indexing decodes the files that it names."""

    files: tuple[Path, ...]
    size: tuple[int, int]
    channels: int
    scale: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all images together."""
        return (len(self.files), self.channels, *self.size)

    def __getitem__(self, rows: int | slice | Tensor) -> Tensor:
        if not isinstance(rows, int):
            chosen = self.subset(rows)
            found = torch.empty(chosen.shape, dtype=torch.uint8)
            for index in range(len(found)):
                found[index] = chosen[index]
            return found
        pixels = read_image(self.files[rows], self.channels, self.size if self.scale else None)
        if pixels.shape[1:] != self.size:
            sizes = f"of {tuple(pixels.shape[1:])} pixels, but the first image is of {self.size}"
            raise FileError(f"{self.files[rows]} is {sizes}; pass size=(height, width)")
        return pixels

    def subset(self, rows: slice | Tensor) -> ImageFiles:
        """The files of some rows, unread."""
        indices = range(len(self.files))[rows] if isinstance(rows, slice) else rows.tolist()
        return replace(self, files=tuple(self.files[index] for index in indices))


def read_image(file: Path, channels: int | None = None, size: tuple[int, int] | None = None) -> Tensor:
    """One image as uint8 [channels, h, w]; without `channels` gray (1) or color (3), as it is."""
    content = read_file(file, _LARGEST_IMAGE)
    with file_errors("read", file), Image.open(io.BytesIO(content), formats=_FORMATS) as image:
        if image.width * image.height > _MOST_PIXELS:
            raise ValueError(f"it has {image.width}×{image.height} pixels; at most {_MOST_PIXELS} are read")
        gray = image.mode in ("1", "L", "LA")
        if channels == 1 and not gray:
            raise ValueError("it is in color, but the first image is gray; convert one of them")
        pixels = image.convert("L" if gray and channels != 3 else "RGB")
        if size is not None:
            pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.atleast_3d(np.array(pixels)).transpose(2, 0, 1).copy())


@dataclass(frozen=True, eq=False, repr=False)
class Data(Dataset[tuple[Tensor, Tensor]]):
    """n labelled inputs; ``data[rows]`` gives ``(x, y)``, float32 and int64, of those rows only.

    Images are stored as bytes, or stay in their files until rows are asked for; a torch ``DataLoader`` takes the data,
    too. `split` is ``"train"``, ``"validation"``, ``"test"`` or ``"unknown"``; `notes` says what was converted.

    >>> data = Data(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    >>> x, y = data[:2]
    >>> x.dtype, data.shape
    (torch.float32, (1, 8, 8))
    """

    stored: Tensor | ImageFiles
    y: Tensor
    classes: tuple[str, ...] = ()
    name: str = "tensors"
    split: str = "unknown"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        stored, y = self.stored, self.y
        expect("classes", self.classes, tuple)
        dense = all(
            isinstance(one, ImageFiles) or (isinstance(one, Tensor) and is_dense(one)) for one in (stored, y)
        )
        if (
            not dense
            or len(stored.shape) < 2
            or (stored.shape[0],) != tuple(y.shape)
            or y.dtype != torch.int64
        ):
            kinds = (
                f"{getattr(one, 'dtype', type(one).__name__)} {list(np.shape(one))}" for one in (stored, y)
            )
            raise InputError(
                f"inputs and labels are {' and '.join(kinds)}; give tensors [n, ...] and int64 [n]"
            )

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Data({self.name} {self.split}, {len(self)} × {self.shape}, {len(self.classes)} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, as `randens.models.create(input_shape=...)` takes it."""
        return tuple(self.stored.shape[1:])

    @property
    def x(self) -> Tensor:
        """All inputs as floating-point numbers, converted at every access: take rows of large data sets."""
        return self[:][0]

    def __getitem__(self, rows: int | Rows) -> tuple[Tensor, Tensor]:
        """Copies of the inputs (images in [0, 1]) and labels of some rows."""
        chosen = rows if isinstance(rows, int | slice) else self._indices(rows)
        x = self.stored[chosen]
        # A copy, so that in-place operations on a batch do not change the data.
        x = x.clone() if x.is_floating_point() else x.to(torch.float32).div_(255)
        return x, self.y[chosen].clone()

    def subset(self, rows: Rows) -> Data:
        """The data at `rows`, in that order, of the same split."""
        chosen = rows if isinstance(rows, slice) else self._indices(rows)
        stored = self.stored.subset(chosen) if isinstance(self.stored, ImageFiles) else self.stored[chosen]
        return replace(self, stored=stored, y=self.y[chosen])

    @typed(generator=torch.Generator | None)
    def batches(
        self, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (x, y) of at most `batch_size` inputs, in order, or shuffled by `generator` if given."""
        whole("batch_size", batch_size)
        order = None if generator is None else torch.randperm(len(self), generator=generator)
        for start in range(0, len(self), batch_size):
            rows = slice(start, start + batch_size)
            yield self[rows if order is None else order[rows]]

    def counts(self) -> Tensor:
        """How many inputs each class has, int64 [classes]."""
        return torch.bincount(self.y, minlength=len(self.classes))

    def mean_std(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of every channel (1 of a constant one), for `randens.models.create`."""
        total, squares = torch.zeros(2, self.shape[0], dtype=torch.float64)
        for x, _ in self.batches(1024):
            values = x.double().transpose(0, 1).flatten(1)
            total += values.sum(1)
            squares += values.square().sum(1)
        pixels = len(self) * math.prod(self.shape[1:])
        mean = total / pixels
        std = (squares / pixels - mean.square()).clamp(min=0).sqrt()
        return mean.tolist(), torch.where(std > 1e-6, std, 1.0).tolist()

    def hold_out(self, share: float = 0.1, *, seed: int = 0) -> tuple[Data, Data]:
        """Part (train, validation): `share` of every class, at least one input, is held out."""
        if self.split in ("validation", "test"):
            raise InputError(f"only training data can be split, and this is {self.split} data")
        if not 0 < number("share", share) < 1:
            raise InputError(f"share is {shown(share)}; it must lie between 0 and 1")
        counts = self.counts().tolist()
        if min(counts) < 2:
            raise InputError(
                f"class {counts.index(min(counts))} has {min(counts)} inputs; holding out needs 2 in every class"
            )
        held = [min(count - 1, max(1, round(share * count))) for count in counts]
        kept, out = held_out(self.y.numpy(), held, seed)
        return replace(self.subset(kept), split="train"), replace(self.subset(out), split="validation")

    def _indices(self, rows: Sequence[int] | npt.NDArray[Any] | Tensor) -> Tensor:
        try:
            chosen = np.arange(len(self))[np.asarray(rows) if len(rows) else slice(0)]
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"rows do not fit {len(self)} inputs: {error}") from error
        if chosen.ndim != 1:
            raise InputError(f"rows has shape {chosen.shape}; give indices or a mask [n]")
        return torch.from_numpy(chosen)


def held_out(
    labels: npt.NDArray[Any], per_class: Sequence[int], seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Positions (kept, held out) with `per_class[c]` inputs of every class c held out, both ascending."""
    # Ranked by a hash, not by a random generator: the split is the same in every version of every library.
    out: list[int] = []
    for label, count in enumerate(per_class):
        positions = np.flatnonzero(labels == label).tolist()
        positions.sort(key=lambda position: hashlib.sha256(f"{seed}:{position}".encode()).digest())
        out += positions[:count]
    mask = np.zeros(len(labels), dtype=bool)
    mask[out] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def called(name: str, split: str) -> str:
    """What to call some data in a sentence."""
    if split != "unknown":
        return f"{name} {split}"
    return f"the given {name}" if name in ("tensors", "arrays", "loader") else f"{name} (split unknown)"


@typed(x=Tensor, bounds=tuple | None)
def check_range(x: Tensor, bounds: tuple[float, float] | None) -> None:
    """Refuse inputs outside the box, and name the likely reason."""
    if bounds is None or not x.numel():
        return
    low, high = float(x.min()), float(x.max())
    if low != low:
        raise InputError("x holds NaN; every input must be a number")
    if low >= bounds[0] and high <= bounds[1]:
        return
    remedy = "scale them, or give bounds=(lowest, highest), or bounds=None for tables"
    if bounds == (0.0, 1.0) and low >= 0 and high <= 255:
        remedy = "these look like bytes, so divide them by 255"
    elif bounds == (0.0, 1.0) and -10 < low < 0 and high < 10:
        remedy = "these look normalized already, so give images in [0, 1] and preprocessing=(mean, std)"
    box = f"[{bounds[0]:g}, {bounds[1]:g}]"
    raise InputError(f"x ranges over [{low:g}, {high:g}], and inputs must lie in {box}: {remedy}")
