"""Small parts: schedule, moving average, overfitting watch, mirror descent, checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from randens.training.checkpoint import Position, Spent, load, save
from randens.training.losses import average, learning_rate
from randens.training.recipe import SchedulePart


def test_the_papers_schedule_divides_by_ten_at_50_and_75() -> None:
    part = SchedulePart(name="steps", milestones=(50, 75), factor=0.1)
    rates = [learning_rate(part, 0.1, epoch * 8, 8, 100) for epoch in (0, 49, 50, 74, 75, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_a_cycle_rises_to_the_peak_and_falls_to_nothing() -> None:
    part = SchedulePart(name="cyclic", peak=0.25)
    rates = [learning_rate(part, 1.0, step, 10, 10) for step in range(100)]
    assert int(np.argmax(rates)) in (24, 25)
    assert max(rates) == pytest.approx(1.0, abs=0.03)
    assert 0 < rates[0] < 0.03
    assert 0 < rates[-1] < 0.01
    assert learning_rate(SchedulePart(name="constant"), 0.3, 7, 10, 10) == 0.3


def test_the_average_follows_the_weights_and_the_statistics() -> None:
    target, source = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    values = {"weight": 3.0, "running_mean": 5.0, "num_batches_tracked": 7}
    for key, value in source.state_dict().items():
        value.fill_(values.get(key, 0))
    average(target, source, decay=0.9, step=1000)
    found = {key: value.tolist() for key, value in target.state_dict().items()}
    assert found["weight"] == pytest.approx([1.2, 1.2])
    assert found["running_mean"] == pytest.approx([0.5, 0.5])
    assert found["num_batches_tracked"] == 7
    average(target, source, decay=0.9, step=0)  # early on it forgets faster: d = 1/10
    assert target.weight.tolist() == pytest.approx([0.12 + 2.7, 0.12 + 2.7])


def _save(folder: Path, value: int) -> Path:
    tensors = {"weights": torch.full((3, 2), float(value)), "count": torch.tensor(4)}
    return save(folder, tensors, Position(finished=value, probs=None, spent=Spent(), stage=None))


def test_a_checkpoint_comes_back_and_only_two_are_kept(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    for value in (1, 2, 3):
        _save(tmp_path, value)
    assert len(list(tmp_path.iterdir())) == 2
    loaded = load(tmp_path)
    assert loaded is not None
    tensors, position, faults = loaded
    assert (position.finished, faults) == (3, [])
    assert torch.equal(tensors["weights"], torch.full((3, 2), 3.0))
    assert int(tensors["count"]) == 4


@pytest.mark.parametrize("damage", ["flip", "truncate", "position"])
def test_a_damaged_checkpoint_is_noticed_and_the_previous_one_used(tmp_path: Path, damage: str) -> None:
    _save(tmp_path, 1)
    newest = _save(tmp_path, 2)
    whole = newest.read_bytes()
    flipped, other = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:], whole.replace(b'd\\":2', b'd\\":7')
    assert whole not in (flipped, other)
    newest.write_bytes({"flip": flipped, "truncate": whole[:-5], "position": other}[damage])
    loaded = load(tmp_path)
    assert loaded is not None
    _, position, faults = loaded
    assert position.finished == 1
    assert len(faults) == 1
    assert str(newest) in faults[0]
