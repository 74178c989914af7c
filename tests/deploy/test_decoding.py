"""Bodies of every kind become the inputs they describe, or are refused with a reason."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile
from tests.deploy.planted import linear_bundle, random_bundle

from randens.deploy.decoding import Decoder, Refused

SHAPE = (1, 4, 4)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return Decoder.of(random_bundle(tmp_path_factory.mktemp("d") / "b", shape=SHAPE), batch=8, pixels=10_000)


@pytest.fixture(scope="module")
def colour(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    bundle = random_bundle(tmp_path_factory.mktemp("d") / "b", shape=(3, 4, 6))
    return Decoder.of(bundle, batch=8, pixels=10_000)


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=False)
    return file.getvalue()


def picture(array: np.ndarray[Any, Any], kind: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def refusal(decoder: Decoder, kind: str, body: bytes, resize: bool = False) -> Refused:
    with pytest.raises(Refused) as caught:
        decoder.decode(kind, body, resize)
    assert 10 < len(str(caught.value)) < 400
    return caught.value


X = np.random.default_rng(0).random((3, *SHAPE))


def test_json_values(decoder: Decoder) -> None:
    found = decoder.decode("application/json", json.dumps({"inputs": X.tolist()}).encode(), False)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, X.astype(np.float32))
    ones = decoder.decode(
        "application/json", b'{"inputs": [[[[0,1,0,1],[1,1,1,1],[0,0,0,0],[1,0,1,0]]]]}', False
    )
    assert ones.ravel().tolist() == [0, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_values(decoder: Decoder, dtype: str, version: tuple[int, int], order: Any) -> None:
    array = np.asarray(X.astype(dtype), order=order)
    found = decoder.decode("application/x-npy", npy(array, version), False)
    np.testing.assert_array_equal(found, array.astype(np.float32))


def test_npy_of_bytes_is_a_picture(decoder: Decoder) -> None:
    array = np.arange(16, dtype=np.uint8).reshape(1, *SHAPE) * 17
    found = decoder.decode("application/x-npy", npy(array), False)
    np.testing.assert_array_equal(found, array.astype(np.float32) / np.float32(255))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_picture_values(decoder: Decoder, colour: Decoder, kind: str) -> None:
    grey = np.linspace(0, 255, 16).astype(np.uint8).reshape(4, 4)
    exact = {"PNG": 0.0, "JPEG": 0.06}[kind]
    options: dict[str, Any] = {"quality": 100} if kind == "JPEG" else {}
    found = decoder.decode(f"image/{kind.lower()}", picture(grey, kind, **options), False)
    assert found.shape == (1, 1, 4, 4)
    np.testing.assert_allclose(found[0, 0], grey / 255, atol=exact + 1e-7)
    rgb = np.zeros((4, 6, 3), dtype=np.uint8)
    rgb[..., 0], rgb[..., 1] = 200, 100
    found = colour.decode(f"image/{kind.lower()}", picture(rgb, kind, **options), False)
    assert found.shape == (1, 3, 4, 6)
    for channel, value in enumerate((200, 100, 0)):
        np.testing.assert_allclose(found[0, channel], value / 255, atol=exact + 1e-7)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_usual_kind_of_png(decoder: Decoder, mode: str) -> None:
    grey = np.zeros((4, 4), dtype=np.uint8)
    grey[1] = 255
    found = decoder.decode("image/png", picture(grey, mode=mode), False)
    np.testing.assert_allclose(found[0, 0], grey / 255, atol=1e-6)


def test_resizing_only_when_asked(decoder: Decoder) -> None:
    large = np.full((40, 20), 51, dtype=np.uint8)
    assert "20×40" in str(refusal(decoder, "image/png", picture(large)))
    found = decoder.decode("image/png", picture(large), True)
    np.testing.assert_allclose(found, np.full((1, 1, 4, 4), 0.2), atol=1e-6)


def deep(n: int) -> bytes:
    return b'{"inputs": ' + b"[" * n + b"]" * n + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"inputs": null}',
        b'{"inputs": []}',
        b'{"inputs": [[1, 2, 3]]}',
        b'{"inputs": [[[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0]]]]}',
        b'{"inputs": [[[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,NaN]]]]}',
        b'{"inputs": [[[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,1e999]]]]}',
        b'{"inputs": [[[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,1.01]]]]}',
        b'{"inputs": [[[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,-1]]]]}',
        b'{"inputs": [[[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,true]]]]}',
        b'{"inputs": [[[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,"1"]]]]}',
        b'{"inputs": [[[[0,0,0,0],[0,0,0,0],[0,0,0,0],[0,0,0,1]]]], "member": 0}',
        b'{"inputs": [[[[' + b"9" * 5000 + b"]]]]}",
        b"\xff\xfe\x00",
        deep(100),
        deep(100_000),
    ],
)
def test_bad_json(decoder: Decoder, body: bytes) -> None:
    assert refusal(decoder, "application/json", body).status == 422


def header(text: str) -> bytes:
    encoded = text.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded)) + encoded


@pytest.mark.parametrize(
    "body",
    [
        b"\x93NUMPY",
        b"\x93NUMPY\x03\x00\x00\x00\x00\x00",
        b"PK\x03\x04",
        npy(X)[:-1],
        npy(X) + b"\x00",
        npy(X[:, :, :3]),
        npy(X[0]),
        npy(X[:0]),
        npy(np.float64(1.0) * np.ones(())),
        npy(X.astype(np.complex64)),
        npy(X.astype(np.int64)),
        npy(X > 0.5),
        npy(X * np.nan),
        npy(X * 1e300),
        npy(X + 1),
        npy(X.astype("S4")),
        header("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 4, 4), }") + b"cos\nsystem\n",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000, 1, 4, 4), }"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 1, 4, 4), }"),
        header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 1, 4, 4), }") + bytes(64),
        header("{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (1, 1, 4, 4), }") + bytes(128),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 4, True), }") + bytes(64),
        header("__import__('os').system('true')"),
        header("(" * 900),
    ],
)
def test_bad_npy(decoder: Decoder, body: bytes) -> None:
    assert refusal(decoder, "application/x-npy", body).status in (413, 422)


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it is a large one, and is: rows of zeros compress a thousandfold."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(min(width + 1, 50_000) * min(height, 1000)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height"), [(101, 100), (50_000, 1000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)]
)
def test_bombs_are_refused_before_they_are_decoded(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded.append)
    body = bomb(width, height)
    assert len(body) < 200_000
    assert refusal(decoder, "image/png", body, resize=True).status in (413, 422)
    assert not decoded


GREY = np.arange(16, dtype=np.uint8).reshape(4, 4)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("image/png", b"no picture"),
        ("image/png", picture(GREY, "JPEG")),
        ("image/jpeg", picture(GREY, "PNG")),
        ("image/png", picture(GREY)[:50]),
        ("image/jpeg", picture(GREY, "JPEG")[:300]),
        ("image/png", picture(GREY.astype(np.uint16) * 4000)),
        ("image/png", bomb(4, 400)),
    ],
)
def test_bad_pictures(decoder: Decoder, kind: str, body: bytes) -> None:
    assert refusal(decoder, kind, body).status == 422


@pytest.mark.parametrize("kind", ["application/json", "application/x-npy", "image/png", "image/jpeg"])
def test_empty_bodies(decoder: Decoder, kind: str) -> None:
    assert refusal(decoder, kind, b"").status == 422


@pytest.mark.parametrize("kind", ["", "text/plain", "image/gif", "application/octet-stream", "x" * 10_000])
def test_other_types(decoder: Decoder, kind: str) -> None:
    assert refusal(decoder, kind, b"x").status == 415


def test_too_many_inputs(decoder: Decoder) -> None:
    assert refusal(decoder, "application/x-npy", npy(np.zeros((9, *SHAPE)))).status == 413
    assert decoder.decode("application/x-npy", npy(np.zeros((8, *SHAPE))), False).shape == (8, 1, 4, 4)


def test_features_are_no_pictures(tmp_path: Path) -> None:
    weights, biases = np.ones((1, 3, 2), np.float32), np.zeros((1, 2), np.float32)
    bundle = linear_bundle(tmp_path / "b", weights, biases, (1.0,), (3,), threat=None)
    decoder = Decoder.of(bundle, 4, 100)
    assert list(decoder.types) == ["application/json", "application/x-npy"]
    found = decoder.decode("application/json", b'{"inputs": [[-5, 1e6, 0.5]]}', False)
    assert found.tolist() == [[-5, 1e6, 0.5]]
    assert refusal(decoder, "application/json", b'{"inputs": [[-5, 1e60, 0.5]]}').status == 422
    assert refusal(decoder, "application/x-npy", npy(np.zeros((1, 3), np.uint8))).status == 422


VALID = {
    "application/json": b'{"inputs": [[[[0,1,0,1],[1,1,1,1],[0,0,0,0],[1,0,1,0.5]]]]}',
    "application/x-npy": npy(X.astype(np.float32)),
    "image/png": picture(GREY),
    "image/jpeg": picture(GREY, "JPEG"),
}


@given(
    st.sampled_from(sorted(VALID)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    st.floats(0, 1),
    st.booleans(),
)
def test_damaged_bodies_are_answered_or_refused(
    decoder: Decoder, kind: str, changes: list[tuple[float, int]], kept: float, resize: bool
) -> None:
    body = bytearray(VALID[kind])
    for place, value in changes:
        body[int(place * len(body))] = value
    # Anything but a refusal would be an error of ours and fails the test.
    with contextlib.suppress(Refused):
        found = decoder.decode(kind, bytes(body[: round(kept * len(body))]), resize)
        assert found.shape[1:] == SHAPE
        assert 0 <= found.min() <= found.max() <= 1
