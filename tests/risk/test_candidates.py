"""Theorem 2 and its continuation to four and five classifiers."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.risk.risk_cases import profiles, simplex_points

from randens.core.errors import InputError
from randens.risk import RiskProfile, candidate_sampling, candidates

HALF, THIRD, QUARTER = Fraction(1, 2), Fraction(1, 3), Fraction(1, 4)

THEOREM_2: list[tuple[Fraction | int, ...]] = [
    (1, 0, 0),
    (0, 1, 0),
    (0, 0, 1),
    (HALF, HALF, 0),
    (0, HALF, HALF),
    (HALF, 0, HALF),
    (HALF, QUARTER, QUARTER),
    (QUARTER, HALF, QUARTER),
    (QUARTER, QUARTER, HALF),
    (THIRD, THIRD, THIRD),
]

# The paper's configurations for three classifiers, and its ten vectors p as positions among them.
A, B, C = (1, 0, 0), (0, 1, 0), (0, 0, 1)
EQUATION = [
    [A, B, C],
    [(1, 1, 0), C],
    [(0, 1, 1), A],
    [(1, 0, 1), B],
    [A, B],
    [B, C],
    [A, C],
    [A],
    [B],
    [C],
    [(1, 1, 1)],
    [(0, 0, 0)],
]
PAPER = [(9, 10), (8, 10), (8, 9), (5, 10), (6, 8), (7, 9), (3, 6), (4, 7), (2, 5), (1,)]


def test_three_classifiers_have_the_ten_candidates_of_theorem_2() -> None:
    assert set(candidates(3)) == {tuple(Fraction(x) for x in row) for row in THEOREM_2}


def test_two_classifiers_have_the_three_of_theorem_1() -> None:
    assert set(candidates(2)) == {(1, 0), (0, 1), (HALF, HALF)}
    assert candidates(1) == ((Fraction(1),),)


@pytest.mark.parametrize(("index", "used"), list(enumerate(PAPER)))
def test_each_of_the_papers_vectors_has_its_own_unique_minimiser(index: int, used: tuple[int, ...]) -> None:
    profile = RiskProfile.from_configurations([EQUATION[k - 1] for k in used], [1 / len(used)] * len(used))
    risks = {c: profile.exact_risk(c) for c in candidates(3)}
    expected = tuple(Fraction(x) for x in THEOREM_2[index])
    assert [c for c, risk in risks.items() if risk == min(risks.values())] == [expected]
    assert candidate_sampling(profile).exact_probs == expected


def test_four_classifiers_have_101_in_twelve_classes() -> None:
    found = candidates(4)
    assert len(set(found)) == len(found) == 101
    classes = Counter(tuple(sorted(c, reverse=True)) for c in found)
    as_listed = "1000/1 1100/2 1110/3 1111/4 2110/4 2111/5 3111/6 2211/6 3221/8 3211/7 4211/8 4321/10"
    expected = set()
    for word in as_listed.split():
        tops, bottom = word.split("/")
        expected.add(tuple(Fraction(int(t), int(bottom)) for t in tops))
    assert set(classes) == expected


def test_five_classifiers_have_8806() -> None:
    found = candidates(5)
    assert len(set(found)) == len(found) == 8806
    assert all(sum(c) == 1 and min(c) >= 0 for c in found)
    # A candidate with member 4 left out is a candidate of the other four.
    assert {c[:4] for c in found if c[4] == 0} == set(candidates(4))


@pytest.mark.parametrize("members", [2, 3, 4])
def test_candidates_are_vertices_found_by_solving_every_system(members: int) -> None:
    """The slow way: every choice of M − 1 hyperplanes (u − v)·α = 0, in rational numbers."""
    normals = [d for d in itertools.product((-1, 0, 1), repeat=members) if d > tuple(-x for x in d)]
    found = set()
    for rows in itertools.combinations(normals, members - 1):
        matrix = np.array([*rows, (1,) * members], dtype=np.float64)
        determinant = np.linalg.det(matrix)
        if abs(determinant) < 0.5:
            continue
        solution = np.linalg.solve(matrix, np.eye(members)[-1])
        if solution.min() > -1e-9:
            found.add(tuple(Fraction(float(x)).limit_denominator(100) for x in solution))
    assert found == set(candidates(members))


@settings(deadline=None)
@given(profiles(1, 4), st.data())
def test_no_point_of_the_simplex_beats_the_candidates(profile: RiskProfile, data: st.DataObject) -> None:
    alpha = data.draw(simplex_points(profile.members))
    best = candidate_sampling(profile)
    assert best.risk <= profile.risk(alpha) + 1e-11
    assert best.exact_probs in candidates(profile.members)
    assert best.gap == 0


def test_ties_go_to_lower_clean_risk_then_to_fewer_members() -> None:
    # Members 0 and 1 fail exactly alike: all mixtures of them are equally good.
    profile = RiskProfile.from_configurations([[(1, 1, 0)], [(0, 0, 1)]], [0.3, 0.7])
    assert candidate_sampling(profile).probs.tolist() == [1, 0, 0]
    assert candidate_sampling(profile, clean_risks=[0.2, 0.1, 0.0]).probs.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("M", "message"), [(0, "got 0"), (6, "M is 6"), (2.0, "got 2.0"), (True, "got True")]
)
def test_other_sizes_are_refused(M: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        candidates(M)


def test_larger_profiles_are_sent_to_the_exact_method() -> None:
    profile = RiskProfile.from_configurations([np.eye(6)], [1.0])
    with pytest.raises(InputError, match="method='exact' has no such limit"):
        candidate_sampling(profile)
    with pytest.raises(InputError, match="clean_risks has 1 values; expected one for each of the 2"):
        candidate_sampling(profile.restrict([0, 1]), clean_risks=[0.1])
