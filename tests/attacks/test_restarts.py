"""Restarts that are searched together: the same random numbers, no weaker, and every repeated input is recorded."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.planted import planted, share_solved, truth, unequal

from randens.attacks import Saddle
from randens.attacks.ledger import Ledger
from randens.attacks.search import Search, attacking


def test_restarts_searched_together_have_the_random_numbers_of_each_alone() -> None:
    case = planted("linf", n=5)
    s = Search(case.rec, case.x, case.y, case.threat)
    points, ranks = [], []
    for restart in (1, 2, 3):
        s.begin(restart, 7)
        assert s.owner.tolist() == list(range(5))
        points.append(s.start())
        ranks.append(s.ranks())
    s.begin(1, 7, together=3)
    assert s.owner.tolist() == 3 * list(range(5))
    assert torch.equal(s.start(), torch.cat(points))
    assert torch.equal(s.ranks(), torch.cat(ranks))


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_restarts_searched_together_find_what_each_finds_alone(norm: str) -> None:
    case = unequal(norm, n=10, seed=4)
    optimum = truth(case)
    attack = Saddle(case.threat, orders=1, restarts=3)

    def solved(restarts: range, width: int) -> float:
        with attacking(case.rec):
            s = Search(case.rec, case.x, case.y, case.threat)
            attack.run(s, restarts, width=width)
            if width > 1:
                assert s.together == len(restarts)
            return share_solved(s.conclude().double() @ case.rec.probs, optimum)

    alone = [solved(range(number, number + 1), 1) for number in (1, 2, 3)]
    assert solved(range(1, 4), 1000) >= max(alone) > 0


class Idle(Saddle):
    """Proposes nothing, and notes which restarts it was asked for."""

    def search(self, s: Search) -> None:
        begun.append((s.restart, s.together))


begun: list[tuple[int, int]] = []


def test_a_pass_is_not_wider_than_asked_for() -> None:
    case = planted("linf", n=6)
    begun.clear()
    Idle(case.threat).run(
        Search(case.rec, case.x, case.y, case.threat, drop_finished=False), range(6), width=13
    )
    assert begun == [(0, 1), (1, 2), (3, 2), (5, 1)]


def test_the_best_of_an_input_that_occurs_several_times_is_kept() -> None:
    ledger = Ledger(torch.zeros(2, 3), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
    rows = torch.tensor([1, 0, 1, 1])
    points = torch.arange(12.0).reshape(4, 3)
    errors = torch.tensor([[0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1]], dtype=torch.bool)
    ledger._record(rows, points, errors)
    assert ledger.best_errors.tolist() == [[True, False, False], [True, False, True]]
    assert torch.equal(ledger.best_x, points[[1, 2]])
    assert torch.allclose(ledger.best_value, torch.tensor([0.5, 0.7], dtype=ledger.best_value.dtype))
    assert ledger.foolable.tolist() == [[True, False, False], [True, True, True]]
    pool = ledger.pool()
    # The last set is contained in the one before it.
    assert sorted(zip(pool.points.tolist(), pool.fooled.tolist(), strict=True)) == sorted(
        zip(rows.tolist()[:3], errors.tolist()[:3], strict=True)
    )
