"""l1 balls in the box, l0 sets and unions: legal in exact arithmetic, projections nearest, steps steepest."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from tests.attacks.cases import digits, mlp
from tests.attacks.planted import linear, planted, share_solved, truth
from torch import Tensor

from randens import RandomizedEnsemble, Threat, attacks, optimize_sampling
from randens.attacks import exact
from randens.core.errors import InputError
from randens.evaluation import evaluate
from randens.threat import Region
from randens.witness.store import WitnessStore, input_keys

seeds = st.integers(0, 10_000)
radii = st.floats(0.01, 4.0)


def corners(seed: int, shape: tuple[int, ...] = (4, 9)) -> tuple[Tensor, Tensor]:
    """Inputs of the box, some at its ends, and points far outside."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=generator)
    x = torch.where(torch.rand(shape, generator=generator) < 0.3, x.round(), x)
    return x, x + 2 * torch.randn(shape, generator=generator)


def length(point: Tensor, x: Tensor) -> Fraction:
    """‖point − x‖₁ in exact arithmetic."""
    pairs = zip(point.tolist(), x.tolist(), strict=True)
    return sum((abs(Fraction(a) - Fraction(b)) for a, b in pairs), Fraction(0))


@given(radii, seeds, st.booleans())
@settings(max_examples=25, deadline=None)
def test_l1_projections_are_legal_in_exact_arithmetic(eps: float, seed: int, boxed: bool) -> None:
    threat = Threat("l1", eps, (0.0, 1.0) if boxed else None)
    x, far = corners(seed)
    for point, centre in zip(threat.project(far, x), x, strict=True):
        assert length(point, centre) <= Fraction(eps)
        assert not boxed or bool(((point >= 0) & (point <= 1)).all())


