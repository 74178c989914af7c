"""The numbers beside the landscape, and the data from which the page computes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from randens.report.landscape import landscape_data, read_landscape, shares, solve
from randens.risk import RiskProfile, auxiliary_risk, bounds


def random_profile(members: int, seed: int, n: int = 40) -> RiskProfile:
    rng = np.random.default_rng(seed)
    return RiskProfile.from_witnesses(np.repeat(np.arange(n), 3), rng.random((3 * n, members)) < 0.4, n)


@given(members=st.integers(1, 9), seed=st.integers(0, 10_000))
def test_shares_add_up_to_the_risk(members: int, seed: int) -> None:
    profile = random_profile(members, seed)
    alpha = np.random.default_rng(seed + 1).dirichlet(np.ones(members))
    assert shares(profile, alpha).sum() == pytest.approx(profile.risk(alpha), abs=1e-12)
    # Away from ties there is one most damaging set, and the share is α times the subgradient.
    assert shares(profile, alpha) == pytest.approx(alpha * profile.subgradient(alpha), abs=1e-12)


def test_equally_damaging_sets_share_alike() -> None:
    profile = RiskProfile.from_configurations([[(1, 0), (0, 1)], [(1, 1)]], [0.6, 0.4])
    assert shares(profile, [0.5, 0.5]).tolist() == pytest.approx([0.35, 0.35])
    assert shares(profile, [0.75, 0.25]).tolist() == pytest.approx([0.75, 0.1])


def test_a_member_that_is_never_drawn_has_no_share() -> None:
    profile = RiskProfile.from_configurations([[(1, 1, 0)], [(0, 0, 1)]], [0.5, 0.5])
    assert shares(profile, [0.5, 0.5, 0.0]).tolist() == pytest.approx([0.25, 0.25, 0.0])


def test_reading_is_what_the_theory_says() -> None:
    profile = random_profile(4, 3)
    alpha = np.array([0.1, 0.2, 0.3, 0.4])
    reading = read_landscape(profile, alpha)
    assert reading.risk == profile.risk(alpha)
    assert reading.gain == profile.gain(alpha)
    assert reading.floor == auxiliary_risk(profile.member_risks, alpha)
    assert reading.lowest_floor == bounds(profile.member_risks).floor
    assert reading.lowest_floor <= reading.floor <= reading.risk


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
