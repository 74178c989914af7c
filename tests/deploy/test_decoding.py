"""Bodies of every kind become the inputs they describe, or are refused with a reason."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.deploy.planted import random_bundle

from randens.deploy.decoding import Decoder, Refused

X = np.random.default_rng(0).random((3, 1, 4, 4))
ONE = json.dumps(X[0].tolist())


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return Decoder(random_bundle(tmp_path_factory.mktemp("d") / "b"), batch=8)


def npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def header(text: str, values: bytes = b"") -> bytes:
    """A .npy file with any header."""
    line = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + values


def picture(array: NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def test_numbers_arrive_unchanged(decoder: Decoder) -> None:
    for text in (json.dumps({"inputs": X.tolist()}), json.dumps({"inputs": X.tolist()}, indent=1)):
        assert np.array_equal(decoder.decode("application/json", bytearray(text.encode()), False), X)
    for kind in ("<f2", ">f4", "<f8"):
        for array in (X.astype(kind), np.asfortranarray(X.astype(kind))):
            assert np.array_equal(decoder.decode("application/x-npy", bytearray(npy(array)), False), array)
    small = (255 * X).astype(np.uint8)
    found = decoder.decode("application/x-npy", bytearray(npy(small)), False)
    np.testing.assert_allclose(found, small / 255, atol=1e-6)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_pictures(decoder: Decoder, kind: str) -> None:
    gray = np.full((4, 4), 100, np.uint8)
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {"quality": 100}
    body = bytearray(picture(gray, kind, **options))
    found = decoder.decode(f"image/{kind.lower()}", body, False)
    np.testing.assert_allclose(found, np.full((1, 1, 4, 4), 100 / 255), atol=2 / 255)
    large = bytearray(picture(np.full((40, 30), 100, np.uint8), kind, **options))
    resized = decoder.decode(f"image/{kind.lower()}", large, True)
    np.testing.assert_allclose(resized, np.full((1, 1, 4, 4), 100 / 255), atol=3 / 255)
    with pytest.raises(Refused, match=r"30×40.*4×4"):
        decoder.decode(f"image/{kind.lower()}", large, False)
    for damaged in (body[: len(body) // 2], body[::-1], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        with pytest.raises(Refused, match="picture") as caught:
            decoder.decode(f"image/{kind.lower()}", bytearray(damaged), True)
        assert caught.value.status == 422


def test_color_and_types(tmp_path: Path) -> None:
    color = Decoder(random_bundle(tmp_path / "b", shape=(3, 4, 6)), batch=8)
    pixels = np.random.default_rng(1).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    found = color.decode("image/png", bytearray(picture(pixels)), False)
    np.testing.assert_allclose(found[0], pixels.transpose(2, 0, 1) / 255, atol=1e-6)
    with pytest.raises(Refused, match="mode I"):
        color.decode("image/png", bytearray(picture(np.full((4, 6), 40_000, np.uint16))), False)
    plain = Decoder(random_bundle(tmp_path / "p", shape=(7,)), batch=8)
    assert plain.types == ("application/json", "application/x-npy")


def test_pixels_are_counted_before_they_are_decoded(decoder: Decoder) -> None:
    large = bytearray(picture(np.zeros((1025, 1025), np.uint8))[:100])
    with pytest.raises(Refused, match=r"1025×1025 pixels; at most 1048576") as caught:
        decoder.decode("image/png", large, True)
    assert caught.value.status == 413


# ONE stands for a right input.
WRONG = """
{}
[]
{"inputs": []}
{"inputs": ONE}
{"inputs": [ONE], "more": 1}
{"inputs": [ONE]} x
{"inputs": [ONE,]}
{"inputs": [ONE ONE]}
{"inputs": [ONE, [1]]}
{"inputs": [ONE
{"inputs": [[[1, 2], [3]]]}
{"inputs": [{"a": 1}]}
{"inputs": ["é"]}
"""
ODD = (["0.5"], [True], [float("nan")], [10**30])
LONG = ("9" * 5000, "[" * 100_000, " " * 100_000 + ONE, "[[[" + "0, " * 100_000 + "0]]]")


def test_other_json_is_refused(decoder: Decoder) -> None:
    texts = [line.replace("ONE", ONE) for line in WRONG.splitlines()]
    texts += [json.dumps({"inputs": np.full((1, 1, 4, 4), odd, object).tolist()}) for odd in ODD]
    mixed = ONE.replace(str(X[0, 0, 0, 0]), "true")
    texts += [f'{{"inputs": [{value}]}}' for value in (mixed, *LONG)]
    for text in texts:
        with pytest.raises(Refused, match=r"^.{10,300}$") as caught:
            decoder.decode("application/json", bytearray(text.encode()), False)
        assert caught.value.status == 422
    with pytest.raises(Refused, match="more than 8"):
        decoder.decode(
            "application/json", bytearray(f'{{"inputs": [{", ".join([ONE] * 9)}]}}'.encode()), False
        )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (npy(X)[:-1], 422),
        (npy(X[:, :, :, :3]), 422),
        (npy(np.zeros((9, 1, 4, 4))), 413),
        (npy(X.astype(np.int64)), 422),
        (npy(np.full((1, 1, 4, 4), print, object)), 422),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000, 1, 4, 4)}"), 413),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': ()}"), 422),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 4, 4)}", b"cos\nsystem\n"), 422),
        (header("{" * 5000), 422),
    ],
)
def test_other_arrays_are_refused(decoder: Decoder, body: bytes, status: int) -> None:
    with pytest.raises(Refused) as caught:
        decoder.decode("application/x-npy", bytearray(body), False)
    assert caught.value.status == status
    odd = header("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 1, 4, 4)}", bytes(64))
    assert decoder.decode("application/x-npy", bytearray(odd), False).shape == (1, 1, 4, 4)
