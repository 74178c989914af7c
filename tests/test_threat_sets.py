"""l1 balls in the box, l0 sets and unions: legal in exact arithmetic, projections nearest, steps steepest."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from tests.attacks.cases import digits, mlp
from tests.attacks.planted import linear, planted, share_solved, truth
from torch import Tensor

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import exact
from randens.region import Region

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
    for name in ("pgd", "adaptive-pgd-l", "apgd-margin", "acw", "random"):
        few = attacks.create(name, small)(rec, x, y)
        many = attacks.create(name, large)(rec, x, y)
        assert bool(large.contains(many.x_adv, x).all()), name
        assert float(many.risk.mean()) > float(few.risk.mean()), name


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *((name, 1.0) for name in ("pgd", "apgd", "adaptive-pgd-l", "adaptive-pgd-s", "arc", "arc-r")),
        *((name, 1.0) for name in ("lattice", "saddle", "exact")),
        ("apgd-margin", 0.8),
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
