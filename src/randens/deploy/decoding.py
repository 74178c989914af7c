"""Decode request bodies: JSON, .npy and pictures. Sizes are compared with limits before memory is allocated."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from randens.core.errors import InputError
from randens.deploy.predictor import Bundle

__all__ = ["Decoder", "Refused"]

_JSON, _NPY = "application/json", "application/x-npy"
_PICTURES = {f"image/{name.lower()}": name for name in ("PNG", "JPEG", "BMP", "GIF", "WEBP")}

_PIXELS = 1 << 20  # of a picture, unless the model takes larger ones
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_LONGEST_HEADER = 1024
_LONGEST_NUMBER = 40  # characters of a number in JSON with its separators
_NUMBERS = re.compile(r"[-+.0-9eE,\[\] \t\r\n]*")  # no NaN, no true, no text
_SPACE = r"[ \t\r\n]{0,99}"
_BEGIN = re.compile(_SPACE.join(("", r"\{", r"\"inputs\"", ":", r"\[", "")))
_NEXT = re.compile(f"{_SPACE},{_SPACE}")
_END = re.compile(_SPACE.join(("", r"\]", r"\}", r"\Z")))


class Refused(InputError):
    """A request that is not accepted, with the HTTP status that says why."""

    def __init__(self, reason: str, status: int = 422) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Decoder:
    """Turns bodies into arrays [n, *input_shape] of a bundle, with n at most `batch`."""

    bundle: Bundle
    batch: int

    @property
    def types(self) -> tuple[str, ...]:
        """The accepted media types; pictures only where inputs are images with values from 0 to 1."""
        shape = self.bundle.input_shape
        images = len(shape) == 3 and shape[0] in (1, 3) and self.bundle.bounds == (0.0, 1.0)
        return (_JSON, _NPY, *(_PICTURES if images else ()))

    @property
    def _expected(self) -> str:
        return f"[1 to {self.batch}, {', '.join(map(str, self.bundle.input_shape))}]"

    def decode(self, media_type: str, body: bytearray, resize: bool) -> NDArray[Any]:
        """Inputs from a body; `resize` lets pictures have any size."""
        if not body:
            raise Refused("the body is empty; send inputs in it")
        if media_type in _PICTURES:
            return self._picture(body, _PICTURES[media_type], resize)
        return self._json(body) if media_type == _JSON else self._npy(body)

    def _json(self, body: bytearray) -> NDArray[Any]:
        """{"inputs": [...]}, one input after the other, so that other threads run in between."""
        longest = _LONGEST_NUMBER * math.prod(self.bundle.input_shape) + 64
        scan, rows = json.JSONDecoder(), list[NDArray[Any]]()
        try:
            text = body.decode("ascii")
            begun = _BEGIN.match(text)
            while begun is not None:
                if len(rows) == self.batch:
                    raise Refused(f"there are more than {self.batch} inputs", 413)
                own = _NUMBERS.match(text, begun.end(), begun.end() + longest)
                value, used = scan.raw_decode(own[0] if own else "")
                rows.append(self._array(value, len(rows)))
                place = begun.end() + used
                if _END.match(text, place):
                    return np.stack(rows)
                begun = _NEXT.match(text, place)
        except (ValueError, RecursionError) as error:
            if isinstance(error, Refused):
                raise
        raise Refused(f'the body must be {{"inputs": …}}, numbers of shape {self._expected}, nothing else')

    def _array(self, value: Any, index: int) -> NDArray[Any]:
        array = np.asarray(value)  # lists of different lengths are a ValueError
        if array.shape != self.bundle.input_shape or array.dtype.kind not in "if":
            raise Refused(f"input {index} must be numbers of shape {list(self.bundle.input_shape)}")
        return array.astype(np.float64)

    def _npy(self, body: bytearray) -> NDArray[Any]:
        file, own = io.BytesIO(body), self.bundle.input_shape
        try:
            first = np.lib.format.read_magic(file) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file, max_header_size=_LONGEST_HEADER)
        except Exception:
            # The header is a Python literal; parsing hostile ones raises nearly anything.
            raise Refused("the body is not a .npy file with a plain header; use numpy.save") from None
        image = dtype == np.uint8 and self.bundle.bounds == (0.0, 1.0)
        if not image and (dtype.kind != "f" or dtype.itemsize > 8):
            raise Refused(f"the array has dtype {str(dtype)[:40]}; give float32, float64 or (images) uint8")
        if tuple(shape[1:]) != own or not shape or shape[0] < 1:
            raise Refused(f"the array has shape {str(list(shape))[:80]}; it must be {self._expected}")
        if shape[0] > self.batch:
            raise Refused(f"there are {int(shape[0])} inputs; at most {self.batch} are accepted", 413)
        if len(body) - file.tell() != math.prod(shape) * dtype.itemsize:
            raise Refused(f"the array says {list(shape)} but has {len(body) - file.tell()} bytes of values")
        flat = np.frombuffer(body, dtype=dtype, offset=file.tell())
        array = flat.reshape((*own[::-1], -1)).T if fortran else flat.reshape(-1, *own)
        return array / np.float32(255) if image else array

    def _picture(self, body: bytearray, kind: str, resize: bool) -> NDArray[Any]:
        channels, height, width = self.bundle.input_shape
        most = max(_PIXELS, 4 * height * width)
        try:
            # Reads the head only.
            picture: Image.Image = Image.open(io.BytesIO(body), formats=[kind])
        except Image.DecompressionBombError:
            raise Refused(f"the picture has too many pixels; at most {most} are accepted", 413) from None
        except Exception:
            # Pillow's readers raise nearly anything on damaged files.
            raise Refused(f"the body is not a {kind} picture") from None
        size = f"{picture.width}×{picture.height}"
        if picture.width * picture.height > most:
            raise Refused(f"the picture has {size} pixels; at most {most} are accepted", 413)
        if picture.mode not in _MODES:
            raise Refused(f"the picture has mode {picture.mode}; 8 bits per channel are accepted")
        if picture.size != (width, height) and not resize:
            raise Refused(f"the picture is {size}; it must be {width}×{height}, or say resize=true")
        try:
            picture = ImageOps.exif_transpose(picture).convert("L" if channels == 1 else "RGB")
        except Exception:
            raise Refused(f"the {kind} picture is truncated or damaged") from None
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.float32).reshape(1, height, width, channels)
        return pixels.transpose(0, 3, 1, 2) / np.float32(255)