@given(radii, seeds)
@settings(max_examples=6, deadline=None)
def test_the_l1_projection_is_the_nearest_point_of_ball_and_box(eps: float, seed: int) -> None:
    x, far = corners(seed, (2, 5))
    nearest = Threat("l1", eps).project(far, x)
    for point, centre, goal in zip(nearest.double(), x.double(), far.double(), strict=True):
        # δ = a − b with a, b ≥ 0: smooth, so that a general solver can check it.
        def objective(v: np.ndarray, centre: Tensor = centre, goal: Tensor = goal) -> float:
            moved = centre.numpy() + v[:5] - v[5:]
            return float(((moved - goal.numpy()) ** 2).sum())

        room = [(0.0, 1.0 - c) for c in centre.tolist()] + [(0.0, c) for c in centre.tolist()]
        solved = minimize(
            objective,
            np.full(10, 1e-3),
            bounds=room,
            constraints={"type": "ineq", "fun": lambda v: eps - v.sum()},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert float((point - goal).square().sum()) <= solved.fun + 1e-4


def test_a_projection_by_hand() -> None:
    """Radius 1 from (0, ½): the second coordinate has room for ½ only; λ = ½ takes the rest from the first."""
    threat = Threat("l1", 1.0)
    x = torch.tensor([[0.0, 0.5]])
    torch.testing.assert_close(threat.project(torch.tensor([[1.0, 2.5]]), x), torch.tensor([[0.5, 1.0]]))
    # The region keeps the box by itself, before any clipping.
    near = Region.around(x.double(), threat).project(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    torch.testing.assert_close(near, torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    free = Threat("l1", 1.0, None)
    torch.testing.assert_close(free.project(torch.tensor([[1.0, 2.5]]), x), torch.tensor([[0.0, 1.5]]))


@given(radii, seeds)
@settings(max_examples=10, deadline=None)
def test_the_steepest_step_is_that_of_a_linear_program(eps: float, seed: int) -> None:
    x, far = corners(seed, (2, 6))
    gradient = far - x
    moved = Threat("l1", 1.0).step(x, gradient, eps)
    region = Region.around(x.double(), Threat("l1", eps))
    lowest = region.lowest(-gradient.double())
    for row in range(2):
        slope, centre = gradient[row].double().numpy(), x[row].double().numpy()
        solved = linprog(
            np.r_[-slope, slope],
            A_ub=[np.ones(12)],
            b_ub=[eps],
            bounds=[*((0.0, 1.0 - c) for c in centre), *((0.0, c) for c in centre)],
        )
        gained = float((gradient[row] * (moved[row] - x[row])).sum())
        assert gained == pytest.approx(-solved.fun, abs=1e-4)
        assert float(-lowest[row] @ gradient[row].double()) == pytest.approx(solved.fun, abs=1e-9)
        bound = float(region.minimum(-gradient.double())[row])
        assert bound == pytest.approx(solved.fun, abs=1e-9)


@pytest.mark.parametrize("boxed", [False, True])
def test_planted_optima_in_l1(boxed: bool) -> None:
    case = planted("l1", n=12, boxed=boxed, members=4)
    optimum = truth(case)
    assert 0.2 < optimum.mean() < 0.9
    for problem, value in zip(
        exact.problems(case.rec.members, case.x, case.y, case.threat), optimum, strict=True
    ):
        found = exact.optimum(problem, case.rec.probs.numpy())
        assert found.value == value
        assert exact.verify(problem, found, case.rec.probs.numpy())
    for name, wanted in (("exact", 1.0), ("saddle", 0.75), ("arc-r", 0.2), ("lattice", 0.5)):
        result = attacks.create(name, case.threat)(case.rec, case.x, case.y)
        assert bool(case.threat.contains(result.x_adv, case.x).all()), name
        assert (result.risk.numpy() <= optimum + 1e-9).all() or name == "exact", name
        assert share_solved(result.risk, optimum) >= wanted, name


def test_one_coordinate_is_all_that_l1_needs_without_a_box() -> None:
    """Members that look at one feature each cannot both be fooled by a budget for one of them."""
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    members = [linear(torch.stack([row, -row]), torch.zeros(2)) for row in rows]
    rec = RandomizedEnsemble(members, [0.6, 0.4])
    x, y = torch.full((1, 3), 0.5), torch.zeros(1, dtype=torch.int64)
    for eps, risk in ((0.4, 0.0), (0.6, 0.6), (0.9, 0.6), (1.2, 1.0)):
        for name in ("exact", "saddle", "arc"):
            found = attacks.create(name, Threat("l1", eps, None))(rec, x, y)
            assert float(found.risk) == pytest.approx(risk), (eps, name)
        wide = attacks.create("exact", Threat("linf", eps, None))(rec, x, y)
        assert float(wide.risk) >= risk


def test_l0_counts_pixels_and_keeps_the_largest_changes() -> None:
    threat = Threat("l0", 2)
    x = torch.zeros(1, 3, 2, 2)
    far = x.clone()
    far[0, :, 0, 0], far[0, 1, 1, 1], far[0, 0, 0, 1] = 0.4, 0.9, 0.1
    point = threat.project(far, x)
    assert (point != x).any(dim=1).sum() == 2
    assert bool(threat.contains(point, x).all())
    assert not bool(threat.contains(far, x).any())
    assert point[0, 0, 0, 1] == 0
    drawn = threat.random(torch.full((50, 3, 4, 4), 0.5), torch.Generator().manual_seed(0))
    assert bool(threat.contains(drawn, torch.full((50, 3, 4, 4), 0.5)).all())
    impossible: tuple[dict[str, Any], ...] = ({"eps": 1.5}, {"eps": 2, "bounds": None})
    for bad in impossible:
        with pytest.raises(InputError, match="whole number of pixels"):
            Threat("l0", **bad)
    with pytest.raises(InputError, match="attack 'pgd' cannot search the norm l0; attacks that can: sparse"):
        attacks.create("pgd", threat)


def test_the_sparse_search_finds_a_planted_pixel() -> None:
    """One feature out of thirty decides; one change is enough, and only there."""
    row = torch.zeros(30)
    row[17] = 1.0
    rec = RandomizedEnsemble([linear(torch.stack([row, -row]), torch.tensor([-0.25, 0.25]))])
    x, y = torch.full((4, 30), 0.5), torch.zeros(4, dtype=torch.int64)
    found = attacks.create("sparse", Threat("l0", 1), queries=400)(rec, x, y)
    assert found.risk.tolist() == [1.0] * 4
    assert [(a != b).nonzero().flatten().tolist() for a, b in zip(found.x_adv, x, strict=True)] == [[17]] * 4


def test_planted_optima_in_l0() -> None:
    """A linear member changes by the sum of its largest gains: k pixels at the ends of the box are the optimum."""
    generator = torch.Generator().manual_seed(4)
    x, y, most = torch.rand(24, 12, generator=generator), torch.zeros(24, dtype=torch.int64), 2
    threat = Threat("l0", most)
    for weights in torch.randn(2, 12, generator=generator):
        gains = torch.maximum(weights * x, weights * (x - 1)).double()
        least = (x @ weights).double() - gains.topk(most, dim=1).values.sum(dim=1)
        # Half of the inputs can be fooled: f(x) = (w·x − b, 0), and class 0 is right above b.
        offset = float(least.quantile(0.5))
        rec = RandomizedEnsemble([linear(torch.stack([weights, 0 * weights]), torch.tensor([-offset, 0.0]))])
        foolable = (least < offset).numpy()
        found = attacks.create("sparse", threat, queries=800)(rec, x, y)
        fooled = found.risk.numpy() > 0
        assert foolable.sum() == 12
        assert not (fooled & ~foolable).any()
        assert fooled[foolable].mean() >= 0.9
        assert bool(((found.x_adv != x).sum(dim=1) <= most).all())
        assert bool(((found.x_adv >= 0) & (found.x_adv <= 1)).all())


def test_planted_optima_in_a_union() -> None:
    """The optimum in a union is the larger of the optima in its parts (Proposition 1), and exact finds it."""
    case = planted("linf", n=12, boxed=True, members=4)
    parts = case.threat, Threat("l2", 0.25), Threat("l1", 0.7)
    each = np.stack([truth(dataclasses.replace(case, threat=part)) for part in parts])
    optimum = each.max(axis=0)
    # No part alone is the union.
    assert all((row < optimum - 1e-9).any() for row in each)
    both = Threat.union(*parts)
    found = attacks.create("exact", both)(case.rec, case.x, case.y)
    np.testing.assert_allclose(found.risk.numpy(), optimum, atol=1e-9)
    assert bool(both.contains(found.x_adv, case.x).all())
    climbed = attacks.create("saddle", both)(case.rec, case.x, case.y)
    assert (climbed.risk.numpy() <= optimum + 1e-9).all()
    assert share_solved(climbed.risk, optimum) >= 0.75


def test_a_union_is_as_strong_as_its_parts_together() -> None:
    x, y = digits("test")
    x, y = x[:24], y[:24]
    rec = RandomizedEnsemble([_flat(0), _flat(1)])
    parts = Threat("linf", 0.08), Threat("l2", 0.5)
    both = Threat.union(*parts)
    each = [attacks.create("adaptive-pgd-s", part, steps=5)(rec, x, y) for part in parts]
    found = attacks.create("adaptive-pgd-s", both, steps=5)(rec, x, y)
    assert torch.equal(found.risk, torch.maximum(each[0].risk, each[1].risk))
    assert bool(both.contains(found.x_adv, x).all())
    # Proposition 1: a set is reachable in the union iff in a part.
    merged = each[0].pool.merge(each[1].pool).profile()
    for alpha in ([1.0, 0.0], [0.5, 0.5], [0.2, 0.8]):
        assert found.pool.profile().risk(alpha) == pytest.approx(merged.risk(alpha))
    result = evaluate(rec, (x, y), attacks.create("adaptive-pgd-s", both, steps=5))
    assert result.robust <= 1 - float(found.risk.mean()) + 1e-9
    assert Threat.from_dict(result.threat.to_dict()) == both


@pytest.mark.parametrize(
    "threat",
    [Threat.union(Threat("linf", 0.1), Threat("l2", 0.5)), Threat("l0", 3), Threat("l1", 2.0)],
    ids=str,
)
def test_the_store_keeps_points_of_every_set(threat: Threat, tmp_path: Path) -> None:
    """Bit for bit, and for a smaller set only those that lie in it."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(6, 3, 4, 4, generator=generator), torch.zeros(6, dtype=torch.int64)
    points = torch.cat([threat.scaled(share).random(x[:3], generator) for share in (1.0, 0.34)])
    centres, keys = x[[0, 1, 2, 0, 1, 2]], input_keys(x, y)[[0, 1, 2, 0, 1, 2]]
    WitnessStore(tmp_path).judged(threat, centres, keys, ["a"], points, np.ones((6, 1), dtype=bool), "made")
    for share in (1.0, 0.5):
        smaller, store = threat.scaled(share), WitnessStore(tmp_path)
        store.refresh(smaller, x)
        found = store.recall(["a"], input_keys(x, y), x, smaller)
        assert bool(smaller.contains(found.x_adv, x[found.points]).all())
        # A union's points are kept for its own radii alone.
        inside = (
            smaller.contains(points, centres) if share == 1.0 or len(threat.parts) == 1 else torch.zeros(6)
        )
        assert {tuple(p.flatten().tolist()) for p in found.x_adv} == {
            tuple(p.flatten().tolist()) for p in points[inside.bool()]
        }


def test_a_union_is_evaluated_with_a_store(tmp_path: Path) -> None:
    x, y = digits("test")
    rec = RandomizedEnsemble([_flat(0), _flat(1)]).eval()
    attack = attacks.create("adaptive-pgd-s", Threat.union(Threat("linf", 0.08), Threat("l2", 0.5)), steps=3)
    first = evaluate(rec, (x[:12], y[:12]), attack, folder=tmp_path)
    assert evaluate(rec, (x[:12], y[:12]), attack, folder=tmp_path).robust == first.robust
    assert first.robust == evaluate(rec, (x[:12], y[:12]), attack).robust
    assert "0.08 in linf or 0.5 in l2" in str(first)
    # What was asked before is read: the members alone and the pair at equal probabilities.
    assert optimize_sampling(rec, (x[:12], y[:12]), attack, folder=tmp_path, max_sweeps=1).cost.backwards == 0


def test_the_radius_that_a_point_needs() -> None:
    x = torch.zeros(2, 3, 2, 2)
    point = x.clone()
    point[0, :, 0, 0] = torch.tensor([0.3, 0.0, 0.4])
    assert Threat("l0", 1).distance(point, x).tolist() == [1.0, 0.0]
    for norm, radius in (("l1", 0.7), ("l2", 0.5), ("linf", 0.4)):
        assert float(Threat(norm, 1.0).distance(point, x)[0]) == pytest.approx(radius)
    # 0.5 of 0.25 in l2, 0.4 of 0.1 in linf: twice as large, the union of 0.25 and 0.1 holds it.
    both = Threat.union(Threat("linf", 0.1), Threat("l2", 0.25))
    assert float(both.distance(point, x)[0]) == pytest.approx(0.2)
    assert both.with_radius(0.2).parts[1] == Threat("l2", 0.5)


def test_unions_are_checked_and_written_down() -> None:
    both = Threat.union(Threat("linf", 0.1), Threat.union(Threat("l1", 2.0), Threat("l2", 0.5)))
    assert [part.norm for part in both.parts] == ["linf", "l1", "l2"]
    assert Threat.from_dict(both.to_dict()) == both
    assert both.scaled(2).parts[2] == Threat("l2", 1.0)
    assert Threat.union(Threat("l2", 1.0)) == Threat("l2", 1.0)
    x, far = corners(3)
    point = both.project(far, x)
    assert bool(both.contains(point, x).all())
    assert torch.equal(both.project(point, x), point)
    with pytest.raises(InputError, match="different bounds"):
        Threat.union(Threat("l2", 1.0), Threat("linf", 1.0, None))
    with pytest.raises(InputError, match="union linf\\+l1\\+l2"):
        both.steepest(x)


def _flat(seed: int) -> torch.nn.Module:
    """A linear network on digits with random weights that still classify: the nearest class means, jittered."""
    x, y = digits()
    means = torch.stack([x[y == c].flatten(1).mean(dim=0) for c in range(10)])
    noise = 0.05 * torch.randn(means.shape, generator=torch.Generator().manual_seed(seed))
    weights = means + noise
    return torch.nn.Sequential(torch.nn.Flatten(), linear(weights, -0.5 * weights.square().sum(dim=1)))


def test_l1_is_attacked_by_gradients_too() -> None:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    rec = RandomizedEnsemble([mlp(0), mlp(1)])
    with torch.no_grad():
        y = rec.members[0](x).argmax(dim=1)
    small, large = Threat("l1", 0.2, None), Threat("l1", 1.5, None)
    for name in ("pgd", "adaptive-pgd-l", "margin", "acw", "random"):
        few = attacks.create(name, small)(rec, x, y)
        many = attacks.create(name, large)(rec, x, y)
        assert bool(large.contains(many.x_adv, x).all()), name
        assert float(many.risk.mean()) > float(few.risk.mean()), name


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *((name, 1.0) for name in ("pgd", "apgd", "adaptive-pgd-l", "adaptive-pgd-s", "arc", "arc-r")),
        *((name, 1.0) for name in ("lattice", "saddle", "exact")),
        ("margin", 0.8),
        ("acw", 0.8),
    ],
)
def test_a_linear_member_is_fooled_in_l1_and_box_where_it_can_be(name: str, wanted: float) -> None:
    """The least w·(x + δ) over ball ∩ box is known; a third of the pixels lie at an end of the box."""
    x, _ = corners(3, (40, 16))
    weights = torch.randn(16, generator=torch.Generator().manual_seed(3))
    threat, y = Threat("l1", 1.0), torch.zeros(40, dtype=torch.int64)
    slope = weights.double().repeat(40, 1)
    least = (x.double() * slope).sum(dim=1) + Region.around(x.double(), threat).minimum(slope)
    offset = float(least.quantile(0.5))
    rec = RandomizedEnsemble([linear(torch.stack([weights, 0 * weights]), torch.tensor([-offset, 0.0]))])
    found = attacks.create(name, threat)(rec, x, y)
    assert bool(threat.contains(found.x_adv, x).all())
    fooled = found.risk > 0
    foolable, safe = least < offset - 5e-3, least > offset + 5e-3
    assert min(int(foolable.sum()), int(safe.sum())) >= 15
    assert not bool(fooled[safe].any())
    assert float(fooled[foolable].double().mean()) >= wanted
