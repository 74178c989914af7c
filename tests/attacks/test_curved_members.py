"""Members with curved boundaries and a known optimum: what the climbers do beyond one linear model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks.climbers import Reach, climb
from randens.attacks.search import Search, attacking


class Curved(nn.Module):
    """Two classes with z₀ − z₁ = `margin`(x₁, x₂). All labels here are 0: fooled where the margin is negative."""

    def __init__(self, margin: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, x: Tensor) -> Tensor:
        gap = self.margin(x[:, 0], x[:, 1])
        return torch.stack([gap / 2, -gap / 2], dim=1)


X, Y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)


def _crossroads() -> RandomizedEnsemble:
    """A to the right, B to the left, C above, each behind a parabola.

    A and B are never fooled together, for x₁ cannot have both signs; A and C are, at (0.6, 0.6), and B and C. The best
    set is {A, C}, 0.69.
    """
    margins = (
        lambda a, b: 0.4 - a + 0.3 * b * b,
        lambda a, b: 0.4 + a + 0.3 * b * b,
        lambda a, b: 0.4 - b + 0.3 * a * a,
    )
    return RandomizedEnsemble([Curved(margin) for margin in margins], [0.4, 0.31, 0.29])


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("name", ["lattice", "saddle"])
def test_a_failed_step_of_the_climb_is_taken_back(name: str, norm: str) -> None:
    """In order of weight: A, then A with B, which fails, then A with C from where A was fooled."""
    attack = attacks.create(name, Threat(norm, 1.0, None), orders=1, restarts=1)
    found = attack(_crossroads(), X, Y)
    assert found.errors.tolist() == [[True, False, True]]
    assert found.risk.tolist() == pytest.approx([0.69])


def test_a_point_that_misses_a_target_is_not_kept() -> None:
    """The search for {A, B} ends where B alone is fooled; the next one must set out from A."""
    rec, threat = _crossroads(), Threat("l2", 1.0, None)
    asked: list[tuple[list[float], list[bool]]] = []
    ends: dict[tuple[bool, ...], tuple[float, float]] = {
        (True, False, False): (0.6, 0.0),
        (True, True, False): (-0.6, 0.0),
        (True, False, True): (0.6, 0.6),
    }

    class Scripted(Reach):
        def step(self) -> tuple[Tensor, Tensor, Tensor]:
            (lanes, self.lanes), targets = (self.lanes, self.lanes[:0]), self.targets[self.lanes]
            asked.append((self.points[lanes[0]].tolist(), targets[0].tolist()))
            ended = torch.tensor([ends[tuple(targets[0].tolist())]])
            return lanes, ended, self.s.judge(self.s.owner[lanes], ended, targets)

        def move(self, *_: object) -> Tensor:
            raise AssertionError

    with attacking(rec):
        s = Search(rec, X, Y, threat)
        s.begin(0)
        climb(s, 0, torch.zeros(1, 3, dtype=torch.bool), Scripted(s, 1))
    assert [targets for _, targets in asked] == [list(targets) for targets in ends]
    assert asked[2][0] == pytest.approx([0.6, 0.0])
    assert s.best_value.tolist() == pytest.approx([0.69])


def test_the_saddle_climber_linearises_again_where_it_arrives() -> None:
    """The first model at 0 leads to (1, 0), where 1.1 − x₁ − x₁x₂ is still 0.1; the one there leads to (0.71, 0.71)."""
    threat = Threat("l2", 1.0, None)
    alone = RandomizedEnsemble([Curved(lambda a, b: 1.1 - a - a * b)])
    both = RandomizedEnsemble([*alone.members, Curved(lambda _, b: 0.6 - b)])
    for rec in (alone, both):
        assert attacks.create("saddle", threat, orders=1, restarts=1)(rec, X, Y).risk.tolist() == [1.0]
    once = attacks.create("saddle", threat, orders=1, restarts=1, relinearisations=1)
    assert once(alone, X, Y).risk.tolist() == [0.0]
