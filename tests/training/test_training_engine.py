"""The engine: stopped and continued runs, refused recipes, divergence, overfitting."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.training.small_runs import small

from randens import data
from randens.core.devices import read_tensors, tensor_checksum
from randens.core.errors import FileError, InputError
from randens.core.runs import Run
from randens.models import Classifier
from randens.training import Diverged, Recipe, Stopped, losses, train
from randens.training import engine as engine_module
from randens.training.alpha import Validated, attacked
from randens.training.engine import Engine
from randens.training.losses import learning_rate
from randens.training.recipe import SchedulePart
from randens.witness import WitnessPool


def _files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "ensemble").iterdir())}


def _played(n: int, risk: float) -> WitnessPool:
    """Witnesses of one member at this share of n images."""
    fooled = np.ones((round(n * risk), 1), dtype=bool)
    return WitnessPool(n, 1, np.arange(len(fooled)), fooled)


def _stop_after(steps: int) -> Any:
    asked = itertools.count(1)
    return lambda: next(asked) >= steps


ADAMW = {"optimizer": {"name": "adamw", "lr": 0.01}, "loss": {"name": "trades"}}


@pytest.mark.parametrize("changes", [{"method": "barre"}, {"method": "joint"}, {"method": "iat", **ADAMW}])
def test_a_stopped_run_continues_to_the_same_bytes(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = small(members=2, ema=0.9, data={"crop_padding": 1, "flip": True}, **changes)
    train(recipe, tmp_path / "whole")
    for steps in (3, 5, 4):
        with pytest.raises(Stopped, match="the same command continues"):
            train(recipe, tmp_path / "parts", stop=_stop_after(steps))
    said: list[str] = []
    train(recipe, tmp_path / "parts", say=said.append)
    assert any(line.startswith("continuing after member") for line in said)
    assert _files(tmp_path / "parts") == _files(tmp_path / "whole")

    def numbers(run: str) -> list[dict[str, Any]]:
        lines = Run.open(tmp_path / run).metrics()
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert numbers("parts") == numbers("whole")


def test_a_changed_recipe_is_refused_unless_forced(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(small(), tmp_path / "run", stop=_stop_after(2))
    changed = small(optimizer={"lr": 0.02})
    with pytest.raises(InputError, match=r"optimizer\.lr: 0\.1 → 0\.02.*--force"):
        train(changed, tmp_path / "run")
    said: list[str] = []
    train(changed, tmp_path / "run", force=True, say=said.append)
    assert "continuing with a changed recipe: optimizer.lr: 0.1 → 0.02" in said
    run = Run.open(tmp_path / "run")
    assert run.manifest["recipe"]["optimizer"]["lr"] == 0.02
    assert run.manifest["earlier_recipes"][0]["optimizer"]["lr"] == 0.1
    (tmp_path / "run" / "training.json").unlink()
    with pytest.raises(FileError, match="do not fit this recipe"):
        train(small(model={"width": 20}), tmp_path / "run", force=True)
    run.write("manifest", {**run.manifest, "recipe": {"method": "at"}})
    with pytest.raises(FileError, match=r"manifest.json is damaged: start again with --out"):
        train(small(), tmp_path / "run")


FORGED: list[Any] = [{"epoch": 3}, {"step": 10**9}, {"images": 0}, {"losses": []}]
FORGED += [{"probs": [-0.5]}, {"probs": [0.5, 0.5]}]
FORGED += [("trained", torch.bfloat16), ("optimizer", torch.float8_e4m3fn), ("best", torch.bool)]


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_checkpoint_is_damaged(tmp_path: Path, forged: Any) -> None:
    with pytest.raises(Stopped):
        train(small(), tmp_path / "run", stop=_stop_after(9))
    (path,) = (tmp_path / "run" / "checkpoints").iterdir()
    tensors, about = read_tensors(path)
    if isinstance(forged, dict):
        position = json.loads(about["position"])
        about["position"] = json.dumps({**position, "stage": {**position["stage"], **forged}})
    else:
        name = max(key for key in tensors if key.startswith(forged[0]))
        tensors[name] = tensors[name].to(forged[1])
    about["sha256"] = tensor_checksum(tensors, {"position": about["position"]})
    save_file(tensors, path, about)
    with pytest.raises(FileError, match="damaged: start again with --out"):
        train(small(), tmp_path / "run")


def test_where_a_run_is_computed_is_no_other_recipe(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(small(), tmp_path / "run", stop=_stop_after(2))
    moved = small(device="cpu", devices="auto", precision="auto", log_every=7, checkpoint={"seconds": 0})
    train(moved, tmp_path / "run")
    assert _files(tmp_path / "run") == _files_of(small(), tmp_path / "whole")


def _files_of(recipe: Recipe, folder: Path) -> dict[str, bytes]:
    train(recipe, folder)
    return _files(folder)


def test_more_members_can_be_added_to_a_finished_run_but_not_fewer(tmp_path: Path) -> None:
    two = small(method="iat", members=2)
    train(two, tmp_path / "run")
    three = train(small(method="iat", members=3), tmp_path / "run", force=True)
    assert len(three) == 3
    fresh = train(small(method="iat", members=3), tmp_path / "fresh")
    for a, b in zip(three.members, fresh.members, strict=True):
        assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    with pytest.raises(InputError, match=r"members is 2; .* holds 3 already"):
        train(two, tmp_path / "run", force=True)


def test_data_of_ones_own(tmp_path: Path) -> None:
    whole = data.as_data((np.random.default_rng(0).random((60, 5), dtype=np.float32), [0, 1, 2] * 20))
    rec = train(small(batch_size=16), tmp_path / "run", data=whole.hold_out(0.3))
    member = rec.members[0]
    assert isinstance(member, Classifier)
    assert (member.classes, member.input_shape) == (3, (5,))
    with pytest.raises(InputError, match="is the test split of digits"):
        train(small(), tmp_path / "test", data=(data.load("digits", "train"), data.load("digits", "test")))


def test_another_kind_of_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(FileError, match="no run folder"):
        train(small(), tmp_path / "notes")
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"
    Run.create(tmp_path / "other", kind="quickstart")
    with pytest.raises(FileError, match="another kind"):
        train(small(), tmp_path / "other")


def test_divergence_stops_with_the_last_good_state_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small(checkpoint={"seconds": 0}, epochs=3)

    def explodes(part: SchedulePart, base: float, step: int, steps: int, epochs: int) -> float:
        return learning_rate(part, base, step, steps, epochs) if step < 8 else float("inf")

    with monkeypatch.context() as patched:
        patched.setattr(losses, "learning_rate", explodes)
        with pytest.raises(Diverged, match=r"epoch 2, step 2: .* not finite; the last good state is kept"):
            train(recipe, tmp_path / "run")
    said: list[str] = []
    rec = train(recipe, tmp_path / "run", say=said.append)
    assert said[1:] == ["continuing after member 1, epoch 2, step 1"]
    whole = train(recipe, tmp_path / "whole")
    assert all(torch.equal(v, whole.state_dict()[k]) for k, v in rec.state_dict().items())


def test_catastrophic_overfitting_stops_a_member_and_keeps_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdicts are played: 40 % robust after epoch 2, then nothing, while training goes on as it does."""
    played = iter([0.3, 0.4, 0.02, 0.01, 0.5, 0.5])
    recipe = small(epochs=6, validation={"patience": 2})

    def verdict(*arguments: Any) -> Any:
        return dataclasses.replace(attacked(*arguments), pool=_played(100, 1 - next(played)))

    monkeypatch.setattr(engine_module, "attacked", verdict)
    said: list[str] = []
    train(recipe, tmp_path / "run", say=said.append)
    assert len(said) == 3
    assert "fell from 40.0% to 2.0%" in said[1]
    assert said[1].endswith("watching")
    assert said[2].endswith("training of this member stops, its best checkpoint is kept")
    lines = list(Run.open(tmp_path / "run").metrics())
    assert [line["event"] for line in lines].count("epoch") == 4
    assert next(line for line in lines if line["event"] == "member")["best_epoch"] == 2


