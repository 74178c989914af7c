"""Sampling probabilities: exact with proof, Algorithm 1 with Theorem 4, ties, and several attempts."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize
from tests.risk.risk_cases import profiles, random_profile, simplex_points

from randens.core.errors import ModelError
from randens.risk import (
    RiskProfile,
    best_step,
    bounds,
    candidate_sampling,
    exact_sampling,
    optimal_sampling,
    project_simplex,
    subgradient_sampling,
    theorem4_bound,
)


@settings(deadline=None)
@given(profiles(1, 3))
def test_exact_equals_the_best_candidate(profile: RiskProfile) -> None:
    best = exact_sampling(profile)
    assert best.risk == pytest.approx(candidate_sampling(profile).risk, abs=1e-10)
    assert best.risk == pytest.approx(profile.risk(best.probs), abs=1e-12)
    assert best.gap <= 1e-9
    assert best.probs.sum() == pytest.approx(1, abs=1e-12)


@settings(deadline=None)
@given(profiles(2, 3), st.data())
def test_ties_go_to_lower_clean_risk(profile: RiskProfile, data: st.DataObject) -> None:
    clean = data.draw(
        st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=profile.members, max_size=profile.members)
    )
    best, other = exact_sampling(profile, clean_risks=clean), candidate_sampling(profile, clean_risks=clean)
    assert np.array(clean) @ best.probs == pytest.approx(np.array(clean) @ other.probs, abs=1e-9)


def test_duplicate_members_share_one_place() -> None:
    once = random_profile(200, 3, seed=1)
    twice = once.restrict([0, 0, 1, 1, 2, 2])
    best = exact_sampling(twice)
    assert best.risk == pytest.approx(exact_sampling(once).risk, abs=1e-12)
    preferred = exact_sampling(twice, clean_risks=[0.2, 0.1, 0.2, 0.1, 0.2, 0.1])
    assert all(i % 2 for i in preferred.support)


def test_one_member_and_inputs_at_which_no_member_is_fooled() -> None:
    alone = exact_sampling(RiskProfile.from_configurations([[(1,)], [(0,)]], [0.3, 0.7]))
    assert (alone.probs.tolist(), alone.risk, alone.gap) == ([1.0], 0.3, 0.0)
    safe = RiskProfile.from_configurations([[(0, 0, 0)]], [1.0])
    best = exact_sampling(safe, clean_risks=[0.3, 0.1, 0.2])
    assert (best.probs.tolist(), best.risk) == ([0.0, 1.0, 0.0], 0.0)
    assert best.certificate is not None
    assert best.certificate.verify(safe)
    assert len(exact_sampling(safe).support) == 1
    for method in ("subgradient", "candidates"):
        assert optimal_sampling(safe, method).risk == 0


@settings(deadline=None)
@given(profiles(), st.data())
def test_certificates_verify_and_prove_the_lower_bound(profile: RiskProfile, data: st.DataObject) -> None:
    for best in (exact_sampling(profile), subgradient_sampling(profile, iterations=7)):
        certificate = best.certificate
        assert certificate is not None
        assert certificate.verify(profile)
        assert best.lower_bound <= certificate.bound
        assert best.lower_bound == pytest.approx(certificate.bound, abs=1e-12)
        alpha = data.draw(simplex_points(profile.members))
        assert best.lower_bound <= profile.risk(alpha) + 1e-12


def test_an_altered_certificate_does_not_verify() -> None:
    profile = random_profile(300, 4, seed=2)
    proof = exact_sampling(profile).certificate
    assert proof is not None
    assert proof.verify(profile)
    heavy = int(np.argmax(proof.mass))

    def moved(values: NDArray[Any], value: Any) -> NDArray[Any]:
        changed = values.copy()
        changed[heavy] = value
        return changed

    altered: list[dict[str, Any]] = [
        {"bound": proof.bound + 1e-6},
        {"bound": np.inf},
        {"mass": moved(proof.mass, proof.mass[heavy] + 1e-4)},
        {"mass": moved(proof.mass, -proof.mass[heavy])},
        {"mass": moved(proof.mass, np.nan)},
        {"mass": proof.mass[1:], "masks": proof.masks[1:], "configuration": proof.configuration[1:]},
        {"configuration": moved(proof.configuration, len(profile.weights))},
        {"masks": moved(proof.masks, ~proof.masks[heavy])},
    ]
    for change in altered:
        assert not dataclasses.replace(proof, **change).verify(profile)
    assert not proof.verify(random_profile(300, 4, seed=3))
    assert not proof.verify(random_profile(300, 5, seed=2))


@settings(deadline=None)
@given(profiles(), st.integers(1, 30), st.floats(0.01, 2.0), st.data())
def test_theorem_4_is_never_violated(
    profile: RiskProfile, rounds: int, step: float, data: st.DataObject
) -> None:
    start = data.draw(simplex_points(profile.members))
    best = exact_sampling(profile)
    found = subgradient_sampling(profile, iterations=rounds, step=step, start=start)
    excess = found.risk - best.risk
    tight = theorem4_bound(start, step, rounds, optimum=best.probs)
    assert found.theorem4_bound is not None
    assert -1e-10 <= excess <= tight + 1e-10
    assert tight <= found.theorem4_bound + 1e-12


def test_theorem_4_by_hand_and_how_loose_it_is() -> None:
    # M = 2, a = 1, T = 2, from the uniform start to a corner: (1/2 + 2·(1 + 1/4)) / (2·(1 + 1/2)).
    assert theorem4_bound([0.5, 0.5], 1.0, 2) == pytest.approx((0.5 + 2 * 1.25) / 3)
    assert theorem4_bound([0.5, 0.5], 1.0, 2, optimum=[0.5, 0.5]) == pytest.approx(2 * 1.25 / 3)
    uniform = np.full(5, 0.2)
    assert theorem4_bound(uniform, best_step(uniform, 10), 10) == pytest.approx(0.85, abs=0.005)
    assert theorem4_bound(uniform, best_step(uniform, 1000), 1000) == pytest.approx(0.34, abs=0.005)
    best = best_step(uniform, 10)
    assert all(theorem4_bound(uniform, f * best, 10) > theorem4_bound(uniform, best, 10) for f in (0.9, 1.1))


def test_the_subgradient_method_takes_the_steps_of_algorithm_1() -> None:
    profile = random_profile(150, 3, seed=5)
    a, alpha = 0.7, np.array([0.2, 0.3, 0.5])
    seen = []
    for t in range(1, 6):
        g = np.zeros(3)
        for configuration, p in zip(profile.configurations, profile.weights, strict=True):
            g += p * configuration[int(np.argmax(configuration @ alpha))]
        seen.append((g @ alpha, alpha))
        alpha = project_simplex(alpha - a / t * g)
    found = subgradient_sampling(profile, iterations=5, step=a, start=[0.2, 0.3, 0.5])
    expected = min(seen, key=lambda pair: pair[0])
    assert found.risk == pytest.approx(expected[0])
    assert found.probs == pytest.approx(expected[1])
    assert found.iterations == 5


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3) | st.floats(-0.2, 0.2), min_size=1, max_size=8), st.data())
def test_the_projection_is_the_nearest_point(values: list[float], data: st.DataObject) -> None:
    v = np.array(values)
    p = project_simplex(values)
    assert p.min() >= 0
    assert p.sum() == pytest.approx(1)
    other = data.draw(simplex_points(len(values)))
    # Variational inequality: the angle to every point of the simplex is obtuse.
    assert (v - p) @ (other - p) <= 1e-9 * max(1.0, np.abs(v).max())
    assert project_simplex([1e15, 1e15 + 1, 0]).sum() == pytest.approx(1)


@pytest.mark.parametrize(("members", "evaluations"), [(5, 40), (16, 400)])
def test_many_members_reach_the_optimum_with_proof_in_few_evaluations(members: int, evaluations: int) -> None:
    """Each evaluation is one pass over the profile and one small linear program. Three times what it takes."""
    profile = random_profile(10_000, members, seed=0)
    best = exact_sampling(profile)
    assert best.gap <= 1e-9
    assert 1 < best.iterations <= evaluations
    assert best.certificate is not None
    assert best.certificate.verify(profile)
    assert bounds(profile.member_risks).floor <= best.risk <= profile.member_risks.min()
    with pytest.raises(ModelError, match="gap"):
        exact_sampling(profile, max_iterations=2)


@pytest.mark.parametrize("calls", range(2))
def test_a_failing_solver_is_reported(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Whichever program fails: the one for the risk, or the one for the clean risk."""
    solve, seen = optimize.linprog, itertools.count()

    def fail(*args: Any, **options: Any) -> Any:
        found = solve(*args, **options)
        return (
            found
            if next(seen) < calls
            else optimize.OptimizeResult(found, status=4, message="Numerical difficulties")
        )

    monkeypatch.setattr(optimize, "linprog", fail)
    tied = RiskProfile.from_configurations([[(1, 1, 1)]], [1.0])
    with pytest.raises(ModelError, match="failed: Numerical difficulties"):
        exact_sampling(tied)


