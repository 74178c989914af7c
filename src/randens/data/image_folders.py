"""Images in folders, one subfolder per class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from randens.core.errors import FileError, InputError
from randens.core.progress import Progress, silent
from randens.data.images import SPLITS, ImageData, from_arrays

__all__ = ["image_folder"]

_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
_MODES = {1: "L", 3: "RGB"}


def image_folder(
    path: str | os.PathLike[str],
    *,
    split: str = "train",
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    convert: bool = False,
    progress: Progress | None = None,
) -> ImageData:
    """Data from `path/<class>/<image>`; classes and images in alphabetical order.

    Parameters
    ----------
    path : str or path
        With one folder of images per class.
    split, progress
        As for `from_dataset`.
    size : (int, int), optional
        Height and width to scale to; without it all images must have one size.
    channels : int, optional
        1 (grey) or 3 (colour); the first image's by default.
    convert : bool
        Convert images of another kind instead of refusing them.

    Returns
    -------
    ImageData
        In memory.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> root = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (4, 4)).save(root / name / "1.png")
    >>> image_folder(root).classes
    ('cat', 'dog')
    """
    root = Path(path)
    if not root.is_dir():
        raise FileError(f"{root} is not a folder; give one with a subfolder for every class")
    if channels not in (None, 1, 3):
        raise InputError(f"channels={channels!r} must be 1 (grey), 3 (colour) or None")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise InputError(f"size={size!r} must be (height, width), both positive")
    folders = sorted(
        folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")
    )
    classes = [folder.name for folder in folders]
    if classes and set(classes) <= {*SPLITS, "val"}:
        raise InputError(
            f"{root} holds the splits {', '.join(classes)}; read them one by one, as {root / classes[0]}"
        )
    if len(classes) < 2:
        found = f"the only class {classes[0]!r}" if classes else "no subfolder"
        raise FileError(f"{root} holds {found}; a classifier needs at least two, each in its own subfolder")
    files = [(file, label) for label, folder in enumerate(folders) for file in _images(folder)]
    report = progress or silent
    images: list[torch.Tensor] = []
    for index, (file, _) in enumerate(files):
        image = _read(file, size, channels, convert)
        if images and image.shape != images[0].shape:
            (h, w), (height, width) = image.shape[1:], images[0].shape[1:]
            raise FileError(
                f"{file} is {h}×{w} pixels, but {files[0][0]} is {height}×{width}; pass size=(height, width) to scale "
                "all"
            )
        channels = image.shape[0]
        images.append(image)
        report(f"read {root.name}", index + 1, len(files))
    labels = torch.tensor([label for _, label in files])
    return from_arrays(torch.stack(images), labels, split=split, classes=classes, name=root.name)


def _images(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
    if not files:
        raise FileError(
            f"{folder} holds no images ({', '.join(sorted(_SUFFIXES))}); add some or remove the folder"
        )
    return files


def _read(file: Path, size: tuple[int, int] | None, channels: int | None, convert: bool) -> torch.Tensor:
    """One image as uint8 [channels, h, w]."""
    try:
        with Image.open(file) as picture:
            wanted = _MODES[channels] if channels else ("L" if picture.mode in ("1", "L", "LA") else "RGB")
            if picture.mode != wanted and not convert:
                kind = "grey" if wanted == "RGB" and picture.mode in ("1", "L", "LA") else f"{picture.mode}"
                expected = "colour (RGB)" if wanted == "RGB" else "grey (L)"
                raise FileError(
                    f"{file} is {kind} where {expected} is expected; convert it, or pass convert=True"
                )
            pixels = picture.convert(wanted)
            if size is not None and pixels.size != (size[1], size[0]):
                pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            array = np.array(pixels, dtype=np.uint8)
    except FileError:
        raise
    # Pillow raises OSError, which UnidentifiedImageError is, and others where a file is damaged.
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise FileError(f"{file} cannot be read as an image ({error}); replace or remove it") from error
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
