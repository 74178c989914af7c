"""Methods: where members start, which are attacked, how α moves; and that methods share their first member."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.small_runs import small
from torch import nn

from randens.core.errors import InputError
from randens.core.runs import Run
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, load
from randens.training import plan, train
from randens.training.alpha import floored
from randens.training.methods import METHODS, Bounded, StageMembers, uniform


def _stage(finished: int, trained: int) -> StageMembers:
    members = [nn.Linear(1, 2) for _ in range(finished + trained)]
    probs = np.arange(1.0, finished + trained + 1)
    return StageMembers(members[:finished], members[finished:], probs / probs.sum())


def _weights(rec: RandomizedEnsemble, index: int) -> dict[str, torch.Tensor]:
    return dict(rec.members[index].state_dict())


def _equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def test_which_members_are_attacked() -> None:
    stage = _stage(2, 1)
    everyone = stage.all
    expected = {
        "at": ([everyone[2]], [1.0]),
        "iat": ([everyone[2]], [1.0]),
        "mrboost": (everyone, [1 / 3] * 3),
        "barre": (everyone, stage.probs.tolist()),
        "bat": ([everyone[0]], [1.0]),
        "joint": (everyone, stage.probs.tolist()),
    }
    for name, (members, probs) in expected.items():
        attacked, weights = METHODS[name]().attacked(stage)
        assert list(attacked) == members, name
        assert weights.tolist() == pytest.approx(probs), name


def test_what_checkpoints_are_compared_by() -> None:
    stage = _stage(2, 1)
    assert list(METHODS["iat"]().validated(stage).members) == list(stage.trained)
    boosted = METHODS["mrboost"]().validated(stage).members
    assert len(boosted) == 1
    assert isinstance(boosted[0], DeterministicEnsemble)
    assert list(boosted[0].members) == stage.all
    assert METHODS["barre"]().validated(stage).probs.tolist() == pytest.approx(stage.probs.tolist())


def test_levels_follow_the_table() -> None:
    levels = {name: METHODS[name]().level for name in METHODS}
    assert levels == {
        "at": "loss",
        "iat": "loss",
        "mrboost": "logits",
        "barre": "softmax",
        "bat": "loss",
        "joint": "softmax",
        "bounded": "bounded",
    }
    assert METHODS["joint"]().stages(3) == [3]
    assert METHODS["barre"]().stages(3) == [1, 1, 1]
    assert uniform(4).tolist() == [0.25] * 4


def test_all_methods_share_their_first_member_bit_by_bit(tmp_path: Path) -> None:
    first = _weights(train(small(), tmp_path / "at"), 0)
    for method in ("iat", "mrboost", "barre", "bat"):
        rec = train(small(method=method, members=2), tmp_path / method)
        assert _equal(_weights(rec, 0), first), method
        assert not _equal(_weights(rec, 1), first), method
        assert len(rec) == 2


def test_a_given_first_member_is_taken_and_costs_nothing(tmp_path: Path) -> None:
    at = train(small(seed=5), tmp_path / "at")
    recipe = small(method="barre", members=2, first=str(tmp_path / "at"))
    rec = train(recipe, tmp_path / "barre")
    assert _equal(_weights(rec, 0), _weights(at, 0))
    stages = {line["member"] for line in Run.open(tmp_path / "barre").metrics() if line["event"] == "epoch"}
    assert stages == {2}
    assert [stage.epochs for stage in plan(recipe).stages] == [0, 2]
    other = small(method="barre", members=2, first=str(tmp_path / "at"), model={"width": 17})
    with pytest.raises(InputError, match=r"another architecture: width: 16 → 17"):
        train(other, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_barre_starts_from_the_previous_member_and_moves_alpha(tmp_path: Path) -> None:
    # With a rate next to nothing the second member stays where it started.
    recipe = small(method="barre", members=2, optimizer={"lr": 1e-9, "weight_decay": 0.0}, epochs=1)
    rec = train(recipe, tmp_path / "still")
    for key, value in _weights(rec, 0).items():
        assert torch.allclose(value, _weights(rec, 1)[key], atol=1e-6), key
    independent = train(recipe.model_copy(update={"method": "iat"}), tmp_path / "independent")
    assert not torch.allclose(
        _weights(independent, 0)["body.layers.1.weight"], _weights(independent, 1)["body.layers.1.weight"]
    )
    moving = train(small(method="barre", members=2, epochs=3), tmp_path / "moving")
    lines = [line for line in Run.open(tmp_path / "moving").metrics() if line["event"] == "epoch"]
    alphas = [line["probs"] for line in lines if line["member"] == 2]
    assert any(alpha != [0.5, 0.5] for alpha in alphas)
    assert all(alpha[-1] >= 0.25 - 1e-12 for alpha in alphas)
    assert float(moving.probs.sum()) == pytest.approx(1.0)


def test_joint_training_moves_all_members_and_alpha_at_once(tmp_path: Path) -> None:
    rec = train(small(method="joint", members=3, sampling={"method": "uniform"}), tmp_path / "joint")
    assert len(rec) == 3
    lines = [line for line in Run.open(tmp_path / "joint").metrics() if line["event"] == "epoch"]
    assert all(len(line["loss"]) == 3 for line in lines)
    probs, losses = lines[0]["probs"], lines[0]["loss"]
    expected = np.exp(-0.5 * np.array(losses))
    assert probs == pytest.approx((expected / expected.sum()).tolist())
    started = train(small(method="joint", members=3, optimizer={"lr": 1e-9}), tmp_path / "started")
    for index in range(3):
        assert not _equal(_weights(rec, index), _weights(started, index))


def test_bat_trains_its_second_member_on_the_first_ones_examples(tmp_path: Path) -> None:
    recipe = small(method="bat", members=2, epochs=4, threat={"eps": 0.2})
    rec = train(recipe, tmp_path / "bat")
    lines = [line for line in Run.open(tmp_path / "bat").metrics() if line["event"] == "epoch"]
    # Adversarial examples of a fixed network are easier than the member's own.
    second = [line["accuracy"] for line in lines if line["member"] == 2]
    first = [line["accuracy"] for line in lines if line["member"] == 1]
    assert second[-1] > first[-1] + 0.1
    share = float(rec.probs[0]) * 10
    assert share == pytest.approx(round(share))  # swept over a grid


@pytest.mark.parametrize(
    ("method", "members", "expected"),
    [
        ("at", 1, [3]),
        ("iat", 3, [3, 3, 3]),
        ("barre", 3, [3, 5, 7]),
        ("mrboost", 2, [3, 5]),
        ("joint", 3, [9]),
    ],
)
def test_plans_count_passes_as_the_notes_do(method: str, members: int, expected: list[int]) -> None:
    planned = plan(small(method=method, members=members))
    assert [stage.crafting + stage.training for stage in planned.stages] == expected


@pytest.mark.parametrize(
    ("method", "members", "sampling"),
    [
        ("at", 1, {}),
        ("iat", 2, {}),
        ("mrboost", 2, {"method": "uniform"}),
        ("barre", 3, {"every": 2, "attack": "arc-r"}),
        (
            "barre",
            4,
            {"method": "osp", "rule": "released", "every": 1, "iterations": 3, "data": "train", "size": 30},
        ),
        ("bat", 2, {}),
        ("joint", 2, {}),
        ("bounded", 2, {}),
    ],
)
def test_every_method_spends_what_was_planned(
    tmp_path: Path, method: str, members: int, sampling: dict[str, object]
) -> None:
    recipe = small(
        method=method, members=members, epochs=3, validation={"size": 10, "every": 2}, sampling=sampling
    )
    train(recipe, tmp_path / "run")
    spent = Run.open(tmp_path / "run").read("training")["cost"]
    planned = plan(recipe)
    assert spent["training"] == planned.training
    # Members that an exact α leaves out are not attacked.
    assert spent["crafting"] == planned.crafting or (
        method == "barre" and spent["crafting"] < planned.crafting
    )
    assert 0 < spent["attacks"] <= planned.attacks
    if sampling.get("method") in ("osp", "uniform") or method in ("at", "bat"):
        assert spent["attacks"] == planned.attacks  # an exact choice may need fewer sweeps than it may make
    assert spent["backwards"] > spent["crafting"] + spent["training"]


def test_passes_of_arc_are_counted_though_not_foreseen(tmp_path: Path) -> None:
    recipe = small(adversary={"name": "arc", "steps": 2}, epochs=1)
    assert "those of ARC" in plan(recipe).sentence()
    train(recipe, tmp_path / "run")
    assert Run.open(tmp_path / "run").read("training")["cost"]["crafting"] > 0


def test_load_gives_back_what_train_returned(tmp_path: Path) -> None:
    rec = train(small(method="iat", members=2), tmp_path / "run")
    again = load(tmp_path / "run" / "ensemble")
    assert again.probs.tolist() == rec.probs.tolist()
    assert again.threat == rec.threat
    assert again.classes == tuple("0123456789")
    assert all(_equal(_weights(rec, i), _weights(again, i)) for i in range(2))


def test_independent_members_can_come_from_earlier_runs(tmp_path: Path) -> None:
    alone = [train(small(seed=seed), tmp_path / f"at{seed}") for seed in (0, 1)]
    recipe = small(method="iat", members=2, first=[str(tmp_path / "at0"), str(tmp_path / "at1")])
    rec = train(recipe, tmp_path / "iat")
    assert all(_equal(_weights(rec, i), _weights(alone[i], 0)) for i in range(2))
    assert [stage.epochs for stage in plan(recipe).stages] == [0, 0]
    # Nothing was trained, but the probabilities were chosen.
    events = [line["event"] for line in Run.open(tmp_path / "iat").metrics()]
    assert "epoch" not in events
    assert events[-1] == "finished"
    with pytest.raises(InputError, match=r"first names 3 runs; there are only 2 members"):
        small(method="iat", members=2, first=["a", "b", "c"])
    with pytest.raises(InputError, match=r"first is 'nowhere'; there is no folder there"):
        train(small(first="nowhere"), tmp_path / "lost")
    assert not (tmp_path / "lost").exists()


def test_adversarial_training_goes_on_from_a_given_member(tmp_path: Path) -> None:
    start = train(small(), tmp_path / "at")
    longer = train(small(first=str(tmp_path / "at"), seed=1), tmp_path / "longer")
    fresh = train(small(seed=1), tmp_path / "fresh")
    assert not _equal(_weights(longer, 0), _weights(start, 0))
    assert not _equal(_weights(longer, 0), _weights(fresh, 0))
    stages = [line["epoch"] for line in Run.open(tmp_path / "longer").metrics() if line["event"] == "epoch"]
    assert stages == [1, 2]


@pytest.mark.parametrize(
    ("probs", "floor", "expected"),
    [
        ([0.5, 0.5], 0.5, [0.5, 0.5]),
        ([1.0, 0.0], 0.5, [0.75, 0.25]),
        ([0.5, 0.5], 1.5, [0.25, 0.75]),
        ([0.6, 0.2, 0.2], 1.5, [0.375, 0.125, 0.5]),
        ([0.5, 0.5], 9.0, [0.0, 1.0]),
    ],
)
def test_the_member_in_training_keeps_its_share(
    probs: list[float], floor: float, expected: list[float]
) -> None:
    assert floored(np.array(probs), floor).tolist() == pytest.approx(expected)


def test_the_first_share_of_a_bounded_batch_is_common_on_any_number_of_ranks() -> None:
    bounded = METHODS["bounded"](0.5)
    assert isinstance(bounded, Bounded)
    assert bounded.common((0, 25), 25) == 12
    assert [bounded.common((0, 25), 8), bounded.common((8, 25), 9), bounded.common((17, 25), 8)] == [8, 4, 0]
