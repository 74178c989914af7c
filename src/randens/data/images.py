"""Labelled images that carry their split, so that nothing can be chosen on test data by accident."""

from __future__ import annotations

import builtins
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from randens.core.errors import InputError, unknown, whole
from randens.core.progress import Progress, silent

__all__ = ["SPLITS", "ImageData", "from_arrays", "from_dataset"]

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """n labelled images in [0, 1].

    Indexing converts only the selected images to float32.

    Parameters
    ----------
    stored : Tensor
        uint8 (0 to 255) or float32 (0 to 1), [n, channels, height, width] or [n, features].
    y : Tensor
        Labels, int64 [n].
    classes : tuple of str
        Their names.
    name, split : str
        Where the images come from; `split` is one of `SPLITS`.

    Examples
    --------
    >>> data = from_arrays(np.zeros((4, 1, 8, 8), dtype=np.uint8), [0, 1, 0, 1])
    >>> x, y = data[:2]
    >>> x.dtype, tuple(x.shape), y.tolist()
    (torch.float32, (2, 1, 8, 8), [0, 1])
    """

    stored: torch.Tensor
    y: torch.Tensor
    classes: tuple[str, ...]
    name: str
    split: str

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"ImageData({self.name} {self.split}, {len(self)} × {self.shape}, {len(self.classes)} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image, as `randens.models.create(input_shape=...)` takes it."""
        return tuple(self.stored.shape[1:])

    @property
    def x(self) -> torch.Tensor:
        """All images as float32 in [0, 1].  Converted at every access if stored as uint8: for large data sets
        take parts, by `data[indices]` or `data.batches(...)`."""
        return _float(self.stored)

    def float(self) -> ImageData:
        """The same data stored as float32: four times the memory, no conversion later."""
        return replace(self, stored=_float(self.stored))

    def __getitem__(
        self, indices: int | slice | Sequence[int] | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (float32 in [0, 1]) and labels at `indices`."""
        if isinstance(indices, slice | int):
            # A copy, so that in-place operations on a batch do not change the data.
            return _float(self.stored[indices].clone()), self.y[indices].clone()
        chosen = self._indices(indices)
        return _float(self.stored[chosen]), self.y[chosen]

    def subset(self, indices: slice | Sequence[int] | torch.Tensor) -> ImageData:
        """The images at `indices`, in that order, of the same split."""
        chosen = indices if isinstance(indices, slice) else self._indices(indices)
        return replace(self, stored=self.stored[chosen], y=self.y[chosen])

    def batches(
        self, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs (x, y) of at most `batch_size` images, in order, or shuffled by `generator` if given."""
        whole("batch_size", batch_size)
        order = None if generator is None else torch.randperm(len(self), generator=generator)
        for start in range(0, len(self), batch_size):
            yield self[
                slice(start, start + batch_size) if order is None else order[start : start + batch_size]
            ]

    def counts(self) -> torch.Tensor:
        """How many images each class has, int64 [classes]."""
        return torch.bincount(self.y, minlength=len(self.classes))

    def mean_std(self) -> tuple[list[builtins.float], list[builtins.float]]:
        """Mean and standard deviation of every channel, for `randens.models.create(mean=..., std=...)`.

        A constant channel gets the standard deviation 1.
        """
        n, channels = len(self), self.stored.shape[1]
        total, squares = torch.zeros(2, channels, dtype=torch.float64)
        for x, _ in self.batches(1024):
            values = x.double().transpose(0, 1).flatten(1)
            total += values.sum(1)
            squares += values.square().sum(1)
        pixels = n * math.prod(self.shape[1:])
        mean = total / pixels
        std = (squares / pixels - mean.square()).clamp(min=0).sqrt()
        return mean.tolist(), torch.where(std > 1e-6, std, 1.0).tolist()

    def hold_out(self, share: builtins.float = 0.1, *, seed: int = 0) -> tuple[ImageData, ImageData]:
        """Part (train, validation): `share` of every class, at least one image, is held out."""
        if self.split != "train":
            raise InputError(f"only training data can be split, and this is {self.split} data")
        if not 0 < share < 1:
            raise InputError(f"share={share!r} must lie between 0 and 1")
        counts = self.counts().tolist()
        if min(counts) < 2:
            few = self.classes[counts.index(min(counts))]
            raise InputError(
                f"class {few!r} has {min(counts)} images; holding out needs 2 or more in every class"
            )
        held = [min(count - 1, max(1, round(share * count))) for count in counts]
        kept, out = held_out(self.y.numpy(), held, seed)
        validation = replace(self.subset(torch.from_numpy(out)), split="validation")
        return self.subset(torch.from_numpy(kept)), validation

    def _indices(self, indices: Sequence[int] | torch.Tensor) -> torch.Tensor:
        chosen = torch.as_tensor(indices)
        if chosen.dtype == torch.bool:
            if chosen.shape != self.y.shape:
                raise InputError(f"indices: a mask of shape {tuple(chosen.shape)} for {len(self)} images")
            return chosen.nonzero().flatten()
        if chosen.numel() == 0:
            return torch.zeros(0, dtype=torch.int64)
        low, high = int(chosen.min()), int(chosen.max())
        if chosen.dtype.is_floating_point or chosen.ndim != 1 or low < -len(self) or high >= len(self):
            raise InputError(
                f"indices run from {low} to {high}; they must be integers from 0 to {len(self) - 1}"
            )
        return chosen


def from_arrays(
    x: npt.ArrayLike | torch.Tensor,
    y: npt.ArrayLike | torch.Tensor,
    *,
    split: str = "train",
    classes: int | Sequence[str] | None = None,
    name: str = "arrays",
) -> ImageData:
    """Data from NumPy arrays or tensors.

    Parameters
    ----------
    x : array or Tensor
        uint8 (0 to 255) or floating point (0 to 1), of shape [n, channels, height, width], [n, height, width] (one
        channel) or [n, features].
    y : array or Tensor
        Integer labels [n].
    split : str
        Which split these are.
    classes : int or sequence of str, optional
        Their number or names; those of the labels present by default.
    name : str
        What to call the data.

    Returns
    -------
    ImageData
        On the CPU.

    Examples
    --------
    >>> from_arrays(np.zeros((2, 8, 8), dtype=np.uint8), [0, 1]).shape
    (1, 8, 8)
    """
    images, labels = (
        (values if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))).detach().cpu()
        for values in (x, y)
    )
    if split not in SPLITS:
        unknown("split", split, SPLITS)
    if images.ndim == 3:
        images = images.unsqueeze(1)
    if images.ndim not in (2, 4) or images.numel() == 0:
        raise InputError(
            f"x has shape {tuple(images.shape)}; valid: [n, channels, height, width], [n, height, width] or "
            "[n, features], none of them empty"
        )
    if images.ndim == 4 and images.shape[-1] in (1, 3) and images.shape[1] > 4:
        raise InputError(f"x has shape {tuple(images.shape)}, channels last; pass x.transpose(0, 3, 1, 2)")
    if images.dtype != torch.uint8:
        if not images.dtype.is_floating_point:
            raise InputError(f"x has type {images.dtype}; valid: uint8 (0 to 255) or floating point (0 to 1)")
        images = images.float()
        low, high = float(images.min()), float(images.max())
        if not (low >= 0 and high <= 1):
            raise InputError(f"x ranges from {low:g} to {high:g}; scale floating-point images to [0, 1]")
    if labels.shape != images.shape[:1]:
        raise InputError(
            f"y has shape {tuple(labels.shape)}; for {len(images)} images it must be ({len(images)},)"
        )
    if labels.dtype.is_floating_point or labels.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise InputError(f"y has type {labels.dtype}; labels must be integers from 0")
    labels = labels.long()
    if classes is None:
        classes = int(labels.max()) + 1
    label_names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(map(str, classes))
    if len(label_names) < 2:
        raise InputError(f"classes={label_names} names fewer than two; a classifier needs at least two")
    count = len(label_names)
    if bool((outside := (labels < 0) | (labels >= count)).any()):
        wrong = int(outside.nonzero()[0])
        raise InputError(
            f"y[{wrong}] is {int(labels[wrong])}; labels of {count} classes run from 0 to {count - 1}"
        )
    return ImageData(images.contiguous(), labels, label_names, name, split)


