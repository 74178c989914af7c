"""ARC and ARC-R: the paper's rules by their results, and passes that linear models make unnecessary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.cases import case
from tests.attacks.planted import linear, planted
from torch import Tensor

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import Search, arc

X, Y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)


def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for every verdict and give up no input."""
    monkeypatch.setattr(arc, "_NEAR", float("inf"))
    monkeypatch.setattr(arc, "_FAR", float("inf"))


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


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("kind", ["planted", "convnet"])
def test_nothing_is_lost_by_skipping(kind: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = case(kind, norm, n=16)
    short = attacks.create("arc-r", made.threat)(made.rec, made.x, made.y)
    everything(monkeypatch)
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


def test_arc_takes_the_members_in_order_of_their_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = Search.linearize

    def noting(s: Search, rows: Tensor, points: Tensor, wanted: Tensor, classes: int = 1) -> Any:
        asked.extend(wanted[0].nonzero().flatten().tolist())
        return original(s, rows, points, wanted, classes)

    monkeypatch.setattr(Search, "linearize", noting)
    row = torch.tensor([1.0, 0.0])
    members = [linear(torch.stack([row, -row]), torch.tensor([5.0, -5.0])) for _ in range(4)]
    rec = RandomizedEnsemble(members, [0.2, 0.5, 0.3, 0.0])
    attacks.create("arc", Threat("l2", 1.0, None), steps=1)(rec, X, Y)
    assert asked == [1, 2, 0]


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
    row = row / threat.dual_norm(row)

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


def binary_arc(
    weights: Tensor, biases: Tensor, x: Tensor, y: Tensor, probs: Tensor, threat: Threat
) -> Tensor:
    """The paper's ARC for binary linear members sign(w_i·x + b_i), y = ±1: one pass with exact distances."""

    def risk(points: Tensor) -> Tensor:
        return (y[:, None] * (points @ weights.T + biases) < 0).double() @ probs

    delta, value = torch.zeros_like(x), risk(x)
    for i in probs.argsort(descending=True, stable=True).tolist():
        norm = torch.linalg.vector_norm(weights[i], threat.q)
        signed = y * (x @ weights[i] + biases[i]) / norm
        moved = y * ((x + delta) @ weights[i] + biases[i]) / norm
        grip = (threat.eps - signed).clamp_min(1e-12)
        beta = threat.eps / grip * moved.abs() + 0.05 * threat.eps
        beta = torch.where(delta.any(dim=1), beta, torch.full_like(beta, threat.eps))
        pulled = delta + beta[:, None] * threat.steepest(-y[:, None] * weights[i])
        pulled *= threat.eps / torch.linalg.vector_norm(pulled, threat.p, dim=1, keepdim=True).clamp_min(
            1e-20
        )
        accept = (signed < threat.eps) & (risk(x + pulled) >= value)
        delta = torch.where(accept[:, None], pulled, delta)
        value = torch.where(accept, risk(x + pulled), value)
    return x + delta


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.sampled_from(["linf", "l2"]), st.integers(1, 4))
def test_one_step_of_arc_is_consistent_and_no_weaker_than_the_papers(
    seed: int, norm: str, members: int
) -> None:
    """The paper's guarantee: if some member can be fooled inside the ball, some member is."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(members, 6, generator=generator, dtype=torch.float64)
    biases = torch.randn(members, generator=generator, dtype=torch.float64)
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    y = torch.where(torch.rand(20, generator=generator) < 0.5, -1.0, 1.0).double()
    probs = torch.rand(members, generator=generator, dtype=torch.float64) + 0.01
    probs, threat = probs / probs.sum(), Threat(norm, 0.3, None)
    point = binary_arc(weights, biases, x, y, probs, threat)
    fooled = y[:, None] * (point @ weights.T + biases) < 0
    reach = y[:, None] * (x @ weights.T + biases) / torch.linalg.vector_norm(weights, threat.q, dim=1)
    foolable = (reach < 0.3 - 1e-3).any(dim=1)
    assert bool((fooled.any(dim=1) | ~foolable).all())
    nets = [linear(torch.stack([-w, w]), torch.stack([-b, b])) for w, b in zip(weights, biases, strict=True)]
    made = attacks.create("arc", threat, steps=3, step=1.0)
    result = made(RandomizedEnsemble(nets, probs), x, (y > 0).long())
    assert bool(((result.risk > 0) | ~foolable).all())
    # The paper's is one step of it, up to points that lie on a boundary.
    assert float((result.risk >= fooled.double() @ probs - 1e-9).double().mean()) >= 0.9


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["arc", "arc-r", "saddle"])
def test_attacks_on_linear_members_are_consistent(name: str, norm: str) -> None:
    """Some member is fooled wherever some member can be."""
    made = planted(norm, n=15, members=3, d=10)
    alone = [attacks.create("exact", made.threat)(m, made.x, made.y).risk > 0 for m in made.rec.members]
    foolable = torch.stack(alone).any(dim=0)
    result = attacks.create(name, made.threat)(made.rec, made.x, made.y)
    assert torch.equal(result.risk > 0, foolable)
