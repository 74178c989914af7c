"""Methods: where members start, which are attacked, how α moves; and that methods share their first member."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.small_runs import small
from torch import nn

from randens.core.distributed import Workers
from randens.core.errors import InputError
from randens.core.runs import Run
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, load
from randens.training import estimate, train
from randens.training.alpha import floored
from randens.training.cost import plan
from randens.training.initial_members import Blueprint
from randens.training.methods import METHODS, Roster, uniform
from randens.training.placement import Placement


def _roster(finished: int, trained: int) -> Roster:
    members = [nn.Linear(1, 2) for _ in range(finished + trained)]
    probs = np.arange(1.0, finished + trained + 1)
    return Roster(members[:finished], members[finished:], probs / probs.sum())


def _weights(rec: RandomizedEnsemble, index: int) -> dict[str, torch.Tensor]:
    return dict(rec.members[index].state_dict())


def _equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def test_which_members_are_attacked() -> None:
    roster = _roster(2, 1)
    everyone = roster.everyone
    expected = {
        "at": ([everyone[2]], [1.0]),
        "iat": ([everyone[2]], [1.0]),
        "mrboost": (everyone, [1 / 3] * 3),
        "barre": (everyone, roster.probs.tolist()),
        "bat": ([everyone[0]], [1.0]),
        "joint": (everyone, roster.probs.tolist()),
    }
    for name, (members, probs) in expected.items():
        attacked, weights = METHODS[name]().victims(roster)
        assert list(attacked) == members, name
        assert weights.tolist() == pytest.approx(probs), name


def test_what_checkpoints_are_compared_by() -> None:
    roster = _roster(2, 1)
    assert list(METHODS["iat"]().judged(roster).members) == list(roster.trained)
    boosted = METHODS["mrboost"]().judged(roster).members
    assert len(boosted) == 1
    assert isinstance(boosted[0], DeterministicEnsemble)
    assert list(boosted[0].members) == roster.everyone
    assert METHODS["barre"]().judged(roster).probs.tolist() == pytest.approx(roster.probs.tolist())


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
    assert [stage.epochs for stage in plan(recipe)] == [0, 2]
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
    stages = plan(small(method=method, members=members))
    assert [s.crafting + s.training for s in stages] == expected


def test_the_ledger_counts_what_was_planned(tmp_path: Path) -> None:
    recipe = small(method="mrboost", members=2, validation={"size": 10})
    train(recipe, tmp_path / "run")
    cost = Run.open(tmp_path / "run").read("training")["cost"]
    estimated = estimate(recipe)
    planned = estimated.crafting + estimated.training
    assert planned == 2 * (3 + 5) * 1257
    assert planned < cost["backwards"] <= estimated.passes


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
    assert [stage.epochs for stage in plan(recipe)] == [0, 0]
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


def test_how_the_training_attack_runs_each_member() -> None:
    """A finished member is run as it was when its stage ended; the member in training as it is at every step."""
    recipe = small(model={"name": "resnet8", "width": 4, "depth": None})
    place = Placement(Blueprint(recipe, 10, (1, 8, 8)), Workers(torch.device("cpu")))
    finished, trained = place.still(place.new(0)), place.new(1).eval()
    roster = Roster([finished], [trained], np.array([0.5, 0.5]))
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    victims = place.victims(METHODS["barre"](), roster)
    with torch.no_grad():
        for member, forward in zip((finished, trained), victims.forwards, strict=True):
            torch.testing.assert_close(forward(x), member(x), atol=1e-5, rtol=1e-4)
        for parameter in trained.parameters():
            parameter.mul_(1.5)
        torch.testing.assert_close(victims.forwards[1](x), trained(x), atol=1e-4, rtol=1e-4)