@settings(deadline=None, max_examples=40)
@given(profiles(2, 3), st.sampled_from([2, 3, 10, np.inf]))
def test_several_attempts_against_a_grid(profile: RiskProfile, attempts: float) -> None:
    found = optimal_sampling(profile, attempts=attempts)
    assert found.risk == pytest.approx(profile.risk(found.probs, attempts), abs=1e-12)
    assert found.risk <= profile.risk(exact_sampling(profile).probs, attempts) + 1e-12
    assert found.risk <= profile.member_risks.min() + 1e-12
    grid = [np.array(c) / 12 for c in itertools.product(range(13), repeat=profile.members) if sum(c) == 12]
    lowest = min(profile.risk(alpha, attempts) for alpha in grid)
    assert found.lower_bound <= lowest + 1e-12
    if attempts == np.inf:
        assert found.risk == pytest.approx(lowest, abs=1e-12)


def test_retries_call_for_a_single_member() -> None:
    """Members that conflict at three inputs of ten: drawing pays at one attempt, and costs at two."""
    sets = [[(1, 0), (0, 1)]] * 3 + [[(1, 0)]] + [[(0, 1)]] * 2 + [[]] * 4
    profile = RiskProfile.from_configurations(sets)
    assert optimal_sampling(profile).probs == pytest.approx([0.5, 0.5])
    twice = optimal_sampling(profile, attempts=2)
    assert twice.probs == pytest.approx([1.0, 0.0])
    assert twice.risk == pytest.approx(0.4)
    assert twice.attempts == 2
    assert twice.certificate is not None
    assert twice.certificate.verify(profile)
    assert optimal_sampling(profile, attempts=np.inf).to_json()["attempts"] is None
