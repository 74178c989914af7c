"""The linearised game's solver against linear programming, brute force and its own dual bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize
from torch import Tensor

from randens import risk
from randens.attacks.game import project_simplex, solve_game
from randens.attacks.slopes import Slopes
from randens.threat import Region

D = 8


def game(seed: int, rows: int = 6, targets: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """c [k, T], unit-norm rows a [k, T, d], a support with at least one target, and a start."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rows, targets, D, generator=generator, dtype=torch.float64)
    a = a - 0.8 * a.mean(dim=1, keepdim=True)
    a = a / a.norm(dim=2, keepdim=True)
    c = torch.rand(rows, targets, generator=generator, dtype=torch.float64)
    support = torch.rand(rows, targets, generator=generator) < 0.7
    support[:, 0] = True
    return c, a, support, torch.zeros(rows, D, dtype=torch.float64)


def box(rows: int, radius: float | None = None, size: float = 0.5) -> Region:
    low = torch.full((rows, D), -size, dtype=torch.float64)
    low[:, :2] = -0.1  # the input's box cuts the ball here
    return Region(low, torch.full((rows, D), size, dtype=torch.float64), radius)


def value_by_lp(c: Tensor, a: Tensor, support: Tensor, domain: Region, row: int) -> float:
    """min t with c_i + a_i·δ ≤ t over the box."""
    chosen = support[row].numpy()
    solved = linprog(
        np.r_[np.zeros(D), 1.0],
        A_ub=np.c_[a[row].numpy()[chosen], -np.ones(chosen.sum())],
        b_ub=-c[row].numpy()[chosen],
        bounds=[*zip(domain.low[row].tolist(), domain.high[row].tolist(), strict=True), (None, None)],
    )
    return float(solved.fun)


def value_in_ball(c: Tensor, a: Tensor, support: Tensor, radius: float, row: int) -> float:
    """max over λ of λ·c − ε‖λA‖₂ (the dual; strong duality holds), by brute force over starts."""
    chosen = support[row].numpy()
    rows, offsets = a[row].numpy()[chosen], c[row].numpy()[chosen]

    def negative(v: NDArray[np.float64]) -> float:
        weights = np.abs(v) / np.abs(v).sum()
        return float(-(weights @ offsets - radius * np.linalg.norm(weights @ rows)))

    starts = np.random.default_rng(0).dirichlet(np.ones(len(offsets)), 5)
    found = [minimize(negative, s, method="Nelder-Mead", options={"xatol": 1e-9}).fun for s in starts]
    return -float(min(found))


@pytest.mark.parametrize("radius", [None, 0.6])
def test_iterations_begin_at_the_given_weights(radius: float | None) -> None:
    """From the solution's own λ and δ, a few iterations are as good as many from the centre."""
    c, a, _, delta = game(3, rows=20)
    support, domain, slopes = torch.ones_like(c, dtype=torch.bool), box(len(c), radius), Slopes.of(a)
    best = solve_game(c, slopes, support, domain, delta, 4000)
    again = solve_game(c, slopes, support, domain, best.delta, 2, best.weights)
    centre = solve_game(c, slopes, support, domain, best.delta, 2)
    worse, worse_from_centre = (float((best.floor - each.floor).max()) for each in (again, centre))
    assert worse < 0.002
    assert worse_from_centre > 0.02


