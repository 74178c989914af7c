"""Points whose verdicts are completed together, and linear models that are not computed again."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.cases import KINDS, case
from tests.attacks.planted import linear
from torch import Tensor

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import climbers
from randens.attacks.oracle import Linearisation, Memory
from randens.attacks.search import Search, attacking
from randens.attacks.slopes import Slopes

LEFT, RIGHT, UP = [-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]


def _search() -> Search:
    """Two inputs at 0; a member is fooled as soon as the point goes by more than 0.5 its way: left, right, up."""
    members = [linear(torch.tensor([[0.0, 0.0], way]), torch.tensor([0.5, 0.0])) for way in (LEFT, RIGHT, UP)]
    rec = RandomizedEnsemble(members, [0.5, 0.3, 0.2])
    return Search(rec, torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), Threat("linf", 1.0, None))


def _known(*members: int) -> Tensor:
    return torch.tensor([i in members for i in range(3)])


def test_settled_verdicts_are_completed_and_recorded() -> None:
    s = _search()
    points = torch.tensor([[-0.8, 0.9], [0.1, 0.2]])
    errors = s.verdicts(torch.arange(2), points, torch.stack([_known(0), _known(0)]))
    assert errors.tolist() == [[True, False, False], [False, False, False]]
    assert s.best_value.tolist() == [0.0, 0.0]  # verdicts alone are not recorded
    settled = s.settle(torch.arange(2), points, errors, torch.stack([_known(0), _known(0)]))
    assert settled.tolist() == [[True, False, True], [False, False, False]]
    assert s.best_value.tolist() == pytest.approx([0.7, 0.0])
    assert torch.equal(s.best_x[0], points[0])
    assert s.pool().fooled.tolist() == [[True, False, True]]


def test_of_points_that_fool_the_same_known_members_the_last_is_completed() -> None:
    s = _search()
    before = s.cost.forwards
    rows = torch.tensor([0, 0, 1, 0])
    points = torch.tensor([[-0.6, 0.9], [-0.9, 0.9], [-0.7, 0.0], [0.9, 0.9]])
    known = torch.stack([_known(0), _known(0), _known(0), _known(1)])
    errors = torch.tensor([[True, False, False]] * 3 + [[False, True, False]])
    settled = s.settle(rows, points, errors, known)
    # Of the first two, one input's, the last: with the others, three points of two unknown members each.
    assert s.cost.forwards - before == 6
    assert settled.tolist() == [
        [True, False, False],
        [True, False, True],
        [True, False, False],
        [False, True, True],
    ]
    assert torch.equal(s.best_x[0], points[1])


def test_linearise_records_at_once_what_models_only_returns() -> None:
    s = _search()
    rows, points = torch.tensor([0]), torch.tensor([[-0.8, 0.9]])
    lin = s.models(rows, points, _known(0).unsqueeze(0))
    assert lin.errors.tolist() == [[True, False, False]]
    assert s.best_value.tolist() == [0.0, 0.0]
    assert lin.margins[0, 0] == pytest.approx(-0.3)
    again = s.linearise(rows, points, _known(0).unsqueeze(0))
    assert torch.equal(again.gradients, lin.gradients)
    assert again.errors.tolist() == [[True, False, True]]
    assert s.best_value.tolist() == pytest.approx([0.7, 0.0])


def test_a_set_that_is_known_already_costs_no_pass() -> None:
    s = _search()
    both = torch.tensor([[-0.8, 0.9]])
    s.judge(torch.tensor([0]), both)
    before = s.cost.forwards
    alone = torch.tensor([[True, False, False]])
    assert torch.equal(s.settle(torch.tensor([0]), both / 1.1, alone, _known(0).unsqueeze(0)), alone)
    assert s.cost.forwards == before


def _models(points: Tensor, wanted: Tensor) -> Linearisation:
    values = points.sum(dim=1, keepdim=True) + torch.arange(3.0)
    return Linearisation(values, Slopes.of(values.unsqueeze(2) * torch.ones(2)), wanted, values > 1)


def test_models_are_remembered_at_their_point_and_forgotten_elsewhere() -> None:
    memory = Memory(torch.zeros(4, 2), 3)
    lanes, here = torch.tensor([3, 1]), torch.tensor([[0.5, 0.25], [-0.5, 0.0]])
    assert not memory.known(lanes, here).any()
    assert not memory.known(lanes, torch.zeros(2, 2)).any()
    kept = _models(here, torch.stack([_known(0, 2), _known(1)]))
    memory.keep(lanes, here, kept)
    assert torch.equal(memory.known(lanes, here), kept.wanted)
    assert not memory.known(lanes.flip(0), here).any()
    # What a lane learns at the same point is added; what it learns at another one replaces everything.
    memory.keep(lanes[:1], here[:1], _models(here[:1], _known(1).unsqueeze(0)))
    assert memory.known(lanes, here).tolist() == [[True, True, True], [False, True, False]]
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    empty = Linearisation(torch.zeros(2, 3), Slopes.none(here, 3), nothing, kept.wanted)
    found = memory.recall(lanes, memory.known(lanes, here), empty)
    true = _models(here, memory.known(lanes, here))
    assert torch.equal(found.margins, true.margins * true.wanted)
    assert torch.equal(found.gradients, true.gradients)
    assert torch.equal(found.errors & found.wanted, true.errors & true.wanted)
    assert torch.equal(found.wanted, true.wanted)
    memory.keep(lanes[:1], -here[:1], _models(-here[:1], _known(2).unsqueeze(0)))
    assert memory.known(lanes, torch.stack([-here[0], here[1]])).tolist() == [
        [False, False, True],
        [False, True, False],
    ]
    assert not memory.known(lanes[:1], here[:1]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_remembered_models_save_passes_and_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = case(kind, "linf")
    attack = attacks.create("saddle", given.threat, restarts=2, precision="float32")
    with_memory = attack(given.rec, given.x, given.y)

    def nothing(memory: Memory, lanes: Tensor, _: Tensor) -> Tensor:
        return torch.zeros_like(memory.which[lanes])

    monkeypatch.setattr(climbers, "Memory", type("Forgetful", (Memory,), {"known": nothing}))
    without = attack(given.rec, given.x, given.y)
    assert torch.equal(with_memory.errors, without.errors)
    assert torch.allclose(with_memory.x_adv, without.x_adv, atol=1e-5)
    assert with_memory.cost.backwards <= without.cost.backwards
    if kind == "planted":
        assert with_memory.cost.backwards < without.cost.backwards


def test_one_order_of_equal_members_for_all_inputs_at_first() -> None:
    """The first target of every input is the same member: one wide pass, not one per member."""
    s = _search()
    s = Search(RandomizedEnsemble(list(s.rec.members)), s.x, s.y, s.threat)
    asked: list[Tensor] = []

    class Failing(climbers.Reach):
        def step(self) -> tuple[Tensor, Tensor, Tensor]:
            lanes, self.lanes = self.lanes, self.lanes[:0]
            asked.append(self.targets[lanes])
            return lanes, self.points[lanes], torch.zeros_like(asked[-1])

        def move(self, *_: object) -> Tensor:
            raise AssertionError

    with attacking(s.rec):
        climbers.climb(s, 0, torch.zeros(2, 3, dtype=torch.bool), Failing(s, 1))
    assert len(asked) == 3
    assert all(torch.equal(targets[0], targets[1]) for targets in asked)
    assert sorted(int(targets[0].int().argmax()) for targets in asked) == [0, 1, 2]
