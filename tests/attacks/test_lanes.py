"""Searches side by side: no lane waits for another, and each is given up where its linear model says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.attacks.planted import linear
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import climbers
from randens.attacks.climbers import Games
from randens.attacks.game import Solution, solve_game
from randens.attacks.oracle import Oracle
from randens.attacks.search import Search, attacking

EPS = 1.0


def _along(way: list[float], margin: float) -> nn.Module:
    """A member of two classes that is fooled (label 0) where way·x > margin."""
    return linear(torch.tensor([[0.0, 0.0], way]), torch.tensor([margin, 0.0]))


def _search(members: list[nn.Module], n: int = 1, probs: list[float] | None = None) -> Search:
    rec = RandomizedEnsemble(members, probs)
    return Search(rec, torch.zeros(n, 2), torch.zeros(n, dtype=torch.int64), Threat("linf", EPS, None))


def _games(s: Search, *, trust: float = 0.6, hopeless: float = 0.4, rounds: int = 6) -> Games:
    return Games(s, rounds=rounds, iterations=40, kappa=0.05, trust=trust, hopeless=hopeless, classes=1)


class Bent(nn.Module):
    """Fooled where x₁ > 0.5; where x₃ is large, only near x₁ = 0.5, which the linear models pass by twice."""

    def forward(self, x: Tensor) -> Tensor:
        gap = torch.where(x[:, 2] > 2, (x[:, 0] - 0.5) ** 2 - 0.01, 0.5 - x[:, 0])
        return torch.stack([gap / 2, -gap / 2], dim=1)


def test_a_lane_whose_search_ended_goes_on_while_others_search() -> None:
    upwards = linear(torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), torch.tensor([0.5, 0.0]))
    rec = RandomizedEnsemble([Bent(), upwards], [0.6, 0.4])
    x = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 4.0]])
    s = Search(rec, x, torch.zeros(2, dtype=torch.int64), Threat("linf", 0.9, None))
    reach = _games(s)
    taken: list[dict[int, list[bool]]] = []
    step = reach.step

    def noted() -> tuple[Tensor, Tensor, Tensor]:
        taken.append({lane: reach.targets[lane].tolist() for lane in reach.lanes.tolist()})
        return step()

    reach.step = noted  # type: ignore[method-assign]
    with attacking(rec):
        climbers.climb(s, 0, torch.zeros(2, 2, dtype=torch.bool), reach)
    assert s.best_errors.all()
    first, both = [True, False], [True, True]
    # The second input needs two moves more for its first member; meanwhile the other one is done with both.
    assert taken[:4] == [{0: first, 1: first}, {0: first, 1: first}, {0: both, 1: first}, {0: both, 1: first}]
    assert all(each == {1: both} for each in taken[4:])


@pytest.mark.parametrize(
    ("made", "margin", "goes_on"),
    [
        (0, 1.34, True),
        (0, 1.36, False),
        (1, 1.34, True),
        (1, 1.36, False),
        # 0.35 · trust², and that again times trust².
        (2, 1.12, True),
        (2, 1.13, False),
        (3, 1.04, True),
        (3, 1.05, False),
    ],
)
def test_a_search_is_given_up_by_what_its_model_may_still_err(
    made: int, margin: float, goes_on: bool
) -> None:
    """The margin at x₁ = ε is `margin` − 1; with κ, the bound of the game, exact here, is that + 0.05."""
    s = _search([_along([1.0, 0.0], margin)])
    reach = _games(s)
    # At the corner, so that the shrinking reach of later moves does not decide.
    reach.begin(torch.tensor([0]), torch.tensor([[EPS, 0.0]]), torch.tensor([[True]]))
    reach.made[0] = made
    with attacking(s.rec):
        reach.step()
    assert (len(reach.lanes) == 1) == goes_on


def test_after_the_last_move_there_is_a_verdict_and_no_gradient() -> None:
    s = _search([_along([1.0, 0.0], 1.02)])
    reach = _games(s, rounds=2)
    reach.begin(torch.tensor([0]), s.x, torch.tensor([[True]]))
    costs = []
    with attacking(s.rec):
        while len(reach.lanes):
            before = s.cost.forwards, s.cost.backwards
            lanes, ended, errors = reach.step()
            costs.append((s.cost.forwards - before[0], s.cost.backwards - before[1]))
    assert costs == [(1, 1), (1, 1), (1, 0)]
    assert lanes.tolist() == [0]
    assert ended.tolist() == [[EPS, 0.0]]
    assert errors.tolist() == [[False]]


def _next_by_a_loop(
    s: Search, lane: int, order: list[int], position: int, errors: list[bool], skipped: list[bool]
) -> tuple[int, int] | None:
    """The climb's rule, member by member."""
    for place in range(position, len(order)):
        member = order[place]
        coming = {m for m in order[place:] if not skipped[m]}
        heaviest = sum(float(s.probs[m]) for m in range(len(order)) if errors[m] or m in coming)
        worth = heaviest > float(s.best_value[lane]) + 1e-9 or not bool(s.foolable[lane, member])
        if not errors[member] and not skipped[member] and worth:
            return place, member
    return None


