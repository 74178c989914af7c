"""Profiles, probabilities and risks for the property tests of the theory."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from randens.risk import RiskProfile

Sets = list[list[tuple[int, ...]]]


@st.composite
def raw_configurations(draw: st.DrawFn, members: int, max_count: int = 6, max_sets: int = 4) -> Sets:
    """Configurations as written by hand: unsorted, with repeated and dominated sets, some of them empty."""
    row = st.tuples(*[st.integers(0, 1)] * members)
    configuration = st.lists(row, min_size=0, max_size=max_sets)
    found = draw(st.lists(configuration, min_size=1, max_size=max_count))
    return [list(c) for c in found]


@st.composite
def weights(draw: st.DrawFn, count: int) -> list[float]:
    """Frequencies summing to 1, from whole numbers so that ties happen, or from floats so that they do not."""
    part: st.SearchStrategy[float] = st.integers(1, 6) if draw(st.booleans()) else st.floats(0.01, 1.0)
    counts = draw(st.lists(part, min_size=count, max_size=count))
    return [c / sum(counts) for c in counts]


@st.composite
def profiles(draw: st.DrawFn, low: int = 1, high: int = 5) -> RiskProfile:
    members = draw(st.integers(low, high))
    sets = draw(raw_configurations(members))
    return RiskProfile.from_configurations(sets, draw(weights(len(sets))), members=members)


@st.composite
def simplex_points(draw: st.DrawFn, members: int) -> NDArray[np.float64]:
    parts = draw(st.lists(st.floats(0.0, 1.0), min_size=members, max_size=members))
    if sum(parts) < 1e-3:
        parts[draw(st.integers(0, members - 1))] = 1.0
    return np.array(parts) / sum(parts)


@st.composite
def risk_lists(draw: st.DrawFn, low: int = 1, high: int = 6) -> list[float]:
    unit = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    return draw(st.lists(unit, min_size=low, max_size=high))


def by_definition(
    sets: Sets, frequencies: list[float] | NDArray[np.float64], probs: NDArray[np.float64]
) -> float:
    """η(α) straight from Proposition 1, with plain loops."""
    total = 0.0
    for configuration, p in zip(sets, frequencies, strict=True):
        total += p * max(
            (sum(a for a, u in zip(probs.tolist(), row, strict=True) if u) for row in configuration),
            default=0.0,
        )
    return total


def random_profile(n: int, members: int, seed: int, sets: int = 12) -> RiskProfile:
    """n inputs of differing difficulty, attacked up to `sets` times, with members of differing robustness."""
    rng = np.random.default_rng(seed)
    points = np.repeat(np.arange(n), rng.integers(0, sets + 1, n))
    rate = np.linspace(0.15, 0.5, members)
    hardness = rng.beta(0.8, 0.8, n)[points, None] * 1.2
    return RiskProfile.from_witnesses(points, rng.random((len(points), members)) < rate * hardness, n)
