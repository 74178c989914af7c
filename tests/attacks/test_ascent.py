"""Attacks that follow one gradient: the right way, with Auto-PGD's step rule and with ACW's search for the constant."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.cases import attacks_for
from tests.attacks.planted import linear
from tests.attacks.test_climb import Curved, X, Y
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import suite
from randens.attacks.carlini_wagner import expected_hinge
from randens.region import norms


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", [*attacks_for("planted"), "standard", "thorough"])
def test_a_boundary_at_nine_tenths_of_eps_is_reached(name: str, norm: str) -> None:
    """No random start or search has a tenth of a chance to get there."""
    threat = Threat(norm, 1.0, None)
    row = torch.linspace(-1, 2, 20)[None]
    row = 0.5 * row / norms(row, threat.q)
    rec = RandomizedEnsemble([linear(torch.cat([row, -row]), torch.tensor([0.45, -0.45]))])
    found = attacks.create(name, threat)(rec, torch.zeros(1, 20), Y)
    assert float(found.risk) == 1 or name == "random"


def test_auto_pgd_halves_its_step_where_the_loss_stops_rising() -> None:
    """The member is fooled within 0.05 of (0.37, 0.29) only; steps of 2ε pass over that."""
    rec = RandomizedEnsemble([Curved(lambda a, b: (a - 0.37) ** 2 + (b - 0.29) ** 2 - 0.0025)])
    for norm in ("linf", "l2"):
        assert float(attacks.create("apgd", Threat(norm, 1.0, None), steps=60)(rec, X, Y).risk) == 1


class Decoy(nn.Module):
    """Class 1 comes nearest to class 0 at x₁ = 1, and never wins; class 2, which is far at 0, wins at x₁ = −1."""

    def forward(self, x: Tensor) -> Tensor:
        a = x[:, 0]
        return torch.stack([0 * a, -0.05 - 0.5 * (a - 1) ** 2, -3 - 3.2 * a], dim=1)


@pytest.mark.parametrize(("classes", "risk"), [(1, 0), (2, 1)])
def test_the_suite_aims_at_one_class_after_another(classes: int, risk: float) -> None:
    attack = suite._Alone(Threat("linf", 1.0, None), classes=classes, seed=1)
    assert float(attack(RandomizedEnsemble([Decoy()]), X, Y).risk) == risk


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
    threat = Threat("l2", 1.0, None)
    assert float(attacks.create("acw", threat, constants=1)(rec, X, Y).risk) == 0
    assert float(attacks.create("acw", threat, constants=6)(rec, X, Y).risk) == 1


@pytest.mark.parametrize("name", ["pgd", "adaptive-pgd-l"])
def test_steps_are_a_share_of_eps(name: str) -> None:
    """A boundary at 0.4 ε takes two steps of a quarter of ε."""
    member = linear(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]), torch.tensor([0.02, -0.02]))
    for steps, risk in ((1, 0), (2, 1)):
        assert attacks.create(name, Threat("l2", 0.1, None), steps=steps)(member, X, Y).risk.item() == risk
