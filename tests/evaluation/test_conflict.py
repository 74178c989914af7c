"""Joint reach: planted gradients whose reach is known, and the exact gain it goes with."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from tests.attacks.planted import linear, planted, truth
from tests.evaluation.evaluated import evaluate
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks, conflict
from randens.core.errors import InputError, ModelError
from randens.evaluation import Conflict


def with_rows(*rows: list[float], bias: float = 0.0) -> RandomizedEnsemble:
    """Linear members of two classes whose margin for class 0 is row·x + bias."""
    made = []
    for row in rows:
        weight = torch.tensor([row, [0.0] * len(row)])
        made.append(linear(weight, torch.tensor([bias, 0.0])))
    return RandomizedEnsemble(made).eval()


def inputs(n: int, d: int) -> tuple[Tensor, Tensor]:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(0)), torch.zeros(n, dtype=torch.int64)


@pytest.mark.parametrize(
    ("norm", "rows", "reach"),
    [
        # The reach depends on directions alone, not on scales.
        ("l2", ([1.0, 0.0], [5.0, 0.0]), 1.0),
        ("l2", ([1.0, 0.0], [0.0, 3.0]), math.sqrt(0.5)),
        # Disjoint supports do not conflict in linf: one perturbation serves both.
        ("linf", ([1.0, 0.0], [0.0, 3.0]), 1.0),
        ("linf", ([1.0, 1.0], [1.0, -1.0]), 0.5),
        ("l2", ([2.0, 0.0], [-1.0, 0.0]), 0.0),
        ("linf", ([2.0, 0.0], [-1.0, 0.0]), 0.0),
        ("l2", ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]), math.sqrt(1 / 3)),
    ],
)
def test_the_reach_of_planted_gradients(norm: str, rows: tuple[list[float], ...], reach: float) -> None:
    found = conflict(with_rows(*rows), inputs(7, len(rows[0])), Threat(norm, 0.1))
    assert found.reach == pytest.approx(reach, abs=1e-7)
    assert found.points == pytest.approx(np.full(7, reach), abs=1e-7)
    assert found.unusable.tolist() == [0.0] * len(rows)
    assert np.diag(found.pairs) == pytest.approx(1.0, abs=1e-12)
    assert np.array_equal(found.pairs, found.pairs.T)
    if len(rows) == 2:
        assert found.pairs[0, 1] == pytest.approx(reach, abs=1e-7)
    assert (found.cost.forwards, found.cost.backwards) == (7 * len(rows), 7 * len(rows))


def test_pairs_are_pairs_and_not_the_whole() -> None:
    found = conflict(with_rows([1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]), inputs(5, 2), Threat("l2", 0.1))
    assert found.pairs == pytest.approx(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    assert found.reach == pytest.approx(1 / 3)


class Dead(nn.Module):
    """Answers that do not depend on inputs whose first coordinate is below a half."""

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, :1]
        return torch.cat(
            [torch.where(first < 0.5, torch.zeros_like(first), first), torch.zeros_like(first)], 1
        )


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.sum(1) + (x[:, 0] - x[:, 0]).sqrt(), torch.zeros(len(x))], 1)


def test_inputs_without_a_usable_gradient_are_counted_and_left_out() -> None:
    x = torch.tensor([[0.2, 0.1], [0.4, 0.1], [0.8, 0.1], [0.9, 0.1]])
    rec = RandomizedEnsemble([Dead(), linear(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.zeros(2))])
    found = conflict(rec, (x, torch.zeros(4, dtype=torch.int64)), Threat("l2", 0.1))
    assert found.unusable.tolist() == [0.5, 0.0]
    # A dead gradient would have given a half.
    assert found.reach == pytest.approx(math.sqrt(0.5))
    assert np.isnan(found.points).tolist() == [True, True, False, False]


def test_a_member_without_any_gradient_has_no_reach() -> None:
    rec = RandomizedEnsemble([Broken(), with_rows([1.0, 0.0]).members[0]])
    found = conflict(rec, inputs(3, 2), Threat("linf", 0.1))
    assert found.unusable.tolist() == [1.0, 0.0]
    assert math.isnan(found.reach)
    assert math.isnan(found.pairs[0, 1])
    assert found.pairs[1, 1] == pytest.approx(1.0)
    assert "unknown" in found.sentences()[0]
    again = Conflict.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert math.isnan(again.reach)
    assert again.unusable.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_less_reach_is_more_exact_gain(norm: str) -> None:
    """Members with the same margins alone: the gain follows the conflict between them alone."""
    reaches, gains = [], []
    for share in (0.0, 0.6, 0.9):
        case = planted(norm, n=40, members=3, conflict=share, seed=3)
        reaches.append(conflict(case.rec, (case.x, case.y), case.threat).reach)
        exact = attacks.create("exact", case.threat)
        found = evaluate(case.rec, (case.x, case.y), exact)
        assert found.conflict is not None
        assert found.conflict.reach == pytest.approx(reaches[-1])
        assert 1 - found.robust == pytest.approx(truth(case).mean())
        gains.append(found.gain)
    assert reaches[0] > reaches[1] > reaches[2]
    assert gains[0] < gains[1] < gains[2]


class Refusing(nn.Module):
    """Like an ONNX file: no gradients, and says so."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise ModelError("no gradients")
        return torch.stack([x.sum(1), 1 - x.sum(1)], dim=1)


def test_members_without_gradients_are_evaluated_without_a_reach() -> None:
    rec = RandomizedEnsemble([Refusing(), with_rows([1.0, 0.0]).members[0]])
    with pytest.raises(InputError, match="a member gives no gradients"):
        conflict(rec, inputs(3, 2), Threat("linf", 0.1))
    found = evaluate(rec, inputs(3, 2), "random", eps=0.1)
    assert found.conflict is None
    assert 0 <= found.robust <= 1
