"""Folders of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from randens import data
from randens.core.errors import FileError, InputError


def picture(path: Path, value: int = 7, mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> None:
    """A picture of one colour; `size` is (width, height) as Pillow has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = {"RGB": (value, value + 1, value + 2), "RGBA": (value, value, value, 99)}.get(mode, value)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for index, name in enumerate(("dog/b.png", "dog/a.png", "cat/x.bmp", "cat/deep/y.PNG")):
        picture(root / name, value=10 * index)
    (root / "cat" / "notes.txt").write_text("not a picture")
    return root


def test_classes_images_and_labels(folder: Path) -> None:
    seen: list[float] = []
    images = data.image_folder(folder, split="validation", progress=lambda _, done, __: seen.append(done))
    assert images.classes == ("cat", "dog")
    assert images.y.tolist() == [0, 0, 1, 1]
    assert images.stored[:, :, 0, 0].tolist() == [[30, 31, 32], [20, 21, 22], [10, 11, 12], [0, 1, 2]]
    assert (images.shape, images.split, images.name) == ((3, 4, 5), "validation", "pets")
    assert seen == [1, 2, 3, 4]


def test_grey_folder(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/2.png"):
        picture(tmp_path / name, mode="L", value=200)
    images = data.image_folder(tmp_path)
    assert images.shape == (1, 4, 5)
    assert bool((images.stored == 200).all())


def test_rows_and_columns_are_not_swapped(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "p.png")
    assert np.array_equal(data.image_folder(tmp_path).stored[0].numpy(), pixels.transpose(2, 0, 1))


def test_grey_where_colour_is_expected(folder: Path) -> None:
    picture(folder / "dog" / "grey.png", mode="L")
    with pytest.raises(
        FileError, match=r"grey\.png is grey where colour \(RGB\) is expected; .*convert=True"
    ):
        data.image_folder(folder)
    assert len(data.image_folder(folder, convert=True)) == 5
    with pytest.raises(FileError, match=r"y\.PNG is RGB where grey \(L\) is expected"):
        data.image_folder(folder, channels=1)


def test_transparency_needs_consent(folder: Path) -> None:
    picture(folder / "dog" / "clear.png", mode="RGBA")
    with pytest.raises(FileError, match=r"clear\.png is RGBA where colour"):
        data.image_folder(folder)


def test_other_size(folder: Path) -> None:
    picture(folder / "dog" / "large.png", size=(9, 8))
    with pytest.raises(FileError, match=r"large\.png is 8×9 pixels, but .* is 4×5; pass size="):
        data.image_folder(folder)
    assert data.image_folder(folder, size=(6, 7)).shape == (3, 6, 7)


def test_unreadable_image(folder: Path) -> None:
    (folder / "dog" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.raises(FileError, match=r"broken\.png cannot be read as an image .*replace or remove it"):
        data.image_folder(folder)


def test_truncated_image(folder: Path) -> None:
    rng = np.random.default_rng(0)
    path = folder / "dog" / "cut.png"
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(FileError, match=r"cut\.png cannot be read as an image"):
        data.image_folder(folder)


def test_page_in_place_of_an_image(folder: Path) -> None:
    (folder / "dog" / "page.jpg").write_text("<html>404</html>")
    with pytest.raises(FileError, match=r"page\.jpg cannot be read as an image"):
        data.image_folder(folder)


def test_one_class(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png")
    with pytest.raises(FileError, match=r"holds the only class 'cat'; a classifier needs at least two"):
        data.image_folder(tmp_path)


def test_no_class_no_folder_no_images(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no subfolder"):
        data.image_folder(tmp_path)
    with pytest.raises(FileError, match=r"nowhere is not a folder"):
        data.image_folder(tmp_path / "nowhere")
    picture(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(FileError, match="dog holds no images"):
        data.image_folder(tmp_path)


def test_splits_are_not_classes(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "cat" / "1.png")
    picture(tmp_path / "test" / "cat" / "1.png")
    with pytest.raises(InputError, match=r"holds the splits test, train; read them one by one"):
        data.image_folder(tmp_path)


def test_bad_arguments(folder: Path) -> None:
    with pytest.raises(InputError, match="channels=2"):
        data.image_folder(folder, channels=2)
    with pytest.raises(InputError, match=r"size=\(0, 4\)"):
        data.image_folder(folder, size=(0, 4))
