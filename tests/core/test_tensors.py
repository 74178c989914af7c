"""Faster forms of torch's operations give what the usual ones give."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from randens.core.tensors import either, norms, take


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("dim", [-1, 1])
def test_norms_are_those_of_torch(p: float, dim: int) -> None:
    values = some(4, 3, 50)
    torch.testing.assert_close(norms(values, p, dim), torch.linalg.vector_norm(values, p, dim=dim))


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_what_is_not_finite_reaches_a_norm(p: float, bad: float) -> None:
    values = some(3, 5)
    values[1, 2] = bad
    assert torch.isfinite(norms(values, p)).tolist() == [True, False, True]


def test_rows_are_taken_in_order_and_repeatedly() -> None:
    values, rows = some(6, 3, 2), torch.tensor([5, 0, 0, 3])
    assert torch.equal(take(values, rows), values[rows])
    assert take(values, rows[:0]).shape == (0, 3, 2)


def test_either_gives_one_of_both_to_the_last_bit() -> None:
    yes, no = some(7, 100) * 1e6, some(7, 100).flip(0) * 1e-6
    chosen = some(7, 100) > 0
    assert torch.equal(either(chosen, yes, no), torch.where(chosen, yes, no))
    assert torch.equal(either(chosen[:, :1], yes, no), torch.where(chosen[:, :1], yes, no))