def from_dataset(
    dataset: Dataset[Any],
    *,
    split: str = "train",
    classes: int | Sequence[str] | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> ImageData:
    """Data from any map-style torch `Dataset` whose items are (image, label).

    Images may be tensors or arrays as `from_arrays` takes them, one each, or Pillow images.  Random
    transforms should be off: every item is read once.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        Map-style, of pairs (image, label).
    split, classes, name
        As for `from_arrays`; classes and name are the data set's own by default.
    progress : callable, optional
        ``progress(task, done, total)``.

    Returns
    -------
    ImageData
        In memory.

    Examples
    --------
    >>> pairs = torch.utils.data.TensorDataset(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]))
    >>> len(from_dataset(pairs))
    2
    """
    try:
        count = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        title = type(dataset).__name__
        raise InputError(f"dataset {title} has no length; only map-style datasets can be read") from None
    if count == 0:
        raise InputError(f"dataset {type(dataset).__name__} is empty")
    title = name or type(dataset).__name__.lower()
    report = progress or silent
    images: list[torch.Tensor] = []
    labels: list[int] = []
    for index in range(count):
        try:
            item, label = dataset[index]
            images.append(_image(item))
            labels.append(int(label))
        except (TypeError, ValueError) as error:
            raise InputError(f"dataset[{index}] is not a pair (image, label): {error}") from error
        if images[-1].shape != images[0].shape or images[-1].dtype != images[0].dtype:
            raise InputError(
                f"dataset[{index}] has shape {tuple(images[-1].shape)} and type {images[-1].dtype}, but "
                f"dataset[0] has {tuple(images[0].shape)} and {images[0].dtype}; all images must agree"
            )
        report(f"read {title}", index + 1, count)
    if classes is None:
        classes = getattr(dataset, "classes", None)
    return from_arrays(torch.stack(images), torch.tensor(labels), split=split, classes=classes, name=title)


def held_out(
    labels: npt.NDArray[Any], per_class: Sequence[int], seed: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Positions (kept, held out) with `per_class[c]` images of every class c held out, both ascending.

    Images are ranked by a hash of (seed, position) rather than by a random generator, so that the split is
    the same on every machine and in every version of every library.
    """
    out: list[int] = []
    for label, count in enumerate(per_class):
        positions = np.flatnonzero(labels == label).tolist()
        positions.sort(key=lambda position: hashlib.sha256(f"{seed}:{position}".encode()).digest())
        out += positions[:count]
    mask = np.zeros(len(labels), dtype=bool)
    mask[out] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _float(stored: torch.Tensor) -> torch.Tensor:
    return stored.to(torch.float32).div_(255) if stored.dtype == torch.uint8 else stored


def _image(item: Any) -> torch.Tensor:
    """One item's image as a tensor; Pillow images and other [h, w, 3] uint8 arrays become [3, h, w]."""
    if isinstance(item, torch.Tensor):
        return item
    array = np.asarray(item)
    if array.dtype == object:
        raise TypeError(f"{type(item).__name__} is not an image")
    last = array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] in (1, 3) and array.shape[0] > 4
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1) if last else array))
