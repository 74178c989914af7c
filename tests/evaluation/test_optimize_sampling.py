"""Probabilities chosen under attack: the optimum with an exact attack, and no claim of one with any other."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluation.planted import THREAT, exact, on_a_line, random_linear

import randens
from randens import Threat, attacks
from randens.core.errors import InputError
from randens.data import as_data
from randens.risk import optimal_sampling
from randens.risk.sampling import contributions

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


def test_equally_good_probabilities_go_to_the_cleaner_member() -> None:
    # Both members are always fooled, so every α is as bad; the second is wrong on clean inputs too.
    rec, x, y = on_a_line(((1.0, 0.6), (1.0, 0.45)), (0.5,) * 5, (0.5, 0.5))
    best = randens.optimize_sampling(rec, (x, y), exact(), tol=0.0)
    assert best.risk == 1.0
    assert best.lower_bound == 1.0
    proposal = optimal_sampling(best.profile, clean_risks=[0.0, 1.0])
    assert proposal.probs.tolist() == [1.0, 0.0]


def test_a_single_member_has_nothing_to_choose() -> None:
    rec, x, y = random_linear(1, 0)
    best = randens.optimize_sampling(rec, (x, y), exact())
    assert best.probs.tolist() == [1.0]
    assert best.gap == 0
    assert best.sweeps == 1


def test_test_data_are_refused() -> None:
    rec, x, y = random_linear(2, 0)
    images = as_data((x.numpy(), y.numpy()), split="test", classes=3, name="mine")
    with pytest.raises(InputError, match="test split of mine; choose probabilities on its validation split"):
        randens.optimize_sampling(rec, images, exact())
    held = as_data((x.numpy(), y.numpy()), split="validation", classes=3)
    assert randens.optimize_sampling(rec, held, exact()).about.split == "validation"


@pytest.mark.parametrize("tol", [-1, 1, float("nan"), "a", True])
def test_bad_tolerances_are_named(tol: object) -> None:
    rec, x, y = random_linear(2, 0)
    with pytest.raises(InputError, match="tol is"):
        randens.optimize_sampling(rec, (x, y), exact(), tol=tol)  # type: ignore[arg-type]


@pytest.mark.parametrize("sweeps", [0, -1, 1.5, True])
def test_bad_sweep_counts_are_named(sweeps: object) -> None:
    rec, x, y = random_linear(2, 0)
    with pytest.raises(InputError, match="max_sweeps is"):
        randens.optimize_sampling(rec, (x, y), exact(), max_sweeps=sweeps)  # type: ignore[arg-type]


def test_json_holds_what_a_program_needs() -> None:
    rec, x, y = random_linear(2, 3)
    best = randens.optimize_sampling(rec, (x, y), exact())
    document = best.to_json()
    assert document["probs"] == best.probs.tolist()
    assert document["claim"] == best.claim
    assert document["member_risks"] == best.profile.member_risks.tolist()
    assert document["about"]["n"] == len(x)
    assert len(best.to_frame()) == 2
    assert best.plot() is not None


def test_members_are_weighed() -> None:
    # Members 0 and 1 conflict; member 2 is always fooled together with member 0 and adds nothing.
    rec, x, y = on_a_line((*CONFLICT, (1.0, 0.55)), (0.5,) * 8)
    best = randens.optimize_sampling(rec, (x, y), exact())
    assert best.risk == pytest.approx(0.5)
    worth = contributions(best.profile, best)
    assert worth[1].worth == pytest.approx(0.5)
    unused = [c for c in worth if c.prob == 0]
    assert [c.advice for c in unused] == [f"drop member {c.member}: it is never sampled" for c in unused]
    assert unused
    alone = randens.optimize_sampling(rec.with_probs(None), (x, y), exact())
    assert np.array_equal(alone.probs > 0, best.probs > 0)


def test_the_generator_of_torch_is_left_alone() -> None:
    rec, x, y = random_linear(2, 3)
    before = torch.random.get_rng_state()
    randens.optimize_sampling(rec, (x, y), attacks.create("arc-r", Threat("l2", 0.3)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.isfinite(rec.probs.numpy()).all()
