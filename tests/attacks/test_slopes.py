"""Gradients of some members at some points."""

from __future__ import annotations

import torch

from randens.attacks.slopes import Slopes


def _table() -> torch.Tensor:
    """Of two members at three points, two numbers each; all differ."""
    return torch.arange(12.0).reshape(3, 2, 2) + 1


def test_a_table_is_found_again() -> None:
    table = _table()
    everything = torch.ones(3, 2, dtype=torch.bool)
    assert torch.equal(Slopes.of(table).table(everything), table)


def test_gradients_that_are_joined_stand_where_they_belong() -> None:
    table = _table()
    rank, member = torch.tensor([2, 0]), torch.tensor([1, 0])
    some = Slopes.none(torch.zeros(3, 2), 2).joined(rank, member, table[rank, member])
    assert len(some.values) == 2
    more = some.joined(torch.tensor([1]), torch.tensor([1]), table[1:2, 1])
    wanted = torch.tensor([[True, False], [False, True], [False, True]])
    assert torch.equal(more.table(wanted), table * wanted.unsqueeze(2))
    # What is not wanted is zero, even if it is there; and joining leaves the first ones as they were.
    fewer = wanted.clone()
    fewer[1] = False
    assert torch.equal(some.table(fewer), table * fewer.unsqueeze(2))


def test_rows_and_single_gradients_are_picked() -> None:
    table = _table()
    last = Slopes.of(table)[torch.tensor([2, 0])]
    assert torch.equal(last.table(torch.ones(2, 2, dtype=torch.bool)), table[[2, 0]])
    picked = last.at(torch.tensor([[0], [1]]), torch.tensor([[1, 0], [0, 0]]))
    assert torch.equal(picked, torch.stack([table[2, [1, 0]], table[0, [0, 0]]]))


def test_no_gradients_are_a_table_of_zeros() -> None:
    empty = Slopes.none(torch.ones(3, 5), 2)
    assert torch.equal(empty.table(torch.zeros(3, 2, dtype=torch.bool)), torch.zeros(3, 2, 5))
