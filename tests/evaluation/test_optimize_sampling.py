"""Probabilities chosen under attack: the optimum with an exact attack, and no claim of one with any other."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluation.planted import THREAT, exact, on_a_line, random_linear

import randens
from randens import attacks
from randens.core.errors import InputError
from randens.data import as_data
from randens.risk import optimal_sampling

CONFLICT = ((1.0, 0.6), (-1.0, 0.4))


def grid(members: int, steps: int = 20) -> list[tuple[float, ...]]:
    return [
        tuple(k / steps for k in counts)
        for counts in itertools.product(range(steps + 1), repeat=members)
        if sum(counts) == steps
    ]


@settings(max_examples=8)
@given(st.integers(2, 3), st.integers(0, 500))
def test_with_an_exact_oracle_it_is_the_optimum(count: int, seed: int) -> None:
    rec, x, y = random_linear(count, seed, n=10)
    best = randens.optimize_sampling(rec, (x, y), exact(), tol=0.0)
    # The truth: every fooled set there is, by exact attacks at many probabilities.
    pool = best.pool
    for probs in grid(count, 4):
        pool = pool.merge(exact()(rec.with_probs(probs), x, y).pool)
    truth = pool.profile()
    assert best.gap <= 1e-9
    assert best.risk == pytest.approx(truth.risk(best.probs), abs=1e-9)
    assert best.risk <= min(truth.risk(probs) for probs in grid(count)) + 1e-9
    assert best.lower_bound <= optimal_sampling(truth).risk + 1e-9
    assert best.certificate is not None
    assert best.certificate.verify(best.profile)


def test_a_planted_conflict_is_drawn_half_and_half() -> None:
    rec, x, y = on_a_line(CONFLICT, (0.5,) * 6, (1.0, 0.0))
    best = randens.optimize_sampling(rec, (x, y), exact())
    assert best.probs == pytest.approx([0.5, 0.5])
    assert best.risk == pytest.approx(0.5)
    assert best.gap == pytest.approx(0)
    assert best.sweeps <= 3
    assert best.claim.startswith("smallest risk: no others have a smaller one (")


def test_words_distinguish_a_proof_from_a_search() -> None:
    rec, x, y = on_a_line(CONFLICT, (0.5,) * 6)
    heuristic = randens.optimize_sampling(rec, (x, y), attacks.create("pgd", THREAT))
    assert not heuristic.exact_oracle
    assert heuristic.claim.startswith("smallest risk against every witness found")
    assert "a stronger attack may change both" in heuristic.claim
    both = randens.optimize_sampling(rec, (x, y), [exact(), attacks.create("pgd", THREAT)])
    assert not both.exact_oracle
    assert randens.optimize_sampling(rec, (x, y), exact()).exact_oracle


def test_too_few_sweeps_leave_a_gap_and_say_so() -> None:
    rec, x, y = on_a_line(CONFLICT, (0.5,) * 6, (1.0, 0.0))
    stopped = randens.optimize_sampling(rec, (x, y), exact(), max_sweeps=1)
    # Only the first member has been attacked: against what is known, the second is never fooled.
    assert stopped.sweeps == 1
    assert stopped.probs.tolist() == [1.0, 0.0]
    assert (stopped.risk, stopped.lower_bound) == (1.0, 0.0)
    assert not stopped.converged
    assert "others may be better by up to 1" in stopped.claim


@pytest.mark.parametrize("sweeps", [1, 2, 20])
def test_an_interrupted_or_repeated_call_arrives_at_the_same(tmp_path: Path, sweeps: int) -> None:
    rec, x, y = random_linear(3, 2)
    rec = rec.with_probs([1.0, 0.0, 0.0])
    whole = randens.optimize_sampling(rec, (x, y), exact())
    assert whole.sweeps >= 2
    randens.optimize_sampling(rec, (x, y), exact(), max_sweeps=sweeps, folder=tmp_path)
    again = randens.optimize_sampling(rec, (x, y), exact(), folder=tmp_path)
    assert again.probs.tolist() == whole.probs.tolist()
    assert again.risk == whole.risk
    if sweeps == 20:
        assert again.now.passes <= 3 * len(x)


def test_attempts_are_minimized_for() -> None:
    rec, x, y = on_a_line(((1.0, 0.6), (-1.0, 0.4)), (0.5, 0.5, 0.9, 0.3, 0.3))
    once = randens.optimize_sampling(rec, (x, y), exact())
    often = randens.optimize_sampling(rec, (x, y), exact(), attempts=10)
    assert often.risk == pytest.approx(often.profile.risk(often.probs, 10))
    assert often.risk <= once.profile.risk(once.probs, 10) + 1e-9
    assert "after 10 attempts" in often.claim


def test_test_data_are_refused() -> None:
    rec, x, y = random_linear(2, 0)
    images = replace(as_data((x.numpy(), y.numpy()), split="test", classes=3), name="mine")
    with pytest.raises(InputError, match="test split of mine; choose probabilities on its validation split"):
        randens.optimize_sampling(rec, images, exact())
    held = as_data((x.numpy(), y.numpy()), split="validation", classes=3)
    assert randens.optimize_sampling(rec, held, exact()).about.split == "validation"


@pytest.mark.parametrize("tol", [-1, 1, float("nan"), "a", True])
def test_bad_tolerances_are_named(tol: object) -> None:
    rec, x, y = random_linear(2, 0)
    with pytest.raises(InputError, match="tol is"):
        randens.optimize_sampling(rec, (x, y), exact(), tol=tol)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_sweeps is 0"):
        randens.optimize_sampling(rec, (x, y), exact(), max_sweeps=0)
