"""Callbacks are called with what training and evaluation measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from randens.callbacks import Callback, TensorBoardTracker
from randens.core.errors import InputError
from randens.training import Recipe, train

RECIPE: dict[str, Any] = {
    "method": "at",
    "data": {"name": "digits"},
    "model": {"name": "linear"},
    "threat": {"norm": "linf", "eps": "8/255"},
    "adversary": {"steps": 1},
    "validation": {"attack": "fgsm", "size": 50},
    "epochs": 2,
    "batch_size": 500,
}


class Recorder:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.epochs: list[tuple[str, int, dict[str, float]]] = []
        self.batches: list[tuple[str, float, float]] = []
        self.ends: list[tuple[str, dict[str, float]]] = []

    def epoch(self, task: str, number: int, values: Mapping[str, float]) -> None:
        self.epochs.append((task, number, dict(values)))

    def batch(self, task: str, done: float, total: float, values: Mapping[str, float]) -> None:
        del values
        self.batches.append((task, done, total))

    def finished(self, task: str, values: Mapping[str, float]) -> None:
        self.ends.append((task, dict(values)))


def test_training_and_evaluation_tell_the_same_three_things(tmp_path: Path) -> None:
    recorder = Recorder()
    assert isinstance(recorder, Callback)
    train(Recipe(**RECIPE), tmp_path / "run", callbacks=[recorder])
    assert [(task, number) for task, number, _ in recorder.epochs] == [("member-1", 1), ("member-1", 2)]
    assert all({"loss", "accuracy", "natural", "robust"} <= set(values) for _, _, values in recorder.epochs)
    steps = recorder.batches[-1][2]
    assert [done for _, done, _ in recorder.batches] == [*range(1, int(steps) + 1)] * 2
    assert [task for task, _ in recorder.ends] == ["training"]


def test_tensorboard_event_files_hold_the_values(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoardTracker(tmp_path)
    for epoch, loss in enumerate((0.5, 0.4), start=1):
        tracker.epoch("member-1", epoch, {"loss": loss})
        tracker.batch("member-1", 1, 2, {"loss": loss})
    tracker.finished("training", {"robust": 0.5})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("member-1/loss")] == [(1, 0.5), (2, 0.4)]
    assert [e.value for e in events.Scalars("training/robust")] == [0.5]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([3], "callbacks holds 3; each needs epoch"),
        ([Recorder], "each needs epoch"),
        ("out.csv", "callbacks is a str; give a list of callbacks"),
        (Recorder(), "callbacks is a Recorder; give a list"),
    ],
)
def test_what_is_no_callback_is_one_sentence(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        train(Recipe.model_validate(RECIPE), tmp_path / "r", callbacks=given)
    assert not (tmp_path / "r").exists()
