"""The linearized game's solver against linear programming, brute force and its own dual bound."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat
from randens.attacks import Search
from randens.attacks.saddle import Game, linearized_game, onto_simplex, uniform
from randens.region import Region, norms

D = 8


def made(seed: int, radius: float | None = None, rows: int = 6, targets: int = 3) -> Game:
    """Values c, unit-norm rows a in conflict, at least one target, and a box that cuts the ball in places."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rows, targets, D, generator=generator, dtype=torch.float64)
    a = a - 0.8 * a.mean(dim=1, keepdim=True)
    a = a / a.norm(dim=2, keepdim=True)
    c = torch.rand(rows, targets, generator=generator, dtype=torch.float64)
    target = torch.rand(rows, targets, generator=generator) < 0.7
    target[:, 0] = True
    low = torch.full((rows, D), -0.5, dtype=torch.float64)
    low[:, :2] = -0.1
    region = Region(low, torch.full((rows, D), 0.5, dtype=torch.float64), radius)
    return Game(c * target, a * target[:, :, None], target, region)


def solved(game: Game, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """δ, λ and the floor from the center."""
    return game.solve(torch.zeros_like(game.region.low), uniform(game.target).double(), steps)


def value_by_lp(game: Game, row: int) -> float:
    """min t with c_i + a_i·δ ≤ t over the box."""
    chosen = game.target[row].numpy()
    found = linprog(
        np.r_[np.zeros(D), 1.0],
        A_ub=np.c_[game.a[row].numpy()[chosen], -np.ones(chosen.sum())],
        b_ub=-game.c[row].numpy()[chosen],
        bounds=[
            *zip(game.region.low[row].tolist(), game.region.high[row].tolist(), strict=True),
            (None, None),
        ],
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", range(4))
def test_linf_value_is_the_linear_programs(seed: int) -> None:
    game = made(seed)
    delta, weights, floor = solved(game, 2000)
    expected = torch.tensor([value_by_lp(game, row) for row in range(len(game.c))], dtype=torch.float64)
    torch.testing.assert_close(game.worst(delta), expected, rtol=0, atol=2e-3)
    torch.testing.assert_close(floor, expected, rtol=0, atol=2e-3)
    assert bool((floor <= expected + 1e-12).all())
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(weights), dtype=torch.float64))
    assert not bool(weights[~game.target].any())


@pytest.mark.parametrize("p", [2.0, 1.0])
def test_value_and_floor_meet_in_a_ball(p: float) -> None:
    """What δ reaches and what λ proves that none gets below: equal only at the solution."""
    game = made(2)
    wide = dataclasses.replace(game, region=Region(game.region.low - 9, game.region.high + 9, 0.6, p))
    delta, _, floor = solved(wide, 3000)
    torch.testing.assert_close(wide.worst(delta), floor, rtol=0, atol=2e-3)
    assert float(torch.linalg.vector_norm(delta, p, dim=1).max()) == pytest.approx(0.6)


@settings(max_examples=25)
@given(
    st.integers(0, 10_000),
    st.sampled_from([None, 0.3, 0.8]),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([1, 7, 40]),
)
def test_floor_and_value_bracket_every_perturbation(
    seed: int, radius: float | None, p: float, steps: int
) -> None:
    """λ's floor is below what any legal δ reaches, whether or not the steps have converged."""
    game = made(seed, radius, rows=4)
    game = dataclasses.replace(game, region=dataclasses.replace(game.region, p=p))
    delta, _, floor = solved(game, steps)
    assert bool((floor <= game.worst(delta) + 1e-12).all())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        other = game.region.project(torch.randn(4, D, generator=generator, dtype=torch.float64))
        assert bool((floor <= game.worst(other) + 1e-12).all())
    # δ is legal.
    assert bool(((delta >= game.region.low) & (delta <= game.region.high)).all())
    if radius is not None:
        assert bool((torch.linalg.vector_norm(delta, p, dim=1) <= radius + 1e-12).all())


def test_two_hundred_steps_leave_a_thousandth() -> None:
    """Without the extrapolation of the dual step it would be four times as much."""
    gaps = []
    for game in map(made, range(4)):
        delta, _, floor = solved(game, 200)
        gaps.append(game.worst(delta) - floor)
    assert float(torch.cat(gaps).mean()) < 1.5e-3


def test_a_game_without_slopes_moves_nothing() -> None:
    """As of members without gradients, whose distance is then given as huge."""
    game = made(1)
    region = Region(game.region.low.float(), game.region.high.float())
    for scale in (1.0, 1e21):
        flat = Game(scale * game.c.float(), torch.zeros_like(game.a.float()), game.target, region)
        start = torch.zeros_like(region.low) + 0.05
        delta, weights, floor = flat.solve(start, uniform(game.target), 10)
        torch.testing.assert_close(delta, start)
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(len(weights)))
        assert bool((floor <= flat.worst(delta)).all())
        assert bool((floor > 0).all())


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.integers(1, 63))
def test_the_nearest_point_of_the_simplex(values: list[float], mask: int) -> None:
    """λ ≥ 0 with sum 1 is nearest to v iff v − λ is the same wherever λ > 0, and no larger elsewhere."""
    target = torch.tensor([[bool(mask >> i & 1) for i in range(len(values))]])
    target[0, 0] |= not target.any()
    v = torch.tensor([values], dtype=torch.float64)
    found = onto_simplex(v, target)[0]
    assert not bool(found[~target[0]].any())
    assert bool((found >= 0).all())
    assert float(found.sum()) == pytest.approx(1)
    gap = (v[0] - found)[target[0]]
    assert bool((gap[found[target[0]] > 0] >= gap.max() - 1e-9).all())


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_the_game_of_linear_members_is_their_margins_in_units_of_distance(norm: str) -> None:
    """c + Aδ = margin(x + δ)/‖w‖_q + κε at every legal δ near the point, on each row its own."""
    torch.manual_seed(0)
    rec = RandomizedEnsemble([nn.Linear(5, 2).double() for _ in range(3)])
    x, y, threat = torch.rand(6, 5, dtype=torch.float64), torch.zeros(6, dtype=torch.int64), Threat(norm, 0.3)
    s, rows = Search(rec, x, y, threat), torch.tensor([4, 1])
    point, target = s.start(1)[rows], torch.tensor([[True, False, True], [False, True, True]])
    game = linearized_game(s, rows, point, target, 1, 0.05, 0.5)
    other = threat.random(x, torch.Generator().manual_seed(1))[rows]
    z = torch.stack([member(other) for member in rec.members])
    size = torch.stack([norms(m.weight[0] - m.weight[1], threat.q) for m in rec.members])  # type: ignore[index]
    expected = (z[..., 0] - z[..., 1]).T / size + 0.05 * threat.eps
    torch.testing.assert_close(game.at((other - x[rows]).flatten(1))[target], expected[target])
    assert not bool(game.c[~target].any())
    # Within half of ε of the point, and within the set.
    away = torch.maximum(game.region.high - (point - x[rows]), (point - x[rows]) - game.region.low)
    assert float(away.max()) <= 0.5 * threat.eps + 1e-12
    assert bool((x[rows] + game.region.low >= -1e-12).all())
    assert bool((x[rows] + game.region.high <= 1 + 1e-12).all())
