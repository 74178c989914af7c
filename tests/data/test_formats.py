"""Every official form of a data set decodes to the same bytes, and damaged or hostile files are refused."""

from __future__ import annotations

import dataclasses
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
from tests.data import official

from randens.core.errors import FileError
from randens.data.catalogue import CATALOGUE
from randens.data.formats import Arrays, Bytes, digest

CIFAR10 = {local.format.title: local.format for local in CATALOGUE["cifar10"].local}
CIFAR100 = {local.format.title: local.format for local in CATALOGUE["cifar100"].local}
IDX = CATALOGUE["mnist"].local[0].format


def same(found: Arrays, expected: Arrays) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(_parts(found), _parts(expected), strict=True))


def _parts(arrays: Arrays) -> list[Bytes]:
    return [getattr(arrays, field.name) for field in dataclasses.fields(arrays)]


def test_every_form_of_cifar10_decodes_to_the_same_arrays() -> None:
    arrays = official.colour()
    npm = CATALOGUE["cifar10"].npm
    assert npm is not None
    binary, python = CIFAR10["CIFAR binary"], CIFAR10["CIFAR Python"]
    decoded = [
        binary.decode(official.binary(arrays, binary.members)),
        python.decode(official.python(arrays, python.members, "labels")),
        npm.format.decode(official.pngs(arrays)),
    ]
    assert all(same(found, arrays) for found in decoded)
    assert {digest(*found.part("train")) for found in decoded} == {digest(arrays.train_x, arrays.train_y)}


def test_cifar100_takes_the_fine_label() -> None:
    arrays = official.colour(train=100, test=100, classes=100)
    binary, python = CIFAR100["CIFAR binary"], CIFAR100["CIFAR Python"]
    assert same(binary.decode(official.binary(arrays, binary.members, coarse=True)), arrays)
    assert same(python.decode(official.python(arrays, python.members, "fine_labels")), arrays)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx(zipped: bool) -> None:
    arrays = official.grey()
    files = {name.removesuffix(".gz"): content for name, content in official.idx(arrays, zipped).items()}
    assert same(IDX.decode(files), arrays)


def test_digest_depends_on_pixels_labels_and_shape() -> None:
    x, y = official.colour().part("train")
    changed_x, changed_y = x.copy(), y.copy()
    changed_x[3, 1, 2, 3] ^= 1
    changed_y[0] = (changed_y[0] + 1) % 10
    others = {digest(changed_x, y), digest(x, changed_y), digest(x.reshape(len(x), 1, 32, 96), y)}
    assert len(others | {digest(x, y)}) == 4


