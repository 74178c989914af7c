"""The store: lossless, addressed by content, for larger radii, for several processes, one sentence if damaged."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from randens import Threat, WitnessStore
from randens.core.errors import FileError
from randens.witness.fingerprints import input_keys, member_key
from randens.witness.store import Scope, Spent

THREAT = Threat("linf", 0.1)
X = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 3


def moved(x: torch.Tensor = X, eps: float = 0.1, seed: int = 1) -> torch.Tensor:
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype) * 2 - 1
    return THREAT.with_radius(eps).project(x + eps * noise, x)


def scope(*members: bytes, x: torch.Tensor = X, threat: Threat = THREAT) -> Scope:
    return Scope(x, input_keys(x, Y[: len(x)]), members, threat)


def filled(path: Path) -> tuple[WitnessStore, torch.Tensor, Any]:
    store, points = WitnessStore(path), moved()
    fooled = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1]], dtype=bool)
    spent = Spent(np.arange(6), fooled @ [0.5, 0.5], 60, 30, {"zero_gradient": [0.5, 0.0]})
    store.add(scope(b"a", b"b"), np.arange(6), points, fooled, ["pgd"] * 6, b"key", spent)
    return store, points, fooled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_come_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    x = X.to(dtype)
    points = moved(x)
    points[0] = x[0]
    WitnessStore(tmp_path).add(
        scope(b"a", x=x), np.arange(6), points, np.ones((6, 1), dtype=bool), [f"s{i}" for i in range(6)]
    )
    rows, verdicts, found, sources = WitnessStore(tmp_path).load(scope(b"a", x=x))
    assert rows.tolist() == list(range(6))
    assert torch.equal(found, points)
    assert found.dtype == dtype
    assert (verdicts == 1).all()
    assert sources == [f"s{i}" for i in range(6)]


def test_a_point_answers_for_every_larger_radius_and_no_smaller_one(tmp_path: Path) -> None:
    store, points, _ = filled(tmp_path)
    for eps, count in ((0.1, 5), (0.3, 5), (0.01, 0)):
        assert len(store.load(scope(b"a", b"b", threat=THREAT.with_radius(eps)))[0]) == count
    half = THREAT.with_radius(float(THREAT.distance(points, X)[2]))
    found = store.load(scope(b"a", b"b", threat=half))
    assert 2 in found[0]
    assert bool(half.contains(found[2], X[found[0]]).all())


def test_other_inputs_labels_boxes_and_norms_are_not_matched(tmp_path: Path) -> None:
    store, *_ = filled(tmp_path)
    others = [
        scope(b"a", b"b", x=X + 1e-3),
        Scope(X, input_keys(X, Y + 1), (b"a", b"b"), THREAT),
        scope(b"a", b"b", threat=Threat("linf", 0.1, (0.0, 2.0))),
        scope(b"a", b"b", threat=Threat("l2", 5.0)),
    ]
    assert all(len(store.load(other)[0]) == 0 for other in others)
    assert not WitnessStore(tmp_path, fresh=True).searched(scope(b"a", b"b"))
    assert len(WitnessStore(tmp_path, fresh=True).load(scope(b"a", b"b"))[0]) == 0


def test_members_share_points_whatever_their_order_and_company(tmp_path: Path) -> None:
    store, points, fooled = filled(tmp_path)
    rows, verdicts, _, _ = store.load(scope(b"b", b"new", b"a", b"b"))
    assert rows.tolist() == [0, 1, 2, 4, 5]
    assert verdicts[:, [2, 0]].tolist() == fooled[rows].astype(int).tolist()
    assert (verdicts[:, 1] == -1).all()
    assert verdicts[:, 0].tolist() == verdicts[:, 3].tolist()
    assert store.verdicts(scope(b"a", b"new"), np.array([3]), points[3:4]).tolist() == [[0, -1]]
    assert store.verdicts(scope(b"a"), np.array([3]), points[2:3]).tolist() == [[-1]]


def test_searches_are_known_for_the_inputs_they_were_made_on(tmp_path: Path) -> None:
    store, *_ = filled(tmp_path)
    found = store.searched(scope(b"other", x=X[:3]))
    assert list(found) == [b"key"]
    assert sorted(found[b"key"].rows.tolist()) == [0, 1, 2]
    assert found[b"key"].forwards == pytest.approx(30)
    assert found[b"key"].flags == {"zero_gradient": [pytest.approx(0.5), 0.0]}
    store.add_note(b"n", {"a": [1, 2]})
    assert (store.note(b"n", dict), store.note(b"m", dict)) == ({"a": [1, 2]}, None)


def test_keys_tell_members_and_inputs_apart() -> None:
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    same = nn.Linear(3, 2)
    same.load_state_dict(one.state_dict())
    assert member_key(one) == member_key(same) == member_key(one.train())
    assert member_key(one) != member_key(two)
    assert member_key(nn.Sequential(one, nn.ReLU())) != member_key(nn.Sequential(one, nn.Tanh()))
    quantize: Any = torch.ao.quantization.quantize_dynamic
    packed = [member_key(quantize(nn.Sequential(net), {nn.Linear})) for net in (one, two)]
    assert packed[0] != packed[1]
    bare = nn.ReLU()
    assert member_key(bare) == member_key(bare) != member_key(nn.ReLU())
    assert len(set(input_keys(X, Y)) | set(input_keys(X.double(), Y)) | set(input_keys(X, Y + 1))) == 18


def _fill(path: Path, first: int) -> None:
    for seed in range(first, first + 20):
        points = moved(seed=seed)
        WitnessStore(path).add(scope(b"a"), np.arange(6), points, np.ones((6, 1), dtype=bool), ["x"] * 6)


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=_fill, args=(tmp_path, 100))
    other.start()
    _fill(tmp_path, 0)
    other.join()
    assert other.exitcode == 0
    assert len(WitnessStore(tmp_path).load(scope(b"a"))[0]) == 2 * 20 * 6


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE points SET bits = 'text'",
        "UPDATE searches SET forwards = 9e999",
        "CREATE VIEW endless AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT n FROM r",
    ],
)
def test_altered_files_are_one_sentence(tmp_path: Path, damage: str) -> None:
    store, *_ = filled(tmp_path)
    with sqlite3.connect(store.path) as db:
        db.execute(damage)
    with pytest.raises(FileError, match=r"witnesses\.sqlite cannot be used"):
        (store.searched if "searches" in damage else store.load)(scope(b"a", b"b"))


def test_other_files_are_one_sentence(tmp_path: Path) -> None:
    store, *_ = filled(tmp_path)
    store.add_note(b"n", 3)
    with pytest.raises(FileError, match=r"witnesses\.sqlite .* not iterable"):
        store.note(b"n", list)
    os.mkfifo(f"{store.path}-journal")
    with pytest.raises(FileError, match="sqlite-journal is no regular file"):
        store.load(scope(b"a", b"b"))
    Path(f"{store.path}-journal").unlink()
    store.path.write_bytes(b"not a database" * 100)
    with pytest.raises(FileError, match=r"witnesses\.sqlite .* not a database"):
        store.load(scope(b"a", b"b"))
