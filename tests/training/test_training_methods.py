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
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble
from randens.training import plan, train
from randens.training.alpha import floored
from randens.training.methods import METHODS, Bounded, StageMembers


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
    train(small(seed=6), tmp_path / "again")
    both = small(method="iat", members=2, first=[str(tmp_path / "at"), str(tmp_path / "again")])
    chosen = train(both, tmp_path / "iat")
    assert _equal(_weights(chosen, 0), _weights(at, 0))
    # Nothing was trained, but the probabilities were chosen.
    assert [line["event"] for line in Run.open(tmp_path / "iat").metrics()] == ["finished"]
    with pytest.raises(InputError, match=r"first is 'nowhere', no folder"):
        train(small(first="nowhere"), tmp_path / "lost")


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


RELEASED = {"method": "osp", "rule": "released", "every": 1, "iterations": 3, "data": "train", "size": 30}


@pytest.mark.parametrize(
    ("method", "members", "sampling"),
    [
        ("at", 1, {}),
        ("mrboost", 2, {"method": "uniform"}),
        ("barre", 3, {"every": 2, "attack": "arc-r"}),
        ("barre", 4, RELEASED),
        *((method, 2, {}) for method in ("iat", "bat", "joint", "bounded")),
    ],
)
def test_every_method_spends_what_was_planned(
    tmp_path: Path, method: str, members: int, sampling: dict[str, object]
) -> None:
    rest = {"epochs": 3, "validation": {"size": 10, "every": 2}, "sampling": sampling}
    recipe = small(method=method, members=members, **rest)
    train(recipe, tmp_path / "run")
    spent = Run.open(tmp_path / "run").read("training")["cost"]
    planned = plan(recipe)
    assert spent["training"] == planned.training
    # Members that an optimal α leaves out are not attacked.
    less = method == "barre" and 0 < spent["crafting"] < planned.crafting
    assert spent["crafting"] == planned.crafting or less
    attacks = planned.validations + planned.choices
    assert 0 < spent["attacks"] <= attacks
    if sampling.get("method") in ("osp", "uniform") or method in ("at", "bat"):
        assert spent["attacks"] == attacks  # an exact choice may need fewer sweeps than it may make
    assert (planned.held, planned.chosen_on) == (10, sampling.get("size", 10))
    assert spent["backwards"] > spent["crafting"] + spent["training"]


def test_passes_of_arc_are_counted_though_not_foreseen(tmp_path: Path) -> None:
    recipe = small(adversary={"name": "arc", "steps": 2}, epochs=1)
    assert "those of ARC" in plan(recipe).sentence()
    train(recipe, tmp_path / "run")
    assert Run.open(tmp_path / "run").read("training")["cost"]["crafting"] > 0


def test_the_member_in_training_keeps_its_share() -> None:
    assert floored(np.array([1.0, 0.0]), 0.5).tolist() == pytest.approx([0.75, 0.25])
    assert floored(np.array([0.6, 0.2, 0.2]), 1.5).tolist() == pytest.approx([0.375, 0.125, 0.5])
    assert floored(np.array([0.5, 0.5]), 9.0).tolist() == pytest.approx([0.0, 1.0])


def test_the_first_share_of_a_bounded_batch_is_common_on_any_number_of_ranks() -> None:
    bounded = METHODS["bounded"](0.5)
    assert isinstance(bounded, Bounded)
    assert bounded.common((0, 25), 25) == 12
    assert [bounded.common((0, 25), 8), bounded.common((8, 25), 9), bounded.common((17, 25), 8)] == [8, 4, 0]