@pytest.mark.parametrize("seed", range(5))
def test_linf_value_is_the_linear_programmes(seed: int) -> None:
    c, a, support, delta = game(seed)
    domain = box(len(c))
    solved = solve_game(c, Slopes.of(a), support, domain, delta, iterations=2000)
    expected = [value_by_lp(c, a, support, domain, row) for row in range(len(c))]
    np.testing.assert_allclose(solved.value.numpy(), expected, atol=2e-3)
    assert bool((solved.floor <= torch.tensor(expected, dtype=torch.float64) + 1e-12).all())
    np.testing.assert_allclose(solved.floor.numpy(), expected, atol=2e-3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lift", [0.0, 3.0, -3.0])
def test_two_targets_in_a_box_are_solved_exactly(seed: int, lift: float) -> None:
    """Also where one of them decides alone, and where slopes are 0."""
    c, a, _, delta = game(seed, targets=3)
    c[:, 1] += lift
    a[0, 1] = a[1, 0] = 0
    a[2, :, :4] = 0
    support = torch.tensor([[True, True, False], [True, False, True], [False, True, True]]).repeat(2, 1)
    domain, start = box(len(c)), delta + 0.05
    solved = solve_game(c, Slopes.of(a), support, domain, start, iterations=1)
    expected = [value_by_lp(c, a, support, domain, row) for row in range(len(c))]
    np.testing.assert_allclose(solved.value.numpy(), expected, atol=1e-3)
    np.testing.assert_allclose(solved.floor.numpy(), expected, atol=1e-3)
    assert bool((solved.floor <= torch.tensor(expected, dtype=torch.float64) + 1e-12).all())
    assert torch.equal(solved.delta[2, :4], start[2, :4]), "a coordinate without slope was moved"
    torch.testing.assert_close(solved.weights.sum(dim=1), torch.ones(len(c), dtype=torch.float64))
    assert not bool(solved.weights[~support].any())


@pytest.mark.parametrize("seed", range(3))
def test_l2_value_is_the_duals(seed: int) -> None:
    c, a, support, delta = game(seed)
    solved = solve_game(c, Slopes.of(a), support, Region(delta - 9, delta + 9, 0.6), delta, iterations=2000)
    expected = [value_in_ball(c, a, support, 0.6, row) for row in range(len(c))]
    np.testing.assert_allclose(solved.value.numpy(), expected, atol=2e-3)
    assert bool((solved.floor <= torch.tensor(expected, dtype=torch.float64) + 1e-9).all())


@given(st.integers(0, 10_000), st.sampled_from([None, 0.3, 0.8]), st.sampled_from([1, 7, 40]))
def test_floor_and_value_bracket_every_perturbation(seed: int, radius: float | None, iterations: int) -> None:
    """λ's floor is below what any legal δ reaches, whether or not the iterations have converged."""
    c, a, support, delta = game(seed, rows=4)
    domain = box(len(c), radius)
    solved = solve_game(c, Slopes.of(a), support, domain, delta, iterations)
    assert bool((solved.floor <= solved.value + 1e-12).all())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        other = domain.project(torch.randn(len(c), D, generator=generator, dtype=torch.float64))
        reached = (c + torch.einsum("ktd,kd->kt", a, other)).masked_fill(~support, -torch.inf).amax(dim=1)
        assert bool((solved.floor <= reached + 1e-12).all())
    # The value is what δ really reaches, and δ is legal.
    here = (c + torch.einsum("ktd,kd->kt", a, solved.delta)).masked_fill(~support, -torch.inf).amax(dim=1)
    torch.testing.assert_close(here, solved.value)
    assert bool(((solved.delta >= domain.low) & (solved.delta <= domain.high)).all())
    if radius is not None:
        assert bool((solved.delta.norm(dim=1) <= radius + 1e-12).all())


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.sampled_from([None, 0.5]))
def test_a_row_does_not_depend_on_its_batch(seed: int, radius: float | None) -> None:
    c, a, support, delta = game(seed)
    domain = box(len(c), radius)
    together = solve_game(c, Slopes.of(a), support, domain, delta, 25)
    for row in range(len(c)):
        pick = slice(row, row + 1)
        part = Region(domain.low[pick], domain.high[pick], radius)
        alone = solve_game(c[pick], Slopes.of(a[pick]), support[pick], part, delta[pick], 25)
        torch.testing.assert_close(together.delta[pick], alone.delta, rtol=0, atol=1e-9)
        torch.testing.assert_close(together.floor[pick], alone.floor, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("radius", "p"), [(None, 2.0), (0.3, 2.0), (0.4, 1.0)])
def test_regions_take_perturbations_with_a_middle_dimension(radius: float | None, p: float) -> None:
    flat = box(6)
    flat, thick = (
        Region(low, high, radius, p)
        for low, high in ((flat.low, flat.high), (flat.low.unsqueeze(1), flat.high.unsqueeze(1)))
    )
    points = torch.randn(6, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(thick.project(points.unsqueeze(1)).squeeze(1), flat.project(points))
    torch.testing.assert_close(thick.floor(points.unsqueeze(1)).squeeze(1), flat.floor(points))


def test_solutions_can_be_used_with_autograd() -> None:
    c, a, support, delta = game(0)
    solved = solve_game(c, Slopes.of(a), support, box(len(c)), delta, 10)
    for found in (solved.delta, solved.value, solved.floor, solved.weights):
        assert not found.is_inference()


def test_one_target_is_solved_in_closed_form() -> None:
    c, a, _, delta = game(0)
    support = torch.zeros(len(c), 3, dtype=torch.bool)
    support[:, 1] = True
    domain = box(len(c))
    solved = solve_game(c, Slopes.of(a), support, domain, delta, 1)
    expected = [value_by_lp(c, a, support, domain, row) for row in range(len(c))]
    np.testing.assert_allclose(solved.value.numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(solved.floor.numpy(), expected, atol=1e-9)


def test_a_zero_row_moves_nothing() -> None:
    c, a, support, delta = game(1)
    start = delta + 0.05
    solved = solve_game(c, Slopes.of(torch.zeros_like(a)), support, box(len(c)), start, 10)
    assert torch.equal(solved.delta, start)
    torch.testing.assert_close(solved.value, c.masked_fill(~support, -torch.inf).amax(dim=1))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.integers(1, 63))
def test_simplex_projection_is_the_theorys(values: list[float], mask: int) -> None:
    support = torch.tensor([[bool(mask >> i & 1) for i in range(len(values))]])
    if not support.any():
        support[0, 0] = True
    v = torch.tensor([values], dtype=torch.float64)
    projected = project_simplex(v, support)
    assert bool((projected[~support] == 0).all())
    np.testing.assert_allclose(
        projected[support].numpy(), risk.project_simplex(v[support].numpy()), rtol=0, atol=1e-12
    )


def test_games_agree_with_the_theory_of_mixed_strategies() -> None:
    """Matching pennies: two members with opposite gradients; λ = (½, ½) proves that both cannot be fooled."""
    a = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    c = torch.full((1, 2), 0.3, dtype=torch.float64)
    one = torch.ones(1, 2, dtype=torch.float64)
    solved = solve_game(c, Slopes.of(a), torch.ones(1, 2, dtype=torch.bool), Region(-one, one), 0 * one, 200)
    assert float(solved.value) == pytest.approx(0.3)
    assert float(solved.floor) == pytest.approx(0.3)
    np.testing.assert_allclose(solved.weights.numpy(), [[0.5, 0.5]], atol=1e-6)
    profile = risk.RiskProfile.from_configurations([[[1, 0], [0, 1]]], [1.0])
    assert profile.risk([0.5, 0.5]) == 0.5
