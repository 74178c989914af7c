"""Decode request bodies into inputs: JSON arrays, .npy, PNG and JPEG; faults are reported to the sender.

Sizes in a header are compared with the limits and with the bytes received before memory is allocated. In a
JSON body, brackets, commas, quotes and braces are counted first. It is parsed, one input at a time, only if
the counts fit a whole number of inputs.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from randens.core.documents import first_fault
from randens.core.errors import InputError
from randens.deploy.bundle import Bundle

__all__ = ["Decoder", "Refused"]

_LONGEST_HEADER = 1024
_SMALL = 1 << 12  # bytes of a JSON body that are examined in one step, and again to describe an error
_LARGEST = float(np.finfo(np.float32).max)
_PIECE = 1 << 18  # bytes examined in one step
_SPACE = rb"[ \t\r\n]{0,256}"
_JSON_HEAD = re.compile(_SPACE + rb"\{" + _SPACE + rb'"inputs"' + _SPACE + rb":" + _SPACE + rb"\[" + _SPACE)
_JSON_NEXT = re.compile(_SPACE + rb"," + _SPACE)
_JSON_TAIL = re.compile(_SPACE + rb"\]" + _SPACE + rb"\}" + _SPACE)
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")

Inputs = NDArray[np.float32]
Body = bytes | bytearray


class Refused(InputError):
    """A body that is not accepted, with the HTTP status that says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Decoder:
    """Turns bodies into inputs [n, *shape] of one bundle: at most `batch` of them, pictures of at most `pixels`."""

    shape: tuple[int, ...]
    bounds: tuple[float, float] | None
    batch: int
    pixels: int

    @staticmethod
    def of(bundle: Bundle, batch: int, pixels: int) -> Decoder:
        """The decoder for a bundle."""
        return Decoder(bundle.input_shape, bundle.bounds, batch, pixels)

    @cached_property
    def schema(self) -> type[BaseModel]:
        """The schema of the JSON, checked during parsing: no text, no booleans, no NaN, correct lengths."""
        low, high = self.bounds or (None, None)
        nested: Any = Annotated[float, Field(ge=low, le=high, allow_inf_nan=False)]
        for size in reversed(self.shape):
            nested = Annotated[list[nested], Field(min_length=size, max_length=size)]
        outer: Any = Annotated[list[nested], Field(min_length=1, max_length=self.batch)]
        said = f"[n, {', '.join(map(str, self.shape))}], n from 1 to {self.batch}"
        return create_model(
            "Inputs",
            __config__=ConfigDict(strict=True, extra="forbid"),
            __doc__="Inputs as nested lists of numbers.",
            inputs=(outer, Field(description=said)),
        )

    @cached_property
    def one(self) -> msgspec.json.Decoder[Any]:
        """A strict parser of one input, which stops at the first error."""
        low, high = self.bounds or (None, None)
        nested: Any = float if self.bounds is None else Annotated[float, msgspec.Meta(ge=low, le=high)]
        for size in reversed(self.shape):
            nested = Annotated[list[nested], msgspec.Meta(min_length=size, max_length=size)]
        return msgspec.json.Decoder(nested)

    @property
    def _wanted(self) -> str:
        return f"[1 to {self.batch}, {', '.join(map(str, self.shape))}]"

    @cached_property
    def types(self) -> Mapping[str, Callable[[Body, bool], Inputs]]:
        """Media types and what reads them. Pictures only where inputs are pictures with values from 0 to 1."""
        readers: dict[str, Callable[[Body, bool], Inputs]] = {
            "application/json": self._json,
            "application/x-npy": self._npy,
        }
        if len(self.shape) == 3 and self.shape[0] in (1, 3) and self.bounds == (0.0, 1.0):
            readers["image/png"] = lambda body, resize: self._picture(body, "PNG", resize)
            readers["image/jpeg"] = lambda body, resize: self._picture(body, "JPEG", resize)
        return readers

    def decode(self, media_type: str, body: Body, resize: bool) -> Inputs:
        """Inputs from a body; `resize` lets pictures have any size."""
        reader = self.types.get(media_type)
        if reader is None:
            raise Refused(
                415, f"content type is {media_type[:80]!r}; it must be one of {', '.join(self.types)}"
            )
        if not body:
            raise Refused(422, "the body is empty; send inputs in it")
        return reader(body, resize)

    def _json(self, body: Body, _: bool) -> Inputs:
        head = _JSON_HEAD.match(body)
        n, ends = self._inputs_in(body)
        if head is None or n is None:
            raise Refused(422, self._complaint(body))
        if n > self.batch:
            # The number is part of the interface's schema, so this is a fault of the content.
            raise Refused(422, f"there are {n} inputs; at most {self.batch} are accepted at once")
        values = np.empty((n, *self.shape), dtype=np.float64)
        start, view = head.end(), memoryview(body)
        for index, end in enumerate(ends):
            try:
                values[index] = self.one.decode(view[start:end])
            except (msgspec.DecodeError, ValueError, UnicodeError, RecursionError) as error:
                raise Refused(422, f"inputs.{index}: {str(error)[:160]}") from None
            then = (_JSON_NEXT.match if index + 1 < n else _JSON_TAIL.fullmatch)(body, end)
            if then is None:
                raise Refused(422, f"inputs.{index}: what follows this input is not JSON of the wanted form")
            start = then.end()
        return self._finite(values)

    def _inputs_in(self, body: Body) -> tuple[int | None, list[int]]:
        """The number of inputs that fits the brackets and commas of a JSON body, and where each ends.

        None if no number of inputs fits. The time is linear in the body, and no objects are created.
        """
        codes = np.frombuffer(body, dtype=np.uint8)
        pieces = [codes[start : start + _PIECE] for start in range(0, len(codes), _PIECE)]

        def count(character: str) -> int:
            if len(body) <= _SMALL:
                return body.count(ord(character))
            # NumPy, unlike bytes, releases the interpreter's lock, so other threads can continue.
            return sum(int(np.count_nonzero(piece == ord(character))) for piece in pieces)

        numbers = math.prod(self.shape)
        # One pair of brackets for the input, and for every list inside it.
        lists = 1 + sum(math.prod(self.shape[:depth]) for depth in range(1, len(self.shape)))
        n, rest = divmod(count("]") - 1, lists)
        if rest or n < 1 or count(",") != n * numbers - 1 or count("[") != n * lists + 1:
            return None, []
        if count('"') != 2 or count("{") != 1:
            return None, []
        if n > self.batch:
            return n, []
        closing = np.concatenate(
            [np.flatnonzero(piece == ord("]")) + _PIECE * index for index, piece in enumerate(pieces)]
        )
        return n, (closing[lists - 1 : -1 : lists] + 1).tolist()

    def _complaint(self, body: Body) -> str:
        if len(body) <= _SMALL:
            try:
                self.schema.model_validate_json(body)
            except ValidationError as error:
                return first_fault(error, "the body")
        return f'the body must be {{"inputs": …}}, numbers of shape {self._wanted}, and nothing else'

    def _npy(self, body: Body, _: bool) -> Inputs:
        file = io.BytesIO(body)
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read(file, max_header_size=_LONGEST_HEADER)
        except Exception:
            # The header is a Python literal; parsing hostile ones raises nearly anything.
            raise Refused(
                422,
                "the body is not a .npy file of version 1 or 2 with a plain header; write it with numpy.save",
            ) from None
        small = dtype == np.uint8 and self.bounds == (0.0, 1.0)
        if not small and (dtype.kind != "f" or dtype.itemsize > 8 or dtype.fields or dtype.subdtype):
            raise Refused(
                422,
                f"the array has dtype {str(dtype)[:40]}; it must be float16, float32, float64 or, for images, uint8",
            )
        if tuple(shape[1:]) != self.shape or len(shape) == 0 or shape[0] < 1:
            raise Refused(422, f"the array has shape {str(list(shape))[:80]}; it must be {self._wanted}")
        if shape[0] > self.batch:
            raise Refused(413, f"there are {shape[0]} inputs; at most {self.batch} are accepted at once")
        if len(body) - file.tell() != math.prod(shape) * dtype.itemsize:
            raise Refused(
                422, f"the array says {list(shape)} but has {len(body) - file.tell()} bytes of values"
            )
        flat = np.frombuffer(body, dtype=dtype, offset=file.tell())
        array = flat.reshape(shape, order="F" if fortran else "C")
        return self._finite(array.astype(np.float64) / 255 if small else array)

    def _picture(self, body: Body, kind: str, resize: bool) -> Inputs:
        channels, height, width = self.shape
        try:
            picture: Image.Image = Image.open(io.BytesIO(body), formats=[kind])
        except Image.DecompressionBombError:
            raise Refused(
                413, f"the picture has too many pixels; at most {self.pixels} are accepted"
            ) from None
        except Exception:
            # Pillow's readers raise nearly anything on damaged files.
            raise Refused(422, f"the body is not a {kind} picture") from None
        # Only the head has been read so far; pixels are decoded below.
        size = picture.width * picture.height
        if size > self.pixels:
            raise Refused(413, f"the picture has {size} pixels; at most {self.pixels} are accepted")
        if picture.mode not in _MODES:
            raise Refused(422, f"the picture has mode {picture.mode}; 8 bits per channel are accepted")
        try:
            picture = ImageOps.exif_transpose(picture).convert("L" if channels == 1 else "RGB")
        except Exception:
            raise Refused(422, f"the {kind} picture is truncated or damaged") from None
        if picture.size != (width, height):
            if not resize:
                raise Refused(
                    422,
                    f"the picture is {picture.width}×{picture.height}; it must be {width}×{height}, "
                    "or say resize=true",
                )
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.float32).reshape(height, width, channels)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None] / np.float32(255))

    def _finite(self, array: NDArray[Any]) -> Inputs:
        low, high = float(array.min()), float(array.max())  # NaN if there is one
        if not (math.isfinite(low) and math.isfinite(high) and max(-low, high) <= _LARGEST):
            raise Refused(422, "the inputs hold NaN or infinite values; they must be finite")
        if self.bounds is not None and (low < self.bounds[0] or high > self.bounds[1]):
            raise Refused(
                422, f"the inputs range over [{low:g}, {high:g}]; they must lie in {list(self.bounds)}"
            )
        values = np.ascontiguousarray(array, dtype=np.float32)
        # Rounding may exceed a bound that is not a float32 number.
        rounds = self.bounds is not None and any(bound != np.float32(bound) for bound in self.bounds)
        return np.clip(values, *self.bounds) if self.bounds is not None and rounds else values
