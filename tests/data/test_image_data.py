"""The value object, and making it from arrays and datasets."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from randens import data
from randens.core.errors import InputError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (7, 3, 5, 4), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0])


def test_bytes_are_stored_as_bytes_and_read_as_floats() -> None:
    images = data.from_arrays(PIXELS, LABELS)
    assert images.stored.dtype == torch.uint8
    assert torch.equal(images.x, torch.from_numpy(PIXELS.astype(np.float32) / np.float32(255)))
    assert images.float().stored.dtype == torch.float32
    assert torch.equal(images.float().x, images.x)
    assert images.y.dtype == torch.int64
    assert (len(images), images.shape, images.classes, images.split) == (
        7,
        (3, 5, 4),
        ("0", "1", "2"),
        "train",
    )


def test_reading_does_not_change_what_is_stored() -> None:
    images = data.from_arrays(np.full((2, 1, 2, 2), 0.5, dtype=np.float32), [0, 1])
    for batch in (images[[0, 1]], images[:], *images.batches(2)):
        batch[0].add_(1)
        batch[1].add_(1)
    assert images.y.tolist() == [0, 1]
    assert images.x.max() == 0.5


def test_it_is_frozen() -> None:
    images = data.from_arrays(PIXELS, LABELS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        images.split = "test"  # type: ignore[misc]


def test_indexing_and_subsets() -> None:
    images = data.from_arrays(PIXELS, LABELS)
    x, y = images[[5, 2]]
    assert torch.equal(x, images.x[[5, 2]])
    assert y.tolist() == [2, 2]
    assert torch.equal(images[1:3][0], images.x[1:3])
    assert images.subset(images.y == 1).y.tolist() == [1, 1]
    assert torch.equal(images.subset(range(2)).stored, images.stored[:2])
    assert len(images.subset([])) == 0
    for wrong in ([7], [-8], [0.5], [[0, 1]]):
        with pytest.raises(InputError, match="indices run from"):
            images.subset(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mask of shape"):
        images.subset(torch.tensor([True, False]))


def test_batches_cover_everything_once_in_order() -> None:
    images = data.from_arrays(PIXELS, LABELS)
    batches = list(images.batches(3))
    assert [len(x) for x, _ in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in batches]), images.x)
    assert torch.cat([y for _, y in batches]).tolist() == LABELS.tolist()
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="batch_size is"):
            next(images.batches(wrong))  # type: ignore[arg-type]


def test_shuffled_batches_use_only_their_generator() -> None:
    images = data.from_arrays(PIXELS, LABELS)
    before = torch.get_rng_state()
    orders = [
        torch.cat([x for x, _ in images.batches(3, generator=torch.Generator().manual_seed(seed))])
        for seed in (0, 0, 1)
    ]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert sorted(orders[0].sum((1, 2, 3)).tolist()) == pytest.approx(
        sorted(images.x.sum((1, 2, 3)).tolist())
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_mean_and_std_against_numpy() -> None:
    images = data.from_arrays(PIXELS, LABELS)
    mean, std = images.mean_std()
    assert mean == pytest.approx((PIXELS / 255).mean((0, 2, 3)).tolist(), abs=1e-6)
    assert std == pytest.approx((PIXELS / 255).std((0, 2, 3)).tolist(), abs=1e-6)
    assert data.from_arrays(np.zeros((2, 1, 2, 2), dtype=np.uint8), [0, 1]).mean_std() == ([0.0], [1.0])


def test_grey_images_get_a_channel_and_features_stay_flat() -> None:
    assert data.from_arrays(np.zeros((4, 6, 5), dtype=np.uint8), [0, 1, 0, 1]).shape == (1, 6, 5)
    assert data.from_arrays(np.zeros((4, 6)), [0, 1, 0, 1]).shape == (6,)


def test_classes_may_be_named_or_counted() -> None:
    assert data.from_arrays(PIXELS, LABELS, classes=("a", "b", "c")).classes == ("a", "b", "c")
    assert data.from_arrays(PIXELS, LABELS, classes=4).counts().tolist() == [3, 2, 2, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": PIXELS.transpose(0, 2, 3, 1)}, r"channels last; pass x\.transpose\(0, 3, 1, 2\)"),
        ({"x": PIXELS.astype(np.int64)}, r"x has type torch\.int64; valid: uint8"),
        ({"x": PIXELS.astype(np.float32)}, r"x ranges from 0 to 255; scale"),
        ({"x": np.full(PIXELS.shape, np.nan)}, "x ranges from nan to nan"),
        ({"x": PIXELS[:0]}, r"x has shape \(0, 3, 5, 4\)"),
        ({"x": PIXELS[0, 0, 0]}, r"x has shape \(4,\)"),
        ({"y": LABELS[:3]}, r"y has shape \(3,\); for 7 images it must be \(7,\)"),
        ({"y": np.eye(3)[LABELS]}, r"y has shape \(7, 3\)"),
        ({"y": LABELS.astype(np.float32)}, r"y has type torch\.float32; labels must be integers"),
        ({"classes": 2}, r"y\[2\] is 2; labels of 2 classes run from 0 to 1"),
        ({"y": LABELS - 1, "classes": 3}, r"y\[0\] is -1; labels of 3 classes"),
        ({"y": LABELS * 0}, "names fewer than two"),
        ({"split": "dev"}, "unknown split 'dev'; valid: "),
    ],
)
def test_bad_arrays(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        data.from_arrays(**{"x": PIXELS, "y": LABELS, **changes})


class _Pictures(Dataset[Any]):
    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return Image.fromarray(np.full((6, 5, 3), 10 * index, dtype=np.uint8)), index % 2


class _Numbers(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


def test_any_dataset_can_be_read() -> None:
    tensors = data.from_dataset(
        TensorDataset(torch.from_numpy(PIXELS), torch.from_numpy(LABELS)), split="test"
    )
    assert torch.equal(tensors.stored, torch.from_numpy(PIXELS))
    assert (tensors.split, tensors.y.tolist()) == ("test", LABELS.tolist())
    seen: list[tuple[str, float, float]] = []
    pictures = data.from_dataset(_Pictures(), progress=lambda *report: seen.append(report))
    assert seen[-1] == ("read _pictures", 4, 4)
    assert (pictures.shape, pictures.classes) == ((3, 6, 5), ("cat", "dog"))
    assert pictures.stored[:, 0, 0, 0].tolist() == [0, 10, 20, 30]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (_Stream(), "has no length"),
        (_Numbers([]), "is empty"),
        (_Numbers([torch.zeros(1, 2, 2)] * 2), r"dataset\[0\] is not a pair"),
        (
            _Numbers([(torch.zeros(1, 2, 2), 0), (torch.zeros(1, 3, 2), 1)]),
            r"dataset\[1\] has shape \(1, 3, 2\)",
        ),
        (_Numbers([("picture", 0), ("picture", 1)]), r"dataset\[0\] is not a pair"),
        (_Numbers([(torch.zeros(1, 2, 2), "cat")] * 2), r"dataset\[0\] is not a pair"),
    ],
)
def test_bad_datasets(dataset: Dataset[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        data.from_dataset(dataset)
