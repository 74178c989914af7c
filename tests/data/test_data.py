"""The value object, and `as_data` of everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from randens.core.errors import InputError
from randens.data import as_data, load

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (7, 3, 5, 4), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0])
X = torch.from_numpy(PIXELS.astype(np.float32) / np.float32(255))
IMAGES = replace(as_data((PIXELS, LABELS), split="train", classes=("a", "b", "c")), name="mine")


def test_bytes_are_stored_as_bytes_and_read_as_floats() -> None:
    assert isinstance(IMAGES.stored, torch.Tensor)
    assert IMAGES.stored.dtype == torch.uint8
    assert torch.equal(IMAGES.x, X)
    assert repr(IMAGES) == "Data(mine train, 7 × (3, 5, 4), 3 classes)"


@pytest.mark.parametrize(
    "rows", [[5, 2], (5, 2), np.array([5, 2]), torch.tensor([5, 2], dtype=torch.int32), [-2, 2], range(1, 3)]
)
def test_rows_and_subsets(rows: Any) -> None:
    x, y = IMAGES[rows]
    chosen = [int(row) for row in rows]
    assert torch.equal(x, X[chosen])
    assert y.tolist() == LABELS[chosen].tolist()
    part = IMAGES.subset(rows)
    assert torch.equal(part.x, x)
    assert (part.split, part.classes, part.name) == ("train", IMAGES.classes, "mine")


def test_slices_masks_and_single_rows() -> None:
    assert torch.equal(IMAGES[1:3][0], X[1:3])
    assert IMAGES[torch.from_numpy(LABELS == 1)][1].tolist() == [1, 1]
    assert len(IMAGES.subset([])) == 0
    x, y = IMAGES[3]
    assert torch.equal(x, X[3])
    assert y == 0
    for wrong in ([7], [-8], [0.5], [[0, 1]], torch.tensor([True, False])):
        with pytest.raises(InputError, match="rows"):
            IMAGES.subset(wrong)  # type: ignore[arg-type]


def test_reading_does_not_change_what_is_stored() -> None:
    images = as_data((torch.full((2, 1, 2, 2), 0.5), [0, 1]))
    for batch in (images[[0, 1]], images[:], *images.batches(2)):
        batch[0].add_(1)
        batch[1].add_(1)
    assert images.y.tolist() == [0, 1]
    assert images.x.max() == 0.5


def test_batches_cover_everything_once_and_use_only_their_generator() -> None:
    before = torch.get_rng_state()
    batches = list(IMAGES.batches(3))
    assert [len(x) for x, _ in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in batches]), X)
    orders = [
        torch.cat([x for x, _ in IMAGES.batches(3, generator=torch.Generator().manual_seed(seed))])
        for seed in (0, 0, 1)
    ]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert sorted(orders[0].sum((1, 2, 3)).tolist()) == pytest.approx(sorted(X.sum((1, 2, 3)).tolist()))
    assert torch.equal(torch.get_rng_state(), before)


def test_mean_and_std_against_numpy() -> None:
    mean, std = IMAGES.mean_std()
    assert mean == pytest.approx((PIXELS / 255).mean((0, 2, 3)).tolist(), abs=1e-6)
    assert std == pytest.approx((PIXELS / 255).std((0, 2, 3)).tolist(), abs=1e-6)
    assert as_data((np.zeros((2, 1, 2, 2), dtype=np.uint8), [0, 1])).mean_std() == ([0.0], [1.0])


class _Pictures(Dataset[Any]):
    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return Image.fromarray(np.full((6, 5, 3), 10 * index, dtype=np.uint8)), index % 2


class _Stream(IterableDataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def test_every_kind_gives_the_same_data(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    tensors = torch.from_numpy(PIXELS), torch.from_numpy(LABELS)
    np.savez(tmp_path / "mine.npz", x=PIXELS, y=LABELS)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    drawn = [Image.fromarray(image) for image in PIXELS.transpose(0, 2, 3, 1)]
    table = datasets.Dataset.from_dict({"image": drawn, "label": LABELS.tolist()}, features, split="test")
    kinds: list[tuple[Any, str]] = [
        ((PIXELS, LABELS), "arrays"),
        ([PIXELS.transpose(0, 2, 3, 1), LABELS[:, None]], "arrays"),
        (tensors, "tensors"),
        (TensorDataset(*tensors), "tensordataset"),
        (DataLoader(TensorDataset(*tensors), batch_size=3), "loader"),
        (list(zip(torch.split(tensors[0], 2), torch.split(tensors[1], 2), strict=True)), "loader"),
        (_Stream([{"pixel_values": x, "labels": y} for x, y in zip(*tensors, strict=True)]), "_stream"),
        (str(tmp_path / "mine.npz"), "mine.npz"),
        (table, "datasets"),
        (IMAGES, "mine"),
        (DataLoader(IMAGES, batch_size=2, num_workers=1), "mine"),
    ]
    for kind, name in kinds:
        found = as_data(kind)
        assert torch.equal(found.x, X), name
        assert found.y.tolist() == LABELS.tolist(), name
        assert found.name == name
        assert found.split == {"datasets": "test", "mine": "train"}.get(name, "unknown")
        assert as_data(kind, limit=4)[:][1].tolist() == LABELS[:4].tolist()
    assert as_data(table).classes == ("a", "b", "c")
    pictures = as_data(_Pictures())
    assert (pictures.shape, pictures.classes) == ((3, 6, 5), ("cat", "dog"))
    assert as_data("digits").split == "test"
    assert torch.equal(as_data("digits", split="train", limit=5).x, load("digits", "train")[:5][0])


@pytest.mark.parametrize(
    ("x", "shape", "dtype", "notes"),
    [
        (np.zeros((4, 6, 5), dtype=np.uint8), (1, 6, 5), torch.float32, 1),
        (np.zeros((4, 6)), (6,), torch.float32, 0),
        (torch.zeros(4, 6, dtype=torch.float64), (6,), torch.float64, 0),
        (torch.zeros(4, 6, dtype=torch.bfloat16), (6,), torch.float32, 0),
        (np.zeros((4, 8, 8, 3), dtype=">f8"), (3, 8, 8), torch.float32, 1),
        (torch.zeros(4, 3, 8, 8, requires_grad=True), (3, 8, 8), torch.float32, 0),
    ],
)
def test_types_and_axes(x: Any, shape: tuple[int, ...], dtype: torch.dtype, notes: int) -> None:
    found = as_data((x, [0, 1, 0, 1]))
    assert (found.shape, found.x.dtype, len(found.notes)) == (shape, dtype, notes)
    assert not found.x.requires_grad


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((PIXELS.astype(np.int64), LABELS), {}, "floating point, or uint8"),
        ((PIXELS[:0], LABELS[:0]), {}, "empty"),
        ((PIXELS[0, 0, 0], LABELS[:4]), {}, r"\[n, ...\]"),
        ((PIXELS, LABELS[:3]), {}, r"y \(3,\); give inputs"),
        ((PIXELS, np.eye(3)[LABELS]), {}, "give integers"),
        ((PIXELS, LABELS), {"classes": 2}, "are 0 to 2; labels of 2 classes"),
        ((PIXELS, LABELS - 1), {}, "are -1 to 1"),
        ((PIXELS, LABELS), {"classes": ["one"]}, "labels of 1 classes"),
        ((PIXELS, LABELS), {"classes": 3.5}, "classes is 3.5"),
        ((PIXELS, LABELS), {"split": "dev"}, "unknown split"),
        ((PIXELS, LABELS), {"limit": 0}, "limit"),
        (IMAGES, {"split": "test"}, "train split"),
        ((X.to_sparse(), LABELS), {}, "dense"),
        ((torch.zeros(7, 2, device="meta"), LABELS), {}, "dense"),
        ({"train": None}, {}, "data is a dict; give"),
        ("x" * 5000, {}, "unknown data set"),
        (7, {}, "give"),
        (_Stream([]), {}, "empty"),
        (_Stream([torch.zeros(1, 2, 2)]), {}, "must be a pair"),
        (_Stream([{"image": 1}]), {}, "to image and"),
        (_Stream([("picture", 0)]), {}, "must be tensors"),
        (_Stream([(torch.zeros(2), "cat")]), {}, "give class numbers"),
        (_Stream([(torch.zeros(1, 2), 0), (torch.zeros(1, 3), 1)]), {}, "all must agree"),
        ([(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))], {}, "3 inputs and 2 labels"),
    ],
)
def test_bad_data_gets_one_sentence(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_data(given, **options)
