"""Callbacks are told what training and evaluation measured; trackers write it down, each in its offline mode."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import randens
from randens.callbacks import (
    Callback,
    CSVTracker,
    MLflowTracker,
    NotebookProgress,
    TensorBoardTracker,
    WandbTracker,
)
from randens.core.errors import FileError, InputError
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
    recorder, table = Recorder(), CSVTracker(tmp_path / "run.csv")
    assert isinstance(recorder, Callback)
    rec = train(Recipe(**RECIPE), tmp_path / "run", callbacks=[recorder, table])
    assert [(task, number) for task, number, _ in recorder.epochs] == [("member-1", 1), ("member-1", 2)]
    assert all({"loss", "accuracy", "natural", "robust"} <= set(values) for _, _, values in recorder.epochs)
    steps = recorder.batches[-1][2]
    assert [done for _, done, _ in recorder.batches] == [*range(1, int(steps) + 1)] * 2
    assert [task for task, _ in recorder.ends] == ["training"]
    rows = list(csv.DictReader((tmp_path / "run.csv").open(encoding="utf-8")))
    written = {(r["task"], r["event"], r["number"], r["name"]): float(r["value"]) for r in rows}
    assert written["member-1", "epoch", "2", "loss"] == recorder.epochs[1][2]["loss"]
    assert written["training", "finished", "0", "robust"] == recorder.ends[0][1]["robust"]

    watcher = Recorder()
    result = randens.evaluate(rec, "digits", "fgsm", limit=40, callbacks=[watcher])
    assert watcher.ends == [
        ("evaluation", {"natural": float(result.natural), "robust": float(result.robust)})
    ]
    assert watcher.batches
    assert all(done <= total for _, done, total in watcher.batches)


def _tell(tracker: Callback) -> None:
    tracker.epoch("member-1", 1, {"loss": 0.5, "robust": 0.25})
    tracker.epoch("member-1", 2, {"loss": 0.4, "robust": 0.5})
    tracker.batch("member-1", 1, 2, {"loss": 0.5})
    tracker.finished("training", {"robust": 0.5})


def test_tensorboard_event_files_hold_the_values(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _tell(TensorBoardTracker(tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("member-1/loss")] == [(1, 0.5), (2, 0.4)]
    assert [e.value for e in events.Scalars("training/robust")] == [0.5]


def test_mlflow_files_hold_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("randens")
    with mlflow.start_run() as run:
        _tell(MLflowTracker(mlflow))
    history = mlflow.tracking.MlflowClient().get_metric_history(run.info.run_id, "member-1/robust")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5)]


def test_wandb_logs_in_its_offline_mode(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    run = wandb.init(
        mode="offline", dir=str(tmp_path), project="randens", settings=wandb.Settings(silent=True)
    )
    _tell(WandbTracker(run))
    assert run.summary["training/robust"] == 0.5
    assert run.summary["member-1/loss"] == 0.4
    run.finish()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_a_notebook_shows_each_line_once() -> None:
    shown: list[str] = []
    progress = NotebookProgress(shown.append)
    for done in (0, 1, 1, 2):
        progress("pgd on the ensemble", done, 2)
    progress.epoch("member-1", 3, {"loss": 0.5})
    assert shown == [
        "pgd on the ensemble: 0 %",
        "pgd on the ensemble: 50 %",
        "pgd on the ensemble: 100 %",
        "member-1, epoch 3: loss 0.5",
    ]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    randens.evaluate(net, "digits", "fgsm", limit=4, progress=progress)
    assert shown[-1].endswith("100 %")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([3], "callbacks holds a int; each must be an object with epoch, batch and finished"),
        ([CSVTracker], "callbacks holds CSVTracker; each must be an object"),
        ("out.csv", "callbacks is a str; give a list of callbacks"),
        (NotebookProgress(print), "callbacks is a NotebookProgress; give a list"),
    ],
)
def test_what_is_no_callback_is_one_sentence(given: Any, said: str, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    with pytest.raises(InputError, match=said):
        randens.evaluate(net, "digits", "fgsm", eps=0.1, limit=2, callbacks=given)
    with pytest.raises(InputError, match=said):
        train(Recipe.model_validate(RECIPE), tmp_path / "r", callbacks=given)
    assert not (tmp_path / "r").exists()


def test_trackers_without_what_they_track_to_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run is a NoneType; give the run that wandb\.init"):
        WandbTracker(None)
    with pytest.raises(InputError, match="mlflow is a str; give the module mlflow"):
        MLflowTracker("mlflow")
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot write"):
        CSVTracker(tmp_path / "file" / "out.csv").finished("evaluation", {"robust": 0.5})
