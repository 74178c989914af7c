"""The ceiling of any classifier: conflicts by brute force, packings by enumeration, and the two-class theorem."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from randens.risk.ceiling import ceiling_from_conflicts, close_pairs


def planted(seed: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((9, 2)).astype(np.float32), rng.integers(0, classes, 9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(["linf", "l2", "l1"]), st.floats(0.05, 0.6))
def test_pairs_equal_brute_force(seed: int, norm: str, distance: float) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.random((30, 40)).astype(np.float32), rng.integers(0, 3, 30)
    x[1::2] = x[::2] + rng.uniform(-0.2, 0.2, x[::2].shape).astype(np.float32) * rng.random((15, 1))
    order = {"linf": np.inf, "l2": 2, "l1": 1}[norm]
    far = {"linf": 1.0, "l2": 3.0, "l1": 15.0}[norm] * distance
    expected = {
        (i, j)
        for i, j in itertools.combinations(range(30), 2)
        if y[i] != y[j] and np.linalg.norm(x[i].astype(float) - x[j], order) <= far
    }
    assert {tuple(pair) for pair in close_pairs(x, y, norm, far).tolist()} == expected


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.floats(0.05, 0.4))
def test_packings_equal_brute_force_over_points(seed: int, eps: float) -> None:
    """The random classifier by its definition: Σ q ≤ 1 for inputs of different classes whose boxes share a point."""
    x, y = planted(seed, 4)
    pairs = close_pairs(x, y, "linf", 2 * eps)
    found = ceiling_from_conflicts(9, pairs)
    edges = {tuple(pair) for pair in pairs.tolist()}
    independent = [
        len(chosen)
        for size in range(10)
        for chosen in itertools.combinations(range(9), size)
        if not any(pair in edges for pair in itertools.combinations(chosen, 2))
    ]
    assert found.exact
    assert found.deterministic == pytest.approx(max(independent) / 9)
    rows = []
    for size in range(2, 5):
        for chosen in itertools.combinations(range(9), size):
            part = x[list(chosen)].astype(float)
            meets = (part.max(axis=0) - eps <= part.min(axis=0) + eps + 1e-6).all()
            if meets and len(set(y[list(chosen)].tolist())) == size:
                rows.append(np.isin(np.arange(9), chosen).astype(float))
    best = linprog(
        -np.ones(9), np.array(rows) if rows else None, np.ones(len(rows)) if rows else None, bounds=(0, 1)
    )
    assert found.randomized == pytest.approx(-best.fun / 9)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.05, 0.5))
def test_two_classes_never_call_for_randomization(seed: int, eps: float) -> None:
    x, y = planted(seed, 2)
    found = ceiling_from_conflicts(9, close_pairs(x, y, "linf", 2 * eps))
    assert found.gain == pytest.approx(0.0, abs=1e-9)


def test_an_odd_cycle_of_conflicts_is_where_randomization_helps() -> None:
    cycle = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [0, 4]])
    found = ceiling_from_conflicts(10, cycle)
    assert (found.inputs, found.conflicts, found.exact) == (5, 5, True)
    assert found.deterministic == pytest.approx(0.7)
    assert found.randomized == pytest.approx(0.75)
    assert "75.00%" in found.message
    # Three that meet at one point are no such cycle; if they meet in pairs only, they may be.
    triangle = [*cycle[[0, 1]].tolist(), [0, 2]]
    assert ceiling_from_conflicts(3, np.array(triangle)).gain == pytest.approx(0.0)
    loose = ceiling_from_conflicts(3, np.array(triangle), common_points=False)
    assert (loose.exact, loose.randomized) == (False, 0.5)
    none = ceiling_from_conflicts(3, np.zeros((0, 2), dtype=np.int64))
    assert (none.deterministic, none.randomized, none.exact) == (1.0, 1.0, True)
    assert "None of the 3 inputs" in none.message
