"""ACW: Carlini and Wagner's loss with the expectation outside, and its search for the constant."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.planted import linear

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks.carlini_wagner import expected_hinge


def test_the_loss_is_carlini_and_wagners_with_the_expectation_outside() -> None:
    z = torch.tensor([[[3.0, 1.0, 0.0]], [[1.0, 2.0, 0.0]]])
    y = torch.tensor([0])
    # Margins 2 and −1: the fooled member stops at −κ.
    for kappa, expected in ((0.0, -0.25 * 2.0), (0.5, -(0.25 * 2.0 - 0.75 * 0.5)), (5.0, -(0.5 - 0.75))):
        found = expected_hinge(kappa)(z, y, torch.tensor([0.25, 0.75]))
        assert float(found) == pytest.approx(expected)


def test_the_constant_rises_until_the_boundary_is_worth_its_distance() -> None:
    """Tiny logits: with c = 1 the distance outweighs them, and only the search of c finds the boundary."""
    row = 1e-4 * torch.tensor([1.0, 0.0])
    rec = RandomizedEnsemble([linear(torch.stack([row, -row]), torch.tensor([0.6e-4, -0.6e-4]))])
    x, y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    threat = Threat("l2", 1.0, None)
    assert float(attacks.create("acw", threat, constants=1)(rec, x, y).risk) == 0
    assert float(attacks.create("acw", threat, constants=6)(rec, x, y).risk) == 1
