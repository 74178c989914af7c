"""Folders of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import randens.data.convert
import randens.data.data
from randens import data
from randens.core.errors import FileError, InputError, RandensError
from randens.data.data import ImageFiles, read_image


def picture(path: Path, value: int = 7, mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> None:
    """A picture of one color; `size` is (width, height) as Pillow has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    color = {"RGB": (value, value + 1, value + 2), "RGBA": (value, value + 1, value + 2, 99)}.get(mode, value)
    Image.new(mode, size, color).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for index, name in enumerate(("dog/b.png", "dog/a.png", "cat/x.bmp", "cat/deep/y.PNG")):
        picture(root / name, value=10 * index)
    (root / "cat" / "notes.txt").write_text("not a picture")
    return root


def test_classes_images_and_labels(folder: Path) -> None:
    found = data.as_data(folder)
    assert (found.classes, found.y.tolist()) == (("cat", "dog"), [0, 0, 1, 1])
    assert found.stored[:][:, :, 0, 0].tolist() == [[30, 31, 32], [20, 21, 22], [10, 11, 12], [0, 1, 2]]
    assert (found.shape, found.split, found.name) == ((3, 4, 5), "unknown", "pets")
    assert data.as_data(folder, split="test").split == "unknown"


def test_rows_and_columns_are_not_swapped(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "p.png")
    assert np.array_equal(data.as_data(tmp_path).stored[0].numpy(), pixels.transpose(2, 0, 1))


def test_a_large_folder_is_decoded_row_by_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = data.as_data(folder)
    monkeypatch.setattr(randens.data.convert, "_IN_MEMORY", 0)
    lazy = data.as_data(folder)
    assert isinstance(lazy.stored, ImageFiles)
    read: list[Path] = []

    def noted(file: Path, *options: Any) -> torch.Tensor:
        read.append(file)
        return read_image(file, *options)

    monkeypatch.setattr(randens.data.data, "read_image", noted)
    assert torch.equal(lazy[np.array([3, 1])][0], whole[[3, 1]][0])
    assert torch.equal(lazy.subset([2, 0]).subset(slice(1, 2))[:][0], whole[[0]][0])
    assert [file.name for file in read] == ["b.png", "x.bmp", "y.PNG"]
    assert torch.equal(lazy[2][0], whole[2][0])
    loader = DataLoader(lazy, batch_size=3, num_workers=2)
    assert torch.equal(torch.cat([x for x, _ in loader]), whole.x)
    batches = DataLoader(lazy, batch_size=None, sampler=BatchSampler(SequentialSampler(lazy), 3, False))
    assert torch.equal(torch.cat([x for x, _ in batches]), whole.x)


def test_a_folders_split_is_called_what_it_is(tmp_path: Path) -> None:
    for split, value in (("train", 1), ("val", 2), ("test", 3)):
        for name in ("cat", "dog"):
            picture(tmp_path / "pets" / split / name / "1.png", value=value)
    for asked, value in ((None, 3), ("train", 1), ("validation", 2), ("test", 3)):
        found = data.as_data(tmp_path / "pets", split=asked)
        assert (found.name, found.split, int(found.stored[0][0, 0, 0])) == ("pets", asked or "test", value)
    inner = data.as_data(tmp_path / "pets" / "val")
    assert (inner.name, inner.split) == ("pets", "validation")
    with pytest.raises(InputError, match="holds the train split"):
        data.as_data(tmp_path / "pets" / "train", split="test")


@pytest.mark.parametrize("first", ["L", "RGB"])
@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "RGB"])
def test_images_have_the_kind_of_the_first(tmp_path: Path, first: str, mode: str) -> None:
    picture(tmp_path / "a" / "1.png", mode=first)
    picture(tmp_path / "b" / "2.png", mode=mode, size=(10, 8))
    if first == "L" and mode != "L":
        with pytest.raises(FileError, match=r"2\.png: it is in color"):
            data.as_data(tmp_path, size=(6, 7))
        return
    found = data.as_data(tmp_path, size=(6, 7))
    assert found.x.shape == (2, 1 if first == "L" else 3, 6, 7)
    assert found.notes == ("images of 4×5 pixels were scaled to 6×7",)


def _write(path: Path, kind: str) -> None:
    if kind == "pixels":
        Image.new("1", (6000, 6000)).save(path)
    elif kind == "truncated":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:5000])
    elif kind == "size":
        picture(path, size=(9, 8))
    elif kind == "tiff":
        Image.new("RGB", (5, 4)).save(path, "TIFF")
    else:
        start = {"eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n", "page": b"<html>", "empty": b""}
        path.write_bytes(start[kind])


@pytest.mark.parametrize("kind", ["pixels", "truncated", "size", "tiff", "eps", "page", "empty"])
def test_bad_images_are_refused_by_name(folder: Path, kind: str) -> None:
    _write(folder / "dog" / "bad.png", kind)
    with pytest.raises(FileError, match=r"bad\.png"):
        data.as_data(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere"}, "no folder of images"),
        ({"path": "empty"}, "0 folders"),
        ({"path": "one"}, "1 folders"),
        ({"path": "none"}, "holds no images"),
        *(({"path": "pets", "size": size}, "size is") for size in ((0, 4), 5, ("a", "b"))),
        ({"path": "splits", "split": "validation"}, "no validation folder"),
    ],
)
def test_bad_folders_and_options(tmp_path: Path, folder: Path, options: dict[str, Any], message: str) -> None:
    assert folder == tmp_path / "pets"
    (tmp_path / "empty").mkdir()
    (tmp_path / "none" / "cat").mkdir(parents=True)
    (tmp_path / "none" / "dog").mkdir(parents=True)
    picture(tmp_path / "one" / "cat" / "1.png")
    picture(tmp_path / "splits" / "train" / "cat" / "1.png")
    with pytest.raises(RandensError, match=message):
        data.as_data(tmp_path / options.pop("path"), **options)