@pytest.mark.parametrize(("keep", "epoch"), [("best", 2), ("last", 3)])
def test_the_best_checkpoint_is_kept_or_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str, epoch: int
) -> None:
    risks, states, real = iter([0.5, 0.2, 0.4]), [], Engine._keep_better

    def record(self: Any, stage: Any, choice: Validated) -> None:
        states.append({k: v.clone() for k, v in stage.averaged[0].state_dict().items()})
        real(self, stage, dataclasses.replace(choice, pool=_played(10, next(risks))))

    monkeypatch.setattr(Engine, "_keep_better", record)
    rec = train(small(epochs=3, validation={"keep": keep}), tmp_path / "run")
    assert all(torch.equal(v, states[epoch - 1][k]) for k, v in rec.members[0].state_dict().items())


def test_progress_is_told_per_epoch_member_and_run(tmp_path: Path) -> None:
    told: dict[str, list[tuple[float, float]]] = {}
    recipe: Recipe = small(method="barre", members=2)

    def progress(task: str, done: float, total: float) -> None:
        told.setdefault(task, []).append((done, total))

    train(recipe, tmp_path / "run", progress)
    assert set(told) == {"epoch", "member", "run"}
    done = [value for value, _ in told["run"]]
    assert done == sorted(done)
    assert told["run"][-1][0] == pytest.approx(told["run"][-1][1])
    assert told["run"][-1][1] == 2 * 3 + 2 * 5  # member 2 costs more: two victims
    assert told["member"][-1] == (14, 14)


