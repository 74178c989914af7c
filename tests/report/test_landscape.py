"""The data from which the page computes the landscape."""

from __future__ import annotations

import numpy as np
import pytest

from randens.report.figures import solve
from randens.report.page import landscape_data
from randens.risk import RiskProfile


def random_profile(members: int, seed: int, n: int = 40) -> RiskProfile:
    rng = np.random.default_rng(seed)
    return RiskProfile.from_witnesses(np.repeat(np.arange(n), 3), rng.random((3 * n, members)) < 0.4, n)


@pytest.mark.parametrize("members", [1, 2, 3, 8, 9, 33, 64])
def test_the_page_gets_the_whole_profile(members: int) -> None:
    profile = random_profile(members, 5)
    data = landscape_data(profile)
    configurations = [[int(word, 16) for word in part.split(",")] for part in data["sets"].split(" ")]
    rows = [
        np.array([[mask >> i & 1 for i in range(members)] for mask in masks], dtype=bool)
        for masks in configurations
    ]
    assert RiskProfile.from_configurations(rows, data["weights"], members=members, size=40) == profile


def test_the_certificate_travels_with_the_optimum() -> None:
    profile = random_profile(4, 9)
    best = solve(profile)
    assert best is not None
    data = landscape_data(profile, optimum=best)["optimum"]
    table = np.concatenate(profile.configurations)
    fooled = np.array(data["mass"]) @ table[data["rows"]]
    assert fooled.min() == pytest.approx(best.lower_bound, abs=1e-12)
    owner = np.repeat(np.arange(len(profile.weights)), np.diff(profile.starts))[data["rows"]]
    sums = np.bincount(owner, weights=data["mass"], minlength=len(profile.weights))
    assert sums == pytest.approx(profile.weights, abs=1e-12)


def test_the_optimum_is_found_for_two_to_sixteen_members() -> None:
    assert solve(random_profile(1, 2)) is None
    assert solve(random_profile(17, 2)) is None
    best = solve(random_profile(16, 2))
    assert best is not None
    assert best.gap <= 1e-11


@pytest.mark.parametrize(("members", "count"), [(1, 0), (2, 3), (3, 10), (4, 0), (5, 0)])
def test_candidates_are_marked_while_there_are_few(members: int, count: int) -> None:
    assert len(landscape_data(random_profile(members, 1))["candidates"]) == count