@pytest.mark.parametrize("seed", range(6))
def test_the_next_member_is_that_of_a_plain_loop(seed: int) -> None:
    torch.manual_seed(seed)
    members, n = 4, 40
    probs = torch.rand(members, dtype=torch.float64)
    probs[seed % members] = 0.0
    s = _search([_along([1.0, 0.0], 0.5)] * members, n, (probs / probs.sum()).tolist())
    s.best_value = torch.rand(n, dtype=torch.float64)
    s.foolable = torch.rand(n, members) < 0.5
    order = torch.rand(n, members).argsort(dim=1)
    position = torch.randint(0, members + 1, (n,))
    errors, skipped = torch.rand(n, members) < 0.4, torch.rand(n, members) < 0.2
    place, member = climbers._following(s, torch.arange(n), order, position, errors, skipped)
    for lane in range(n):
        expected = _next_by_a_loop(
            s,
            lane,
            order[lane].tolist(),
            int(position[lane]),
            errors[lane].tolist(),
            skipped[lane].tolist(),
        )
        found = None if member[lane] < 0 else (int(place[lane]), int(member[lane]))
        assert found == expected


def test_the_first_of_several_restarts_tries_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [_along(way, 0.5) for way in ([-1.0, 0.0], [1.0, 0.0], [0.0, 1.0])]
    rec = RandomizedEnsemble(members, [0.5, 0.3, 0.2])
    x, y = torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)
    swept: list[tuple[int, int]] = []
    climb = climbers.climb

    def noted(s: Search, sweep: int, *rest: object) -> None:
        swept.append((s.restart, sweep))
        climb(s, sweep, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(climbers, "climb", noted)
    attack = attacks.create("saddle", Threat("linf", EPS, None), orders=3, restarts=2, drop_finished=False)
    attack(rec, x, y)
    assert swept == [(0, 0), (1, 0), (1, 1), (1, 2)]
    swept.clear()
    attacks.create("saddle", Threat("linf", EPS, None), orders=2, restarts=1, drop_finished=False)(rec, x, y)
    assert swept == [(0, 0), (0, 1)]


def test_a_climb_goes_on_from_where_an_attempt_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planned set {A, C} is reached by the first step; the climb adds the member that it leaves out."""
    members = [_along(way, 0.5) for way in ([1.0, 0.0], [0.9, 0.1], [0.0, 1.0])]
    s = _search(members, probs=[0.4, 0.3, 0.3])
    monkeypatch.setattr(
        climbers, "planned", lambda *_: (torch.tensor([0]), torch.tensor([[True, False, False]]))
    )
    begun: list[tuple[list[float], list[bool]]] = []
    begin = Games.begin

    def noted(reach: Games, lanes: Tensor, points: Tensor, targets: Tensor) -> None:
        begun.extend(zip(points.tolist(), targets.tolist(), strict=True))
        begin(reach, lanes, points, targets)

    monkeypatch.setattr(Games, "begin", noted)
    reach = _games(s)
    with attacking(s.rec):
        climbers.attempt(s, reach, 0.05)
        assert reach.lanes.tolist() == [0]
        climbers.climb(s, 1, torch.zeros(1, 3, dtype=torch.bool), reach)
    assert begun[0] == ([0.0, 0.0], [True, False, False])
    # At x₁ = ε both A and B are fooled, so C alone is left.
    assert len(begun) == 2
    assert begun[1][1] == [True, True, True]
    assert begun[1][0] != [0.0, 0.0]
    assert s.best_errors.tolist() == [[True, True, True]]


def test_gradients_at_the_inputs_are_computed_once() -> None:
    """Also where only some of the points are inputs, and only some members are known there."""
    s = _search([_along([1.0, 0.0], 0.5), _along([0.0, 1.0], 0.5)], n=3)
    rows, elsewhere = torch.arange(3), torch.full((3, 2), 0.25)
    points = torch.stack([s.x[0], elsewhere[1], s.x[2]])
    wanted = torch.tensor([[True, False], [True, True], [False, True]])
    with attacking(s.rec):
        first = s.models(rows, points, wanted)
        before = s.cost.backwards
        again = s.models(rows, points, torch.ones_like(wanted))
    # Known: one member at each of the two inputs. Not known: both members at the other point, and the rest.
    assert s.cost.backwards - before == 4
    assert torch.equal(again.margins[wanted], first.margins[wanted])
    assert torch.equal(again.gradients[wanted], first.gradients[wanted])
    assert again.margins.tolist() == [[0.5, 0.5], [0.25, 0.25], [0.5, 0.5]]
    assert isinstance(s, Oracle)


def test_each_game_begins_with_the_weights_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one of a search begins at the centre, also where the lane has searched before."""
    ways = [[1.0, 0.2], [-1.0, 0.3], [0.1, 1.0]]
    s = _search([_along(way, 0.6) for way in ways])
    reach, lane, everyone = _games(s, hopeless=9.0, rounds=3), torch.tensor([0]), torch.ones(1, 3)
    begun: list[Tensor] = []
    ended: list[Tensor] = []

    def noted(*given: Any) -> Solution:
        begun.append(given[-1].clone())
        solved = solve_game(*given)
        ended.append(solved.weights.clone())
        return solved

    monkeypatch.setattr(climbers, "solve_game", noted)
    with attacking(s.rec):
        for _ in range(2):
            reach.begin(lane, s.x, everyone.bool())
            while len(reach.lanes):
                reach.step()
    assert len(begun) == 6
    centre = everyone / 3
    for first in (0, 3):
        assert torch.allclose(begun[first], centre)
        for later in (first + 1, first + 2):
            assert torch.equal(begun[later], ended[later - 1])
            assert not torch.allclose(begun[later], centre, atol=1e-2)


def test_a_point_that_the_last_move_reached_is_linearised_by_the_next_search() -> None:
    """Only its verdicts are computed at first; models that were never computed must not be remembered."""
    s = _search([_along([1.0, 0.0], 0.5), _along([0.0, 1.0], 0.5)])
    reach, lane = _games(s, rounds=1), torch.tensor([0])
    reach.begin(lane, s.x, torch.tensor([[True, False]]))
    with attacking(s.rec):
        ended = [len(reach.step()[0]) for _ in range(2)]
        there = reach.points.clone()
        before = s.cost.backwards
        models = reach.models(lane, there, torch.tensor([[True, True]]))
    assert ended == [0, 1]
    assert s.best_errors[0, 0]
    assert s.cost.backwards - before == 2
    # Margins are 0.5 − x₁ and 0.5 − x₂.
    assert torch.allclose(models.margins, 0.5 - there)
    assert models.gradients.tolist() == [[[-1.0, 0.0], [0.0, -1.0]]]


def test_a_remote_member_is_looked_at_by_one_later_restart() -> None:
    """A is out of reach by 2ε, B by 0.3ε: from restart 2 on, A is left alone."""
    s = _search([_along([1.0, 0.0], 3.0), _along([0.0, 1.0], 1.3)], n=2)
    asked: list[tuple[int, list[bool]]] = []
    for restart, together in ((0, 1), (1, 3)):
        s.begin(restart, together=together)
        reach = _games(s, rounds=1)
        begin = reach.begin

        def noted(lanes: Tensor, points: Tensor, targets: Tensor, begin: Callable[..., None] = begin) -> None:
            asked.extend(zip(s.numbers[lanes].tolist(), targets.tolist(), strict=True))
            begin(lanes, points, targets)

        reach.begin = noted  # type: ignore[method-assign]
        with attacking(s.rec):
            climbers.climb(s, 0, torch.zeros(len(s.owner), 2, dtype=torch.bool), reach)
        assert s.remote.tolist() == [[True, False], [True, False]]
    a, b = [True, False], [False, True]
    wanted = [(0, a), (0, b), (1, a), (1, b), (2, b), (3, b)]
    assert sorted(asked) == sorted([*wanted, *wanted])
    assert s.resistance.tolist() == [[4, 4], [4, 4]]
