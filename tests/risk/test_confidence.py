"""α by an upper confidence bound: the bound's value, its minimum against another solver, its coverage."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import chi2

from randens.risk import RiskProfile, confidence, exact_sampling, optimal_sampling
from randens.risk.confidence import confident_sampling, simultaneous_quantile, upper_bound, worst_weights


def random_profile(seed: int, members: int, n: int = 60, share: float = 0.4) -> RiskProfile:
    rng = np.random.default_rng(seed)
    return RiskProfile.from_witnesses(np.repeat(np.arange(n), 3), rng.random((3 * n, members)) < share, n)


def per_input(profile: RiskProfile, probs: NDArray[np.float64]) -> NDArray[np.float64]:
    assert profile.size is not None
    counts = np.rint(profile.weights * profile.size).astype(int)
    return np.repeat(profile.configuration_risks(probs), counts)


def test_the_bound_is_mean_plus_z_standard_errors() -> None:
    """With one input more, at which all are fooled, and z for all α at once; of the excess with the normal z."""
    profile, probs = random_profile(0, 3), np.array([0.5, 0.3, 0.2])
    values = per_input(profile, probs)
    more = np.append(values, 1.0)
    for share in (0.8, 0.95):
        one = RiskProfile.from_configurations([np.ones((1, 3))])
        z = simultaneous_quantile(profile.merge(one), share)
        assert z > NormalDist().inv_cdf(share)
        expected = more.mean() + z * more.std() / math.sqrt(len(values) - 1)
        assert upper_bound(profile, probs, share) == pytest.approx(expected, abs=1e-9)
    paired = values - per_input(profile, np.full(3, 1 / 3))
    z = NormalDist().inv_cdf(0.95)
    expected = paired.mean() + z * paired.std(ddof=1) / math.sqrt(len(paired))
    assert upper_bound(profile, probs, reference="uniform") == pytest.approx(expected, abs=1e-12)


def equal_members(members: int, n: int, rng: np.random.Generator) -> RiskProfile:
    """Members that err independently, each at 40 % of the inputs: every α has a true risk of 0.4."""
    return RiskProfile.from_witnesses(np.arange(n), rng.random((n, members)) < 0.4, n)


@pytest.mark.parametrize(("members", "n", "samples"), [(3, 300, 60), (8, 150, 25), (16, 120, 20)])
def test_the_bound_holds_for_the_alpha_that_minimizes_it(
    monkeypatch: pytest.MonkeyPatch, members: int, n: int, samples: int
) -> None:
    """At most 5 % of the samples may miss, and chance; a bound that treats α as fixed before misses in many more."""
    monkeypatch.setattr(confidence, "_REPLICATES", 100)
    rng = np.random.default_rng(members)
    drawn = [equal_members(members, n, rng) for _ in range(samples)]

    def missed() -> float:
        return float(np.mean([optimal_sampling(one, confidence=0.95, tol=1e-4).upper < 0.4 for one in drawn]))  # type: ignore[operator]

    assert missed() <= 0.1
    others = [upper_bound(one, exact_sampling(one).probs) < 0.4 for one in drawn[:15]]
    assert np.mean(others) <= 0.1
    monkeypatch.setattr(confidence, "simultaneous_quantile", lambda _, share: NormalDist().inv_cdf(share))
    assert missed() > 0.1


def test_few_inputs_without_an_error_do_not_prove_safety() -> None:
    """None of 100 inputs fooled: the rule of three allows a risk of 3 %."""
    safe = RiskProfile.from_configurations([[]] * 100, members=2)
    assert 0.02 < float(confident_sampling(safe).upper or 0.0) < 0.06


def test_the_quantile_of_one_member_is_the_normal_one() -> None:
    rng = np.random.default_rng(1)
    many = [simultaneous_quantile(equal_members(m, 500, rng), 0.95) for m in (1, 2, 4, 8, 16)]
    assert many[0] == pytest.approx(1.645, abs=0.15)
    assert many == sorted(many)
    # Scheffé's bound is for directions of both signs.
    assert many[-1] < math.sqrt(chi2.ppf(0.95, 16))


@pytest.mark.parametrize("seed", range(12))
def test_the_worst_weights_solve_their_program(seed: int) -> None:
    """Feasible, and equal to the dual min_η η + √(1 + ρ)·‖(r − η)₊‖, also where weights would become negative."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    p, radius = rng.dirichlet(np.ones(count)), 10 ** rng.uniform(-3, 1)
    values = rng.choice([0.0, 0.25, 0.5, 1.0], count) if seed % 2 else rng.random(count)
    q = worst_weights(p, values, radius)
    assert q.min() >= 0
    assert q.sum() == pytest.approx(1)
    assert ((q - p) ** 2 / p).sum() <= radius + 1e-12

    spread = values.max() - values.min()
    grid = np.linspace(values.min() - 60 * spread - 1e-9, values.max(), 400_001)
    inner = p[:, None] * np.maximum(0, values[:, None] - grid) ** 2
    lowest = float((grid + math.sqrt(1 + radius) * np.sqrt(inner.sum(axis=0))).min())
    assert float(q @ values) <= lowest + 1e-9
    assert float(q @ values) == pytest.approx(lowest, abs=1e-6)


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("reference", [None, "uniform"])
def test_no_other_solver_finds_a_smaller_bound(members: int, reference: str | None) -> None:
    # Members of different quality, so that the optimum is not the starting point.
    rng = np.random.default_rng(members)
    fooled = rng.random((120, members)) < np.linspace(0.15, 0.7, members)
    profile = RiskProfile.from_witnesses(np.arange(120), fooled, 120)
    found = confident_sampling(profile, reference=reference)
    assert found.gap <= 1e-6
    assert found.objective == pytest.approx(upper_bound(profile, found.probs, reference=reference), abs=1e-6)
    assert not np.allclose(found.probs, 1 / members)
    one = RiskProfile.from_configurations([np.ones((1, members))])
    counted = profile.merge(one) if reference is None else profile
    z = simultaneous_quantile(counted, 0.95) if reference is None else NormalDist().inv_cdf(0.95)
    radius = z * z / (120 - 1)

    def objective(free: NDArray[np.float64]) -> float:
        raised = np.exp(free - free.max())
        values = counted.configuration_risks(raised / raised.sum())
        if reference is not None:
            values = values - counted.configuration_risks(np.full(members, 1 / members))
        return float(worst_weights(counted.weights, values, radius) @ values)

    limits = {"maxiter": 400, "xatol": 1e-5, "fatol": 1e-8}
    starts = (np.zeros(members), np.linspace(1, -1, members))
    best = min(minimize(objective, at, method="Nelder-Mead", options=limits).fun for at in starts)
    assert best >= found.lower_bound - 1e-9
    assert found.gap <= best - found.lower_bound + 1e-6


def test_alpha_leaves_the_uniform_point_only_when_the_inputs_say_so() -> None:
    """The same advantage of member 1, 4 of 20 inputs, is noise on 20 inputs and none on 2,000."""
    sets = [[(1, 0)]] * 6 + [[(0, 1)]] * 2 + [[]] * 12
    few = RiskProfile.from_configurations(sets)
    assert confident_sampling(few, 0.99, reference="uniform").probs.tolist() == [0.5, 0.5]
    assert exact_sampling(few).probs.tolist() == [0.0, 1.0]
    many = RiskProfile.from_configurations(sets * 100)
    assert confident_sampling(many, 0.99, reference="uniform").probs == pytest.approx([0.0, 1.0], abs=1e-6)
