"""ARC and ARC-R: the paper's rules by their results, and passes that linear models make unnecessary."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.cases import case
from tests.attacks.planted import linear

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import arc
from randens.region import norms

X, Y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)


@pytest.mark.parametrize(("distance", "steps"), [(1.4, 2), (1.3, 20)])
def test_inputs_out_of_reach_are_given_up(distance: float, steps: int) -> None:
    weight, bias = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([2 * distance, 0.0])
    rec, n = RandomizedEnsemble([linear(weight, bias) for _ in range(3)]), 4
    x, y = torch.zeros(n, 3), torch.zeros(n, dtype=torch.int64)
    found = attacks.create("arc-r", Threat("linf", 1.0, None), steps=20)(rec, x, y)
    assert found.risk.tolist() == [0.0] * n
    # One model per member and step at most: fewer where the point has not moved.
    assert n * 3 <= found.cost.backwards <= n * 3 * steps
    assert found.cost.forwards == found.cost.backwards + n * 3


@pytest.mark.parametrize(("kind", "norm"), [("planted", "l2"), ("convnet", "linf")])
def test_nothing_is_lost_by_skipping(kind: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = case(kind, norm, n=16)
    short = attacks.create("arc-r", made.threat)(made.rec, made.x, made.y)
    monkeypatch.setattr(arc, "_NEAR", float("inf"))
    monkeypatch.setattr(arc, "_FAR", float("inf"))
    full = attacks.create("arc-r", made.threat)(made.rec, made.x, made.y)
    assert short.risk.tolist() == full.risk.tolist()
    assert short.cost.forwards < full.cost.forwards


def _opposed(probs: list[float] | None = None) -> RandomizedEnsemble:
    """Two members of which a perturbation can fool either, never both: w and −w, each with a margin of ½ε."""
    row = torch.tensor([1.0, 0.0])
    members = [linear(torch.stack([s * row, -s * row]), torch.tensor([0.5, -0.5])) for s in (1.0, -1.0)]
    return RandomizedEnsemble(members, probs)


def test_arc_r_draws_its_order_and_arc_takes_the_likeliest_member_first() -> None:
    threat = Threat("l2", 1.0, None)

    def fooled(name: str, probs: list[float] | None = None) -> set[tuple[bool, ...]]:
        rec = _opposed(probs)
        found = [attacks.create(name, threat, steps=1, seed=seed)(rec, X, Y) for seed in range(8)]
        return {tuple(f.errors[0].tolist()) for f in found}

    assert fooled("arc-r") == {(True, False), (False, True)}
    assert fooled("arc") == {(True, False)}
    assert fooled("arc", [0.4, 0.6]) == {(False, True)}


@pytest.mark.parametrize(
    ("rows", "fooled"),
    [
        # A to the right, B to the left, C above: B instead of A is refused, and C is reached from where A is fooled.
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], [True, False, True]),
        # The likeliest member first, though B and C together are likelier: each of them alone instead of A is refused.
        ([[1.0, 0.0], [-0.8, 0.6], [-0.8, -0.6]], [True, False, False]),
    ],
)
def test_a_step_takes_the_likeliest_first_and_refuses_a_lower_risk(
    rows: list[list[float]], fooled: list[bool]
) -> None:
    normals = torch.tensor(rows)
    members = [linear(torch.stack([-row, row]), torch.tensor([0.3, -0.3])) for row in normals]
    probs, arc_once = [0.4, 0.31, 0.29], attacks.create("arc", Threat("l2", 1.0, None), steps=1)
    for order in ([0, 1, 2], [1, 2, 0]):
        rec = RandomizedEnsemble([members[i] for i in order], [probs[i] for i in order])
        assert arc_once(rec, X, Y).errors.tolist() == [[fooled[i] for i in order]]


def test_arc_goes_to_the_nearest_boundary_not_to_the_smallest_gap() -> None:
    """Class 1 is the runner-up, but its boundary is 2 ε away; that of class 2 is at 0.2 ε."""
    weights = torch.tensor([[0.0, 0.0], [-0.1, 0.0], [0.0, -10.0]])
    rec = RandomizedEnsemble([linear(weights, torch.tensor([0.0, -0.2, -2.0]))])
    found = attacks.create("arc", Threat("l2", 1.0, None), steps=1)(rec, X, Y)
    assert found.risk.tolist() == [1.0]
    assert abs(float(found.x_adv[0, 0])) < 1e-6


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", ["arc", "arc-r"])
def test_the_local_ball_is_a_quarter_of_eps_for_one_model_and_eps_for_several(norm: str, name: str) -> None:
    """A boundary at 0.3 ε takes two steps of a single model; one at 0.9 ε takes one step of an ensemble."""
    threat = Threat(norm, 1.0, None)
    row = torch.tensor([[1.0, 0.5, -0.2]])
    row = row / norms(row, threat.q)

    def risk(members: int, distance: float, steps: int) -> float:
        member = linear(torch.cat([0.5 * row, -0.5 * row]), distance * torch.tensor([0.5, -0.5]))
        rec = RandomizedEnsemble([member] * members)
        return float(attacks.create(name, threat, steps=steps)(rec, torch.zeros(1, 3), Y).risk)

    assert risk(1, 0.3, 1) == 0
    assert risk(1, 0.2, 1) == 1
    assert risk(1, 0.3, 2) == 1
    assert risk(2, 0.9, 1) == 1


def test_a_fooled_member_is_exchanged_by_going_back_to_its_boundary() -> None:
    """B is fooled at the input; only where it no longer is can the heavier A be."""
    row = torch.tensor([1.0, 0.0])
    a = linear(torch.stack([row, -row]), torch.tensor([0.4, -0.4]))
    b = linear(torch.stack([-row, row]), torch.tensor([-0.1, 0.1]))
    found = attacks.create("arc", Threat("l2", 1.0, None), steps=4)(
        RandomizedEnsemble([a, b], [0.7, 0.3]), X, Y
    )
    assert found.clean_errors.tolist() == [[False, True]]
    assert float(found.risk) >= 0.7
