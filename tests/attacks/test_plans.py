"""Plans: which set to try next by the linear models, what was refused, and members left out after many searches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.attacks.planted import Array, Planted, planted, truth, unequal
from torch import Tensor

from randens import attacks
from randens.attacks import plans
from randens.attacks.game import Solution, solve_game
from randens.attacks.ledger import Ledger
from randens.attacks.plans import MOST_MEMBERS, planned
from randens.attacks.search import Search, attacking


def searching(case: Planted) -> Search:
    s = Search(case.rec, case.x, case.y, case.threat)
    s.begin(0)
    return s


def weights(s: Search, sets: Tensor) -> Array:
    found: Array = (sets.double() @ s.probs).numpy()
    return found


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_plan_for_linear_members_is_the_heaviest_reachable_set(norm: str) -> None:
    case = unequal(norm, n=12, seed=2)
    optimum = truth(case)
    with attacking(case.rec):
        s = searching(case)
        rows, sets = planned(s, 400, 0.0)
    # Every input has a set heavier than nothing; none that can be reached is ruled out.
    assert rows.tolist() == list(range(12))
    named = weights(s, sets)
    assert bool((named >= optimum - 1e-9).all())
    assert float((named <= optimum + 1e-9).mean()) >= 0.8


def test_what_was_refused_is_not_named_again() -> None:
    case = unequal("linf", n=6, seed=3)
    with attacking(case.rec):
        s = searching(case)
        rows, sets = planned(s, 40, 0.05)
        s.refuse(rows, sets)
        again, others = planned(s, 40, 0.05)
    before = dict(zip(rows.tolist(), sets, strict=True))
    for row, other in zip(again.tolist(), others, strict=True):
        assert not bool((other | ~before[row]).all())  # does not contain the refused one
    assert bool((s.refused(rows, sets).diagonal()).all())


def test_games_that_ruled_out_a_set_are_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = planted("linf", n=6)
    solved: list[int] = []

    def counted(c: Tensor, *rest: Any) -> Solution:
        solved.append(len(c))
        return solve_game(c, *rest)

    monkeypatch.setattr(plans, "solve_game", counted)
    with attacking(case.rec):
        # With so small a radius the linear models rule out every set.
        s = Search(case.rec, case.x, case.y, case.threat.scaled(1e-4))
        assert len(planned(s, 40, 0.05)[0]) == 0
        first = len(solved)
        assert len(planned(s, 40, 0.05)[0]) == 0
    assert len(solved) == first > 0


def test_sets_that_contain_a_refused_one_are_refused() -> None:
    ledger = Ledger(torch.zeros(2, 3), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
    everything = torch.tensor([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)], dtype=torch.bool)
    rows = torch.arange(2)
    assert not bool(ledger.refused(rows, everything).any())
    ledger.refuse(torch.tensor([1]), torch.tensor([[True, False, True]]))
    found = ledger.refused(rows, everything)
    assert not bool(found[0].any())
    assert found[1].tolist() == [bool(a and c) for a, b, c in everything.tolist()]
    ledger.refuse(torch.tensor([], dtype=torch.int64), everything[:0])
    assert torch.equal(ledger.refused(rows, everything), found)


def test_large_ensembles_have_no_plan_and_are_attacked_all_the_same() -> None:
    case = planted("l2", n=3, members=MOST_MEMBERS + 1)
    with attacking(case.rec):
        rows, sets = planned(searching(case), 40, 0.05)
    assert len(rows) == len(sets) == 0
    found = attacks.create("saddle", case.threat, restarts=1)(case.rec, case.x, case.y)
    assert float(found.risk.mean()) > 0


def test_the_last_climber_leaves_out_members_that_many_searches_have_not_fooled() -> None:
    case = planted("linf", n=8)
    with attacking(case.rec):
        s = searching(case)
        s.resistance += 5
        before = s.cost.passes
        attacks.create("lattice", case.threat, orders=1).search(s)
        assert s.cost.passes == before
        s.resistance.zero_()
        attacks.create("lattice", case.threat, orders=1).search(s)
        assert s.cost.passes > before


def test_searches_of_single_members_are_counted() -> None:
    """A member whose margin is more than ε can change resists; one that is fooled does not count."""
    case = planted("linf", n=20)
    with attacking(case.rec):
        s = searching(case)
        attacks.create("pgd", case.threat).search(s)
    assert bool((s.resistance.bool() == ~s.foolable).all())
    assert 0 < int(s.resistance.sum()) < s.resistance.numel()
