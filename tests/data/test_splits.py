"""Splits: disjoint, class-balanced, the same everywhere."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from randens import data
from randens.core.errors import FileError, InputError


def test_digits_are_scikit_learns_divided_by_sixteen() -> None:
    parts = [data.load("digits", split) for split in data.SPLITS]
    assert [len(part) for part in parts] == [1257, 180, 360]
    ours = torch.cat([part.x for part in parts]).flatten(1)
    theirs = torch.from_numpy(load_digits().data.astype(np.float32) / 16)
    assert ours.dtype == torch.float32
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.tolist()))
    assert parts[0].shape == (1, 8, 8)
    assert parts[0].classes == tuple("0123456789")


def test_digits_splits_never_change() -> None:
    found = {
        split: hashlib.sha256(data.load("digits", split).y.numpy().astype("<i8").tobytes()).hexdigest()[:16]
        for split in data.SPLITS
    }
    assert found == {
        "train": "3672030b3f6ffd91",
        "validation": "0368a1048ecb7e34",
        "test": "ebf3447d734a5296",
    }
    assert data.load("digits", "validation").counts().tolist() == [18] * 10
    assert data.load("digits", "test").counts().tolist() == [36] * 10


def test_hold_out_is_disjoint_complete_and_proportional() -> None:
    x = np.arange(300, dtype=np.float32)[:, None] / 300
    y = np.repeat([0, 1, 2], [200, 80, 20])
    whole = data.as_data((x, y))
    train, validation = whole.hold_out(0.1)
    assert validation.counts().tolist() == [20, 8, 2]
    assert (train.split, validation.split) == ("train", "validation")
    assert sorted(torch.cat([train.x, validation.x]).flatten().tolist()) == whole.x.flatten().tolist()
    assert train.x.flatten().tolist() == sorted(train.x.flatten().tolist())
    assert torch.equal(whole.hold_out(0.1)[1].x, validation.x)
    assert not torch.equal(whole.hold_out(0.1, seed=1)[1].x, validation.x)


@pytest.mark.parametrize(
    ("split", "y", "share", "message"),
    [
        ("test", [0, 0, 1, 1], 0.1, "this is test data"),
        ("train", [0, 0, 1, 1], 1.0, "between 0 and 1"),
        ("train", [0, 0, 0, 1], 0.1, "class 1 has 1 inputs"),
    ],
)
def test_hold_out_refuses(split: str, y: list[int], share: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        data.as_data((np.zeros((4, 2)), y), split=split).hold_out(share)


def test_unknown_names_list_the_closest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown data set 'cifar-10'; did you mean cifar10"):
        data.load("cifar-10", "test")
    with pytest.raises(InputError, match="unknown split 'valid'; did you mean validation"):
        data.load("digits", "valid")
    monkeypatch.setenv("RANDENS_DATA", "nowhere")
    with pytest.raises(FileError, match=r"cifar10 is not in .*; run `randens data fetch cifar10` first"):
        data.load("cifar10", "test")


def test_folder_comes_from_environment_then_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANDENS_DATA", raising=False)
    platform = data.data_folder()
    assert "randens" in platform.parts
    monkeypatch.setenv("RANDENS_DATA", str(tmp_path / "env"))
    assert data.data_folder() == tmp_path / "env"
