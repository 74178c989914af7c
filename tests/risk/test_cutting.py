"""Cutting planes over a pool that grows: sampling probabilities when η is known only where it was attacked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from randens.risk import RiskProfile, cutting_planes, exact_sampling


class Attacker:
    """Inputs with hidden configurations; each attack reveals one set per input, the worst of those it can see."""

    def __init__(self, n: int, members: int, seed: int, sight: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        self.members = members
        self.n = n
        self.points = np.repeat(np.arange(n), rng.integers(1, 7, n))
        rate = np.linspace(0.2, 0.6, members)
        self.fooled = rng.random((len(self.points), members)) < rate * rng.beta(1, 1, n)[self.points, None]
        self.visible = rng.random(len(self.points)) < sight
        self.found: list[int] = []
        self.attacked = 0

    def __call__(self, probs: NDArray[np.float64]) -> RiskProfile:
        self.attacked += 1
        damage = np.where(self.visible, self.fooled @ probs, -1.0)
        for j in range(self.n):
            mine = np.flatnonzero(self.points == j)
            worst = mine[int(np.argmax(damage[mine]))]
            if damage[worst] >= 0:
                self.found.append(int(worst))
        return RiskProfile.from_witnesses(self.points[self.found], self.fooled[self.found], self.n)

    def truth(self) -> RiskProfile:
        return RiskProfile.from_witnesses(self.points, self.fooled, self.n)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10_000))
def test_an_exact_oracle_leads_to_the_true_optimum(members: int, seed: int) -> None:
    attacker = Attacker(60, members, seed)
    found = cutting_planes(attacker, np.full(members, 1 / members), tol=1e-9, max_sweeps=60)
    optimum = exact_sampling(attacker.truth()).risk
    assert found.lower_bound <= optimum + 1e-9
    assert found.risk == pytest.approx(optimum, abs=2e-9)
    assert attacker.truth().risk(found.probs) == pytest.approx(found.risk, abs=1e-9)
    assert found.sweeps == attacker.attacked
    assert found.method == "cutting-planes"


def test_a_gap_of_a_thousandth_takes_few_sweeps() -> None:
    for seed in range(5):
        attacker = Attacker(300, 8, seed)
        found = cutting_planes(attacker, np.full(8, 1 / 8), tol=1e-3)
        assert found.gap <= 1e-3
        assert found.sweeps <= 6
        assert found.risk - exact_sampling(attacker.truth()).risk <= 1e-3 + 1e-9


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_a_blind_attack_still_gives_a_true_lower_bound(seed: int) -> None:
    attacker = Attacker(60, 4, seed, sight=0.5)
    found = cutting_planes(attacker, np.full(4, 0.25), tol=1e-9, max_sweeps=40)
    assert found.lower_bound <= exact_sampling(attacker.truth()).risk + 1e-9
    pool = RiskProfile.from_witnesses(attacker.points[attacker.found], attacker.fooled[attacker.found], 60)
    assert found.certificate is not None
    assert found.certificate.verify(pool)
    assert found.risk == pytest.approx(pool.risk(found.probs))


def test_the_risk_is_that_of_the_final_pool() -> None:
    """The risk of a point attacked early includes the witnesses found later."""
    early = RiskProfile.from_configurations([[(1, 0)], [], [], []])
    late = RiskProfile.from_configurations([[(1, 0)], [(1, 0)], [(0, 1)], [(0, 1)]])
    pools = iter([early, late])
    found = cutting_planes(lambda _: next(pools), [1.0, 0.0], tol=1e-6)
    assert found.sweeps == 2
    assert found.probs.tolist() == [1.0, 0.0]
    assert found.risk == late.risk([1.0, 0.0]) == 0.5


def test_sweeps_are_limited() -> None:
    attacker = Attacker(300, 8, seed=7)
    found = cutting_planes(attacker, np.full(8, 1 / 8), tol=1e-12, max_sweeps=2)
    assert found.sweeps == attacker.attacked == 2
    assert found.gap > 0
