"""Column generation: the attacker's mixed strategy on planted games, and training on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.small_runs import small
from torch import nn

from randens.core.errors import InputError
from randens.threat import Threat
from randens.training import train
from randens.training.adversaries import Start, TrainingPGD, Victims
from randens.training.columns import Strategy, attackers_strategy, improves
from randens.training.methods import Columns
from randens.witness import WitnessPool


def _plane(slope: list[float], offset: float) -> nn.Module:
    """Two classes; the margin of class 0 is slope·x + offset."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([slope, [0.0, 0.0]]))
        layer.bias.copy_(torch.tensor([offset, 0.0]))
    return nn.Sequential(nn.Flatten(), layer)


def _opposed(*more: nn.Module) -> tuple[TrainingPGD, Victims, Start]:
    """Member 0 is fooled below 0.45 of the first pixel, member 1 above 0.55; ε = 0.1 reaches either, never both."""
    members = [_plane([1.0, 0.0], -0.45), _plane([-1.0, 0.0], 0.55), *more]
    x, y = torch.full((40, 1, 1, 2), 0.5), torch.zeros(40, dtype=torch.long)
    craft = TrainingPGD(Threat("linf", 0.1), "softmax", 5, 0.05)
    probs = torch.full((len(members),), 1 / len(members), dtype=torch.float64)
    return craft, Victims.of(members, probs), Start(x, y, x.clone(), images=torch.arange(40))


def test_the_attacker_of_two_opposed_members_plays_both_sides_evenly() -> None:
    strategy = attackers_strategy(*_opposed())
    assert strategy.value == pytest.approx(0.5)
    assert strategy.probs == pytest.approx([0.5, 0.5], abs=1e-6)
    # Against this strategy each member alone is wrong half of the time.
    for member in (0, 1):
        assert strategy.against(strategy.pool.fooled[:, member]) == pytest.approx(0.5, abs=1e-6)
    drawn = strategy.draw(torch.full((4000, 1, 1, 2), 0.5), np.arange(4000) % 40, seed=1)[:, 0, 0, 0]
    assert ((drawn < 0.45) | (drawn > 0.55)).all()
    assert float((drawn < 0.45).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_images_that_are_not_in_the_pool_keep_their_points() -> None:
    strategy = attackers_strategy(*_opposed())
    points = torch.full((3, 1, 1, 2), 0.25)
    drawn = strategy.draw(points, np.array([-1, 3, -1]), seed=0)
    assert torch.equal(drawn[[0, 2]], points[[0, 2]])
    assert not torch.equal(drawn[1], points[1])


@pytest.mark.parametrize(
    ("third", "helps"),
    [
        (_plane([0.0, 0.0], 1.0), True),  # never fooled
        (_plane([1.0, 0.0], -0.45), False),  # the first again
        (
            _plane([0.0, 1.0], -0.45),
            False,
        ),  # fooled by the other pixel: disjoint supports do not conflict in linf
        (_plane([0.0, 0.0], -1.0), False),  # always wrong
    ],
    ids=["never", "again", "other", "always"],
)
def test_a_member_improves_the_game_if_its_reduced_cost_is_negative(third: nn.Module, helps: bool) -> None:
    without = attackers_strategy(*_opposed())
    strategy = attackers_strategy(*_opposed(third))
    assert improves(strategy) is helps
    assert (strategy.value < without.value - 1e-6) is (improves(strategy))


def test_one_member_always_improves_the_game() -> None:
    pool = WitnessPool(2, 1, [0], [[True]])
    strategy = Strategy(pool, np.ones(1), np.array([[0, -1]]), np.ones(1), 0.5)
    assert improves(strategy)
    assert strategy.against(np.array([True])) == 0.5
    assert strategy.against(np.array([False])) == 0.0


def test_a_share_of_the_batch_is_the_attackers_and_the_rest_the_members_own() -> None:
    craft, finished, start = _opposed()
    method = Columns(0.5)
    assert method.study(craft, finished, start)
    # The new member is fooled by the second pixel alone: its own examples leave the first pixel where it was.
    own = Victims.of([_plane([0.0, 1.0], -0.45)], torch.ones(1, dtype=torch.float64))
    (made,) = method.examples(craft, own, start, [0])
    moved = (made[:, 0, 0, 0] - 0.5).abs() > 0.04
    assert moved[:20].all()
    assert not moved[20:].any()
    assert (made[20:, 0, 0, 1] < 0.46).all()


def test_training_adds_members_and_ends_when_one_brings_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec = train(small(method="columns", members=2, epochs=2), tmp_path / "two")
    assert len(rec) == 2
    said: list[str] = []
    monkeypatch.setattr("randens.training.columns.improves", lambda strategy: strategy.pool.members < 2)
    rec = train(small(method="columns", members=4, epochs=1), tmp_path / "four", say=said.append)
    assert len(rec) == 2
    assert any("no more are added" in sentence for sentence in said)


def test_the_share_is_at_most_one() -> None:
    with pytest.raises(InputError, match="share of the batch"):
        small(method="columns", members=2, weight=1.5)
