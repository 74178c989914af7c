"""Images in folders, one subfolder per class, decoded when they are asked for."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from randens.core.errors import FileError
from randens.core.files import file_errors, read_file

_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"))
# By content, not by name: other formats of Pillow start programs, or are rare enough to be badly tested.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
_LARGEST_FILE = 1 << 26
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

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: int | slice | Tensor) -> Tensor:
        if isinstance(rows, int):
            return self._decode(self.files[rows])
        chosen = self.subset(rows).files
        found = torch.empty((len(chosen), *self.shape[1:]), dtype=torch.uint8)
        for index, file in enumerate(chosen):
            found[index] = self._decode(file)
        return found

    def subset(self, rows: slice | Tensor) -> ImageFiles:
        """The files of some rows, unread."""
        indices = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
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
    content = read_file(file, _LARGEST_FILE)
    with file_errors("read", file), Image.open(io.BytesIO(content), formats=_FORMATS) as image:
        if image.width * image.height > _MOST_PIXELS:
            raise ValueError(f"it has {image.width}×{image.height} pixels; at most {_MOST_PIXELS} are read")
        gray = image.mode in ("1", "L", "LA")
        if channels == 1 and not gray:
            raise ValueError("it is in color, but the first image is gray; convert one of them")
        pixels = image.convert("L" if gray and channels != 3 else "RGB")
        if size is not None and pixels.size != (size[1], size[0]):
            pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        array = np.array(pixels, dtype=np.uint8)
    return torch.from_numpy(np.atleast_3d(array).transpose(2, 0, 1).copy())


def list_images(folder: Path) -> list[Path]:
    """The images below a folder, sorted; none is an error."""
    with file_errors("read", folder):
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES)
    if not files:
        raise FileError(f"{folder} holds no images ({', '.join(sorted(_SUFFIXES))}); add some or remove it")
    return files
