"""Files of one's own: folders of images, decoded when they are asked for, and ``.npz``."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from randens.core.errors import FileError
from randens.core.files import file_errors, open_file, read_file

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
# By content, not by name: other formats of Pillow start programs, or are rare enough to be badly tested.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
_LARGEST_IMAGE = 1 << 26
_MOST_PIXELS = 1 << 25
_IN_MEMORY = 1 << 30
_LARGEST_NPZ = 1 << 36
_MOST_INFLATED = 100  # times the file's size, for arrays of more than 64 MiB


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
        if isinstance(rows, int):
            return self._decode(self.files[rows])
        chosen = self.subset(rows)
        found = torch.empty(chosen.shape, dtype=torch.uint8)
        for index, file in enumerate(chosen.files):
            found[index] = self._decode(file)
        return found

    def subset(self, rows: slice | Tensor) -> ImageFiles:
        """The files of some rows, unread."""
        indices = range(len(self.files))[rows] if isinstance(rows, slice) else rows.tolist()
        return replace(self, files=tuple(self.files[index] for index in indices))

    def _decode(self, file: Path) -> Tensor:
        pixels = read_image(file, self.channels, self.size if self.scale else None)
        if pixels.shape[1:] != self.size:
            found, first = ("×".join(map(str, size)) for size in (pixels.shape[1:], self.size))
            raise FileError(
                f"{file} is {found} pixels, but the first image is {first}; pass size=(height, width) to scale all"
            )
        return pixels


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


def read_classes(
    folders: Sequence[Path], size: tuple[int, int] | None
) -> tuple[Tensor | ImageFiles, Tensor, tuple[str, ...]]:
    """The images below each class's folder, decoded if they are not too many; their labels; notes."""
    files: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        with file_errors("read", folder):
            found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
        if not found:
            raise FileError(f"{folder} holds no images ({', '.join(_SUFFIXES)}); add some or remove it")
        files += found
        labels += [label] * len(found)
    channels, *first = read_image(files[0]).shape
    height, width = size or first
    note = f"images of {first[0]}×{first[1]} pixels were scaled to {height}×{width}"
    images = ImageFiles(tuple(files), (height, width), channels, size is not None)
    stored = images[:] if math.prod(images.shape) <= _IN_MEMORY else images
    return stored, torch.tensor(labels), () if [height, width] == first else (note,)


def read_npz(path: Path, names: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Arrays of an ``.npz`` file; other compression than NumPy's, or far more content than file, is refused."""
    with open_file(path, _LARGEST_NPZ) as file:
        most = max(1 << 26, _MOST_INFLATED * os.fstat(file.fileno()).st_size)
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"{info.filename} has another compression than deflate")
                if info.file_size > most:
                    raise ValueError(
                        f"{info.filename} unpacks to {info.file_size} bytes; save it uncompressed"
                    )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