def test_metrics_are_json_lines_with_what_one_wants_to_plot(tmp_path: Path) -> None:
    rates = {"lr": 0.08, "later_lr": 0.02}
    recipe = small(log_every=5, method="iat", members=2, optimizer=rates, schedule={"name": "constant"})
    train(recipe, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    member = ["step", "epoch", "step", "epoch", "member"]
    assert [line["event"] for line in lines] == [*member, *member, "finished"]
    assert {(line["member"], line["lr"]) for line in lines if line["event"] == "step"} == {
        (1, 0.08),
        (2, 0.02),
    }
    epoch = lines[1]
    assert {"member", "epoch", "loss", "accuracy", "natural", "robust", "probs", "seconds"} <= set(epoch)
    assert epoch["robust"] <= epoch["natural"]
    summary = Run.open(tmp_path / "run").read("training")
    assert summary["validation"]["robust_accuracy"] == pytest.approx(lines[-1]["robust"])


@pytest.mark.parametrize(
    ("adversary", "loss"),
    [
        ({"name": "fgsm-rs"}, {"name": "mce"}),
        ({"name": "n-fgsm"}, {"name": "cross-entropy"}),
        ({"name": "pgd", "level": "loss"}, {"name": "trades"}),
        ({"name": "pgd", "warmup": 2}, {"name": "trades", "weight": 2.0}),
        ({"name": "arc-r", "steps": 2}, {"name": "mce"}),
    ],
    ids=lambda part: "-".join(str(value) for value in part.values()),
)
def test_every_adversary_and_loss_trains_two_members(
    tmp_path: Path, adversary: dict[str, Any], loss: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {"epochs": 3, "batch_size": 100, "threat": {"eps": 0.03}}
    rec = train(small(method="barre", members=2, adversary=adversary, loss=loss, **changes), tmp_path / "run")
    lines = [line for line in Run.open(tmp_path / "run").metrics() if line["event"] == "epoch"]
    losses = [line["loss"][0] for line in lines if line["member"] == 1]
    x, y = data.load("digits", "test")[:]
    assert losses[-1] < losses[0] or "warmup" in adversary  # ε grows meanwhile, and the loss with it
    assert rec.accuracy(x, y) > 0.6
