"""Properties that relate attacks to each other, on small trained networks."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
from tests.attacks.cases import attacks_for, convnet, digits

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import AttackResult
from randens.risk import bounds

N = 20
NORMS = ("linf", "l2")
PROBS = [0.5, 0.3, 0.2]
# Two searches that end near a tie may differ on an input, one way here, the other way on another processor.
ONE = 1 / N


def threat(norm: str, factor: float = 1.0) -> Threat:
    return Threat(norm, factor * (0.1 if norm == "linf" else 0.5))


def ensemble() -> RandomizedEnsemble:
    return RandomizedEnsemble([convnet(0), convnet(1), convnet(2)], PROBS)


@functools.cache
def found(name: str, norm: str, factor: float = 1.0, **options: object) -> AttackResult:
    x, y = digits("test")
    made = attacks.create(name, threat(norm, factor), **options)
    return made(ensemble(), x[:N], y[:N])


@functools.cache
def alone(member: int, norm: str) -> AttackResult:
    x, y = digits("test")
    made = attacks.create("pgd", threat(norm))
    return made(convnet(member), x[:N], y[:N])


@pytest.mark.parametrize("norm", NORMS)
def test_the_suite_is_at_least_as_strong_as_every_attack(norm: str) -> None:
    suite = found("standard", norm)
    for name in attacks_for("convnet"):
        assert suite.robust_accuracy <= found(name, norm).robust_accuracy + ONE, name


@pytest.mark.parametrize("norm", NORMS)
def test_presets_grow_stronger(norm: str) -> None:
    fast, standard = found("fast", norm), found("standard", norm)
    assert standard.robust_accuracy <= fast.robust_accuracy + ONE
    assert fast.cost.forwards < standard.cost.forwards


@pytest.mark.parametrize("norm", NORMS)
def test_the_risk_is_at_least_the_heaviest_member_fooled_alone(norm: str) -> None:
    """risk ≥ mean_j max_i α_i 1[member i fooled by its own attack], pointwise."""
    fooled = torch.cat([alone(i, norm).errors for i in range(3)], dim=1)
    heaviest = (fooled.double() * torch.tensor(PROBS, dtype=torch.float64)).amax(dim=1)
    for name in ("pgd", "standard"):
        assert bool((found(name, norm).risk >= heaviest - 1e-12).all()), name
    # Attacking members one by one is part of every preset: what fools one alone is pooled.
    pooled = torch.from_numpy(found("standard", norm).pool.foolable)
    assert bool((pooled | ~fooled).all())


@pytest.mark.parametrize("norm", NORMS)
def test_the_risk_lies_within_the_papers_bounds(norm: str) -> None:
    """Theorem 1 for uniform weights, with the members' risks as the pool knows them."""
    pool = found("standard", norm).pool
    profile = pool.profile()
    limits = bounds(profile.member_risks)
    assert profile.risk([1 / 3] * 3) <= limits.ceiling + 1e-12
    assert min(profile.risk(a) for a in np.eye(3)) >= limits.floor - 1e-12
    assert profile.risk(PROBS) == pytest.approx(float(found("standard", norm).risk.mean()))


@pytest.mark.parametrize("norm", NORMS)
def test_the_risk_rises_with_the_radius_to_one(norm: str) -> None:
    risks = [float(found("saddle", norm, f).risk.mean()) for f in (0.25, 1.0, 5.0)]
    assert all(a <= b + ONE for a, b in itertools.pairwise(risks))
    assert risks[0] < 0.5 < risks[-1]
    assert risks[-1] > 0.97


@pytest.mark.parametrize("norm", NORMS)
def test_signs_of_masking_are_absent(norm: str) -> None:
    """Iterative ≥ single step; gradients ≥ random search; adaptive ≥ what transfers; no gradient is missing."""
    risk = {name: float(found(name, norm).risk.mean()) for name in attacks_for("convnet")}
    assert risk["pgd"] >= risk["fgsm"] - ONE
    assert risk["adaptive-pgd-l"] >= risk["afgsm"] - ONE
    assert risk["saddle"] > risk["random"] + ONE
    assert risk["arc-r"] >= risk["random"] - ONE
    assert found("standard", norm).flags["nan_gradient"] == [0.0, 0.0, 0.0]
    assert max(found("saddle", norm).flags["zero_gradient"]) == 0.0


@pytest.mark.parametrize("norm", NORMS)
def test_randomising_gains_where_members_cannot_be_fooled_together(norm: str) -> None:
    """η(α) ≤ Σ α_i η_i: no perturbation fools more than all that can be fooled."""
    pool = found("standard", norm).pool
    mixed = float(np.asarray(PROBS) @ pool.profile().member_risks)
    assert float(found("standard", norm).risk.mean()) <= mixed + 1e-12


def test_the_climbers_are_stronger_than_attacks_on_expectations_at_equal_budget() -> None:
    """Members of a randomized ensemble must be fooled together, which these attacks search for."""
    for norm in NORMS:
        strongest = min(
            found(n, norm).robust_accuracy
            for n in ("adaptive-pgd-l", "adaptive-pgd-s", "adaptive-pgd-z", "afgsm", "fgsm")
        )
        assert found("saddle", norm).robust_accuracy <= strongest + ONE
