"""Risk profiles: Proposition 1 as data."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.risk.risk_cases import by_definition, profiles, raw_configurations, simplex_points, weights

from randens.risk import RiskProfile


@given(st.data(), st.integers(1, 5))
def test_risk_equals_its_definition_whatever_is_removed_or_grouped(data: st.DataObject, members: int) -> None:
    sets = data.draw(raw_configurations(members))
    p = data.draw(weights(len(sets)))
    alpha = data.draw(simplex_points(members))
    profile = RiskProfile.from_configurations(sets, p, members=members)
    assert profile.risk(alpha) == pytest.approx(by_definition(sets, p, alpha), abs=1e-12)


@given(profiles())
def test_configurations_are_distinct_antichains_with_positive_weights(profile: RiskProfile) -> None:
    seen = set()
    for configuration, weight in zip(profile.configurations, profile.weights, strict=True):
        rows = [frozenset(np.flatnonzero(row).tolist()) for row in configuration]
        assert weight > 0
        assert len(set(rows)) == len(rows) >= 1
        assert not any(a < b for a, b in itertools.permutations(rows, 2))
        seen.add(frozenset(rows))
    assert len(seen) == len(profile.weights)
    assert profile.weights.sum() == pytest.approx(1)


def test_5_and_19_groups_remain() -> None:
    for members, expected in [(2, 5), (3, 19)]:
        vectors = list(itertools.product((0, 1), repeat=members))
        families = [
            [v for v, keep in zip(vectors, choice, strict=True) if keep]
            for choice in itertools.product((0, 1), repeat=len(vectors))
        ]
        assert len(RiskProfile.from_configurations(families, members=members).weights) == expected


@given(profiles(), st.data())
def test_the_subgradient_touches_at_its_point_and_stays_below_elsewhere(
    profile: RiskProfile, data: st.DataObject
) -> None:
    alpha = data.draw(simplex_points(profile.members))
    beta = data.draw(simplex_points(profile.members))
    gradient = profile.subgradient(alpha)
    assert gradient @ alpha == pytest.approx(profile.risk(alpha), abs=1e-12)
    assert profile.risk(beta) >= gradient @ beta - 1e-12


@given(profiles(), st.data(), st.floats(0, 1))
def test_the_risk_is_convex_along_segments(profile: RiskProfile, data: st.DataObject, t: float) -> None:
    alpha = data.draw(simplex_points(profile.members))
    beta = data.draw(simplex_points(profile.members))
    middle = profile.risk(t * alpha + (1 - t) * beta)
    assert middle <= t * profile.risk(alpha) + (1 - t) * profile.risk(beta) + 1e-12


@given(profiles(), st.data())
def test_the_risk_is_the_mean_of_the_members_minus_the_gain(
    profile: RiskProfile, data: st.DataObject
) -> None:
    alpha = data.draw(simplex_points(profile.members))
    for i, risk in enumerate(profile.member_risks):
        assert profile.risk(np.eye(profile.members)[i]) == pytest.approx(risk, abs=1e-12)
    # The gain, point by point: what can be fooled member by member, minus what can be fooled at once.
    expected = 0.0
    for configuration, p in zip(profile.configurations, profile.weights, strict=True):
        expected += p * (alpha @ configuration.any(axis=0) - (configuration @ alpha).max())
    assert profile.gain(alpha) == pytest.approx(expected, abs=1e-12)
    assert profile.risk(alpha) == pytest.approx(alpha @ profile.member_risks - profile.gain(alpha), abs=1e-12)


@given(profiles(2, 5), st.data())
def test_restricting_to_members_gives_the_risk_without_the_others(
    profile: RiskProfile, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(profile.members)))
    chosen = order[: data.draw(st.integers(1, profile.members))]
    alpha = data.draw(simplex_points(len(chosen)))
    spread = np.zeros(profile.members)
    spread[list(chosen)] = alpha
    assert profile.restrict(chosen).risk(alpha) == pytest.approx(profile.risk(spread), abs=1e-12)


@given(profiles(2, 4))
def test_pairs_split_into_the_regions_of_theorem_1(profile: RiskProfile) -> None:
    for i, j in itertools.combinations(range(profile.members), 2):
        conflict = jointly = 0.0
        for configuration, p in zip(profile.configurations, profile.weights, strict=True):
            both = bool((configuration[:, i] & configuration[:, j]).any())
            jointly += p * both
            conflict += p * (not both and configuration[:, i].any() and configuration[:, j].any())
        assert profile.jointly(i, j) == pytest.approx(jointly, abs=1e-12)
        assert profile.conflict(i, j) == pytest.approx(conflict, abs=1e-12)


@given(st.data(), st.integers(1, 4))
def test_witnesses_and_configurations_tell_the_same(data: st.DataObject, members: int) -> None:
    sets = data.draw(raw_configurations(members))
    points = [j for j, c in enumerate(sets) for _ in c]
    fooled = np.array([row for c in sets for row in c], dtype=bool).reshape(-1, members)
    shuffled = data.draw(st.permutations(range(len(points))))
    found = RiskProfile.from_witnesses(
        np.array(points, dtype=int)[list(shuffled)], fooled[list(shuffled)], len(sets)
    )
    assert found == RiskProfile.from_configurations(sets, members=members)
    assert found.size == len(sets)


def test_more_than_eight_members_and_more_than_sixteen() -> None:
    rng = np.random.default_rng(3)
    for members in (9, 17, 40, 64):
        fooled = rng.random((50, members)) < 0.4
        points = rng.integers(0, 12, 50)
        profile = RiskProfile.from_witnesses(points, fooled, 12)
        alpha = rng.dirichlet(np.ones(members))
        expected = sum((fooled[points == j] @ alpha).max(initial=0.0) for j in range(12)) / 12
        assert profile.risk(alpha) == pytest.approx(expected)


@given(profiles(2, 3), profiles(2, 3), st.data())
def test_merging_averages_the_risks(first: RiskProfile, second: RiskProfile, data: st.DataObject) -> None:
    members = min(first.members, second.members)
    first, second = first.restrict(range(members)), second.restrict(range(members))
    share = data.draw(st.floats(0.01, 0.99))
    alpha = data.draw(simplex_points(members))
    merged = first.merge(second, share=share)
    expected = share * first.risk(alpha) + (1 - share) * second.risk(alpha)
    assert merged.risk(alpha) == pytest.approx(expected, abs=1e-12)


@given(profiles())
def test_json_round_trip_is_exact(profile: RiskProfile) -> None:
    assert RiskProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


@given(profiles(2, 5), st.data(), st.integers(1, 6))
def test_attempts_equal_brute_force(profile: RiskProfile, data: st.DataObject, attempts: int) -> None:
    alpha = data.draw(simplex_points(profile.members))
    query = client = 0.0
    for configuration, p in zip(profile.configurations, profile.weights, strict=True):
        query += p * (1 - (1 - float((configuration @ alpha).max())) ** attempts)
        client += p * max(
            float(np.any(chosen, axis=0) @ alpha)
            for chosen in itertools.combinations_with_replacement(configuration, attempts)
        )
    assert profile.risk(alpha, attempts=attempts) == pytest.approx(query, abs=1e-12)
    assert profile.risk(alpha, attempts=attempts, draw="client") == pytest.approx(client, abs=1e-12)
    assert profile.risk(alpha, attempts, "client") <= profile.risk(alpha, attempts + 1, "client") + 1e-12


@given(profiles(1, 5), st.data())
def test_one_attempt_is_the_risk_and_endless_ones_the_union(
    profile: RiskProfile, data: st.DataObject
) -> None:
    alpha = data.draw(simplex_points(profile.members))
    for draw in ("query", "client"):
        assert profile.risk(alpha, 1, draw) == pytest.approx(profile.risk(alpha), abs=1e-12)
    union = sum(
        p * float(configuration.any(axis=0) @ alpha)
        for configuration, p in zip(profile.configurations, profile.weights, strict=True)
    )
    assert profile.risk(alpha, np.inf, "client") == pytest.approx(union, abs=1e-12)
    assert union == pytest.approx(alpha @ profile.member_risks, abs=1e-12)
    above = profile.weights @ (profile.configuration_risks(alpha) > 0)
    assert profile.risk(alpha, np.inf) == pytest.approx(above, abs=1e-12)


def test_the_largest_union_is_not_the_greedy_one() -> None:
    # The largest set first leaves 0.9; the other two cover everything.
    profile = RiskProfile.from_configurations([[(1, 1, 1, 1, 0, 0), (1, 1, 0, 0, 1, 0), (0, 0, 1, 1, 0, 1)]])
    alpha = [0.2, 0.2, 0.2, 0.2, 0.1, 0.1]
    assert profile.risk(alpha, 2, "client") == pytest.approx(1.0)


def test_many_sets_of_many_members_are_covered_quickly() -> None:
    singles = RiskProfile.from_configurations([np.eye(64)])
    assert singles.risk(np.full(64, 1 / 64), 10, "client") == pytest.approx(10 / 64)
    rng = np.random.default_rng(0)
    dense = RiskProfile.from_configurations([rng.random((30, 16)) < 0.25 for _ in range(20)])
    risks = [dense.risk(rng.dirichlet(np.ones(16)), q, "client") for q in (2, 3, 5, 10)]
    assert 0 < min(risks) <= max(risks) <= 1