class _Attack:
    """Runs a command when a careless program unpickles it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.marker,)  # type: ignore[return-value]


def test_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    hostile = pickle.dumps({b"data": _Attack(marker), b"labels": []}, protocol=2)
    pickle.loads(hostile)  # noqa: S301 - shows that the file is dangerous to a plain unpickler
    assert marker.exists()
    marker.unlink()
    files = dict.fromkeys(CIFAR10["CIFAR Python"].members, hostile)
    with pytest.raises(FileError, match=r"data_batch_1 was refused: it names .*official file"):
        CIFAR10["CIFAR Python"].decode(files)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", [b"os\nsystem\n", b"builtins\neval\n", b"numpy\nload\n", b"numpy.core.multiarray\nfromfile\n"]
)
def test_only_the_three_admitted_names_pass(name: bytes) -> None:
    content = official.python2_pickle(np.zeros((2, 3072), dtype=np.uint8), [0, 1], "labels", reconstruct=name)
    assert any(op.name == "GLOBAL" for op, _, _ in pickletools.genops(content))
    with pytest.raises(FileError, match="was refused: it names"):
        CIFAR10["CIFAR Python"].decode(dict.fromkeys(CIFAR10["CIFAR Python"].members, content))


def _bad_pickle(case: str) -> bytes:
    pixels = np.zeros((2, 3072), dtype=np.uint8)
    whole = official.python2_pickle(pixels, [0, 1], "labels")
    return {
        "truncated": whole[:-500],
        "empty": b"",
        "page": b"<!DOCTYPE html><html>Sign in</html>",
        "other type": whole.replace(b"U\x02u1", b"U\x02f8"),
        "wrong size": official.python2_pickle(pixels[:, :3000], [0, 1], "labels"),
        "labels missing": official.python2_pickle(pixels, [0, 1], "fine_labels"),
        "labels too few": official.python2_pickle(pixels, [0], "labels"),
        "not a dictionary": pickle.dumps([1, 2], protocol=2),
    }[case]


@pytest.mark.parametrize(
    "case",
    [
        *("truncated", "empty", "page", "other type", "wrong size", "labels missing"),
        *("labels too few", "not a dictionary"),
    ],
)
def test_damaged_python_files_are_named(case: str) -> None:
    files = dict.fromkeys(CIFAR10["CIFAR Python"].members, _bad_pickle(case))
    with pytest.raises(FileError, match="data_batch_1"):
        CIFAR10["CIFAR Python"].decode(files)


@pytest.mark.parametrize("cut", [1, 3073 - 1, 3072])
def test_truncated_binary_file(cut: int) -> None:
    form = CIFAR10["CIFAR binary"]
    files = official.binary(official.colour(), form.members)
    files["data_batch_3.bin"] = files["data_batch_3.bin"][:-cut]
    with pytest.raises(FileError, match=r"data_batch_3\.bin has \d+ bytes, not whole 3073-byte records"):
        form.decode(files)


def test_web_page_in_place_of_a_binary_file() -> None:
    form = CIFAR10["CIFAR binary"]
    files = official.binary(official.colour(), form.members)
    files["test_batch.bin"] = b"\n<html><body>502 Bad Gateway</body></html>"
    with pytest.raises(FileError, match=r"test_batch\.bin is a web page, not data"):
        form.decode(files)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_2.png", b"\x89PNG\r\n\x1a\n123", "data_batch_2.png is not a whole PNG"),
        ("data_batch_2.png", b"<html>", "data_batch_2.png is a web page"),
        ("train_lables.json", b"[1, 2", "train_lables.json is not valid JSON"),
        ("train_lables.json", b"[1, 2]", "train_lables.json does not hold 20 labels"),
        ("test_lables.json", b"[0,1,2,3,4,5,6,7,8,-1]", "test_lables.json holds labels that are not"),
        ("test_lables.json", b"[0,1,2,3,4,5,6,7,8,true]", "test_lables.json holds labels that are not"),
    ],
)
def test_damaged_pictures_are_named(name: str, content: bytes, message: str) -> None:
    npm = CATALOGUE["cifar10"].npm
    assert npm is not None
    with pytest.raises(FileError, match=message):
        npm.format.decode({**official.pngs(official.colour()), name: content})


def test_truncated_picture_is_named() -> None:
    npm = CATALOGUE["cifar10"].npm
    assert npm is not None
    files = official.pngs(official.colour())
    files["data_batch_4.png"] = files["data_batch_4.png"][:-2000]
    with pytest.raises(FileError, match=r"data_batch_4\.png is not a whole PNG"):
        npm.format.decode(files)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-images-idx3-ubyte", lambda c: c[:-7], "train-images-idx3-ubyte has .* its header promises"),
        ("train-images-idx3-ubyte", lambda c: b"\0\0\x0d\x03" + c[4:], "is not an IDX file of bytes in 3"),
        ("t10k-labels-idx1-ubyte", lambda _: b"<!doctype html>", "t10k-labels-idx1-ubyte is a web page"),
        ("t10k-labels-idx1-ubyte", lambda c: c[:7] + b"\x09" + c[8:-1], "holds 9 labels for 10 images"),
        ("t10k-labels-idx1-ubyte", lambda _: b"\x1f\x8b\x08\0", "is not a whole gzip file"),
    ],
)
def test_damaged_idx_files_are_named(name: str, change: object, message: str) -> None:
    files = official.idx(official.grey(), zipped=False)
    assert callable(change)
    files[name] = change(files[name])
    with pytest.raises(FileError, match=message):
        IDX.decode(files)


def test_truncated_gzip() -> None:
    files = {n.removesuffix(".gz"): c for n, c in official.idx(official.grey(), zipped=True).items()}
    files["train-images-idx3-ubyte"] = files["train-images-idx3-ubyte"][:-20]
    with pytest.raises(FileError, match="train-images-idx3-ubyte is not a whole gzip file"):
        IDX.decode(files)
