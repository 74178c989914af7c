"""The paper's rules for ARC and ARC-R, by their results: the order of the members and the local ball."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.planted import linear
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks.carlini_wagner import expected_hinge


def _opposed() -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """Two members of which a perturbation can fool either, never both: w and −w, each with a margin of ½ε."""
    row = torch.tensor([1.0, 0.0])
    members = [linear(torch.stack([s * row, -s * row]), torch.tensor([0.5, -0.5])) for s in (1.0, -1.0)]
    return RandomizedEnsemble(members), torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)


def test_arc_r_draws_its_order_and_arc_does_not() -> None:
    rec, x, y = _opposed()
    threat = Threat("l2", 1.0, None)

    def fooled(name: str) -> set[tuple[bool, ...]]:
        found = [attacks.create(name, threat, steps=1, seed=seed)(rec, x, y) for seed in range(8)]
        return {tuple(f.errors[0].tolist()) for f in found}

    assert fooled("arc-r") == {(True, False), (False, True)}
    assert fooled("arc") == {(True, False)}
    heavier = rec.with_probs([0.4, 0.6])
    assert attacks.create("arc", threat, steps=1)(heavier, x, y).errors.tolist() == [[False, True]]


_ASKED: list[int] = []


class Noting(nn.Module):
    """A member that records when its gradients are computed."""

    def __init__(self, inner: nn.Module, number: int) -> None:
        super().__init__()
        self.inner, self.number = inner, number

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            _ASKED.append(self.number)
        z: Tensor = self.inner(x)
        return z


def test_arc_begins_with_the_most_likely_member() -> None:
    row = torch.tensor([1.0, 0.0])
    members = [
        Noting(linear(torch.stack([row, -row]), torch.tensor([5.0, -5.0])), number) for number in range(3)
    ]
    rec = RandomizedEnsemble(members, [0.2, 0.5, 0.3])
    attack = attacks.create("arc", Threat("l2", 1.0, None), steps=1, precision="float32")
    del _ASKED[:]
    attack(rec, torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    first = list(dict.fromkeys(_ASKED[-3:]))
    assert first == [1, 2, 0]


def test_arc_goes_to_the_nearest_boundary_not_to_the_smallest_gap() -> None:
    """Class 1 is the runner-up, but its boundary is 2 ε away; that of class 2 is at 0.2 ε."""
    weights = torch.tensor([[0.0, 0.0], [-0.1, 0.0], [0.0, -10.0]])
    rec = RandomizedEnsemble([linear(weights, torch.tensor([0.0, -0.2, -2.0]))])
    x, y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    found = attacks.create("arc", Threat("l2", 1.0, None), steps=1)(rec, x, y)
    assert found.risk.tolist() == [1.0]
    assert abs(float(found.x_adv[0, 0])) < 1e-6


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", ["arc", "arc-r"])
def test_the_local_ball_is_a_quarter_of_eps_for_one_model_and_eps_for_several(norm: str, name: str) -> None:
    """A boundary at 0.3 ε takes two steps of a single model; one at 0.9 ε takes one step of an ensemble."""
    threat = Threat(norm, 1.0, None)
    row = torch.tensor([[1.0, 0.5, -0.2]])
    row = row / threat.dual_norm(row)
    x, y = torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)

    def risk(members: int, distance: float, steps: int) -> float:
        member = linear(torch.cat([0.5 * row, -0.5 * row]), distance * torch.tensor([0.5, -0.5]))
        rec = RandomizedEnsemble([member] * members)
        return float(attacks.create(name, threat, steps=steps)(rec, x, y).risk)

    assert risk(1, 0.3, 1) == 0
    assert risk(1, 0.2, 1) == 1
    assert risk(1, 0.3, 2) == 1
    assert risk(2, 0.9, 1) == 1


def test_acw_is_carlini_and_wagners_loss_with_the_expectation_outside() -> None:
    z = torch.tensor([[[3.0, 1.0, 0.0]], [[1.0, 2.0, 0.0]]])
    y = torch.tensor([0])
    # Margins 2 and −1: the fooled member stops at −κ.
    for kappa, expected in ((0.0, -0.25 * 2.0), (0.5, -(0.25 * 2.0 - 0.75 * 0.5)), (5.0, -(0.5 - 0.75))):
        found = expected_hinge(kappa)(z, y, torch.tensor([0.25, 0.75]))
        assert float(found) == pytest.approx(expected)


def test_acw_raises_its_constant_until_the_boundary_is_worth_its_distance() -> None:
    """Tiny logits: with c = 1 the distance outweighs them, and only the search of c finds the boundary."""
    row = 1e-4 * torch.tensor([1.0, 0.0])
    rec = RandomizedEnsemble([linear(torch.stack([row, -row]), torch.tensor([0.6e-4, -0.6e-4]))])
    x, y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    threat = Threat("l2", 1.0, None)
    assert float(attacks.create("acw", threat, constants=1)(rec, x, y).risk) == 0
    assert float(attacks.create("acw", threat, constants=6)(rec, x, y).risk) == 1


def test_the_earlier_name_of_the_margin_attack_still_works() -> None:
    rec, x, y = _opposed()
    threat = Threat("l2", 1.0, None)
    old, new = (attacks.create(name, threat, steps=5)(rec, x, y) for name in ("cw", "margin"))
    assert torch.equal(old.x_adv, new.x_adv)
    assert attacks.create("cw", threat).name == "cw"
