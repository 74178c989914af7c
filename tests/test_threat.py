"""The perturbation set: nothing leaves the ball or the box, to the last float."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from torch import Tensor

from randens import Threat
from randens.core.errors import InputError
from randens.region import Region
from randens.region import norms as norms_of

NORMS = ("linf", "l2", "l1")
norms = st.sampled_from(NORMS)
radii = st.floats(1e-3, 1.0)
seeds = st.integers(0, 10_000)


def batch(seed: int, shape: tuple[int, ...] = (6, 2, 3, 3)) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=generator)
    # Corners of the box are where clipping and rounding meet.
    return torch.where(torch.rand(shape, generator=generator) < 0.2, x.round(), x), generator


def corners(seed: int, shape: tuple[int, ...] = (4, 9)) -> tuple[Tensor, Tensor]:
    """Inputs of the box, some at its ends, and points far outside."""
    x, generator = batch(seed, shape)
    return x, x + 2 * torch.randn(shape, generator=generator)


@given(norms, radii, seeds, st.booleans())
def test_projections_are_legal_and_stay_where_they_are(norm: str, eps: float, seed: int, boxed: bool) -> None:
    threat = Threat(norm, eps, (0.0, 1.0) if boxed else None)
    x, generator = batch(seed)
    far = x + 5 * torch.randn(x.shape, generator=generator)
    point = threat.project(far, x)
    assert bool(threat.contains(point, x).all())
    assert torch.equal(threat.project(point, x), point)
    inside = threat.random(x, generator)
    assert torch.equal(threat.project(inside, x), inside)


@given(radii, seeds)
def test_l2_projection_without_a_box_scales_back_onto_the_sphere(eps: float, seed: int) -> None:
    x, generator = batch(seed)
    far = x + 10 * torch.randn(x.shape, generator=generator)
    point = Threat("l2", eps, None).project(far, x)
    lengths = (point - x).flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, eps), rtol=1e-5, atol=1e-6)
    direction = torch.nn.functional.cosine_similarity((point - x).flatten(1), (far - x).flatten(1))
    torch.testing.assert_close(direction, torch.ones_like(direction), rtol=1e-4, atol=0)


@given(norms, seeds)
def test_the_steepest_direction_has_unit_norm_and_gains_the_dual_norm(norm: str, seed: int) -> None:
    threat = Threat(norm, 1.0, None)
    gradient = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    direction = threat.steepest(gradient)
    lengths = torch.linalg.vector_norm(direction, threat.p, dim=1)
    torch.testing.assert_close(lengths, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close((gradient * direction).sum(1), norms_of(gradient, threat.q))
    # Hölder: no other direction of unit norm gains more.
    other = torch.randn(5, 7, dtype=torch.float64)
    other = other / torch.linalg.vector_norm(other, threat.p, dim=1, keepdim=True)
    assert bool(((gradient * other).sum(1) <= norms_of(gradient, threat.q) + 1e-12).all())


@pytest.mark.parametrize("norm", NORMS)
def test_random_points_fill_the_ball(norm: str) -> None:
    threat = Threat(norm, 0.5, None)
    x = torch.zeros(4000, 2)
    delta = threat.random(x, torch.Generator().manual_seed(0)).double()
    radius = torch.linalg.vector_norm(delta, threat.p, dim=1) / 0.5
    # Uniform in two dimensions: the share within radius r is r².
    for r in (0.25, 0.5, 0.75):
        assert float((radius <= r).double().mean()) == pytest.approx(r * r, abs=0.03)
    assert float(delta.mean().abs()) < 0.02


def test_contains_has_no_tolerance() -> None:
    threat = Threat("linf", 0.25)
    x = torch.tensor([[0.5], [0.5], [0.9]])
    outside = np.nextafter(np.float32(0.75), np.float32(1.0)).item()
    assert threat.contains(torch.tensor([[0.75], [outside], [1.1]]), x).tolist() == [True, False, False]


def test_json_round_trip_and_scaling() -> None:
    for threat in (Threat("linf", 8 / 255), Threat("l2", 0.5, None), Threat("l2", 1, (-1, 2))):
        assert Threat.from_dict(threat.to_dict()) == threat
    assert Threat("l2", 0.5).scaled(3) == Threat("l2", 1.5)
    assert (Threat("linf", 1).p, Threat("linf", 1).q) == (math.inf, 1.0)
    assert Threat("l2", np.float32(0.5)).eps == 0.5


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *((("linf", eps), "eps is") for eps in (0, -1, float("nan"), float("inf"), "8", None, True)),
        *(
            (("linf", 1, box), "bounds is")
            for box in ((1, 0), (0,), "ab", (0, float("nan")), (0, 4e38), (0, 10**400))
        ),
        (("l3", 1), "unknown norm 'l3'"),
    ],
)
def test_bad_threats_are_named(arguments: tuple[Any, ...], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Threat(*arguments)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_smallest_value_of_a_linear_function_over_ball_and_box(norm: str) -> None:
    """Against a general-purpose solver, whose minimum the bound never exceeds."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(12, 6, generator=generator, dtype=torch.float64)
    slope = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    slope[0], slope[1, 1:] = 0.0, 0.0
    region = Region.around(x, Threat(norm, 0.4))
    bound = region.minimum(slope)
    assert bool((region.floor(slope) <= bound + 1e-15).all())
    for j in range(2, 12):
        limits = list(zip(region.low[j].tolist(), region.high[j].tolist(), strict=True))
        ball = {"type": "ineq", "fun": lambda d: 0.16 - d @ d, "jac": lambda d: -2 * d}
        solved = minimize(
            lambda d, j=j: slope[j].numpy() @ d,
            np.zeros(6),
            jac=lambda _, j=j: slope[j].numpy(),
            bounds=limits,
            constraints=[ball] if norm == "l2" else [],
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-12},
        )
        assert float(bound[j]) <= solved.fun + 1e-9
        assert float(bound[j]) == pytest.approx(solved.fun, abs=1e-5)
    nearer = region.near(torch.zeros_like(x), 0.01)
    assert bool(((nearer.high - nearer.low) <= 0.02 + 1e-12).all())


def length(point: Tensor, x: Tensor) -> Fraction:
    """‖point − x‖₁ in exact arithmetic."""
    pairs = zip(point.tolist(), x.tolist(), strict=True)
    return sum((abs(Fraction(a) - Fraction(b)) for a, b in pairs), Fraction(0))


@given(radii, seeds, st.booleans())
def test_l1_projections_are_legal_in_exact_arithmetic(eps: float, seed: int, boxed: bool) -> None:
    threat = Threat("l1", eps, (0.0, 1.0) if boxed else None)
    x, far = corners(seed)
    for point, center in zip(threat.project(far, x), x, strict=True):
        assert length(point, center) <= Fraction(eps)
        assert not boxed or bool(((point >= 0) & (point <= 1)).all())


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
def test_the_steepest_step_is_that_of_a_linear_program(eps: float, seed: int) -> None:
    x, far = corners(seed, (2, 6))
    gradient = far - x
    moved = Threat("l1", 1.0).step(x, gradient, eps)
    region = Region.around(x.double(), Threat("l1", eps))
    for row in range(2):
        slope, center = gradient[row].double().numpy(), x[row].double().numpy()
        solved = linprog(
            np.r_[-slope, slope],
            A_ub=[np.ones(12)],
            b_ub=[eps],
            bounds=[*((0.0, 1.0 - c) for c in center), *((0.0, c) for c in center)],
        )
        gained = float((gradient[row] * (moved[row] - x[row])).sum())
        assert gained == pytest.approx(-solved.fun, abs=1e-4)
        bound = float(region.minimum(-gradient.double())[row])
        assert bound == pytest.approx(solved.fun, abs=1e-9)
