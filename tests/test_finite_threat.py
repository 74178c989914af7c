"""Finite sets are enumerated: risks, probabilities and theorems against brute force over α and transformations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evaluation.trained import digits, ensemble
from torch import Tensor

import randens
from randens import FiniteThreat, InputError
from randens.evaluation import Evaluation

N = 60


def _shifted(x: Tensor, down: int, right: int) -> Tensor:
    return x.roll((down, right), (-2, -1))


def _dark(x: Tensor) -> Tensor:
    return x.mul_(0.5)  # in place: functions get copies


SHIFTS = [
    functools.partial(_shifted, down=i, right=j) for i, j in itertools.product((-1, 0, 1), repeat=2) if i or j
]
THREAT = FiniteThreat([*SHIFTS, _dark])


@functools.cache
def case() -> tuple[randens.RandomizedEnsemble, Tensor, Tensor]:
    x, y = digits("validation")[:N]
    return ensemble("mlp", "mlp", "linear"), x, y


@functools.cache
def sets() -> np.ndarray:
    """Every member's errors on every perturbation of every input, [T, n, M]."""
    rec, x, y = case()
    points = [x, *(transform(x.clone()) for transform in THREAT.transforms)]
    return np.stack([rec.errors(each, y).numpy() for each in points])


def risk(probs: np.ndarray) -> float:
    return float((sets() @ probs).max(axis=0).mean())


@functools.cache
def evaluated() -> Evaluation:
    rec, x, y = case()
    # A zero must not hide what that member does.
    found = randens.evaluate(rec, (x, y), threat=THREAT, probs=[0.7, 0.3, 0])
    assert isinstance(found, Evaluation)
    return found


GRID = [np.array([i, j, 12 - i - j]) / 12 for i in range(13) for j in range(13 - i)]


def test_the_risk_is_that_of_brute_force_at_every_alpha_from_one_enumeration() -> None:
    found = evaluated()
    assert 1 - float(found.robust) == pytest.approx(risk(found.probs))
    for probs in GRID:
        assert found.profile.risk(probs) == pytest.approx(risk(probs))
    np.testing.assert_allclose(found.member_risks, sets().any(axis=0).mean(axis=0))
    assert found.cost.backwards == 0
    assert {"_dark", "transform 0"} <= set(THREAT.names)


def test_the_best_probabilities_are_those_of_the_grid_or_better_and_proven() -> None:
    rec, x, y = case()
    best = randens.optimize_sampling(rec, (x, y), threat=THREAT)
    assert best.exact_oracle
    assert best.gap <= 1e-9
    assert best.risk == pytest.approx(risk(best.probs))
    assert best.risk <= min(map(risk, GRID)) + 1e-9
    assert best.lower_bound >= best.risk - 1e-9


def test_theorem_1_is_an_equivalence_about_networks() -> None:
    """Sampling two members helps exactly if P(R₁), by brute force, exceeds the gap between their risks."""
    alone: np.ndarray = np.asarray(sets().any(axis=0))
    for pair in evaluated().pairs:
        i, j = pair.i, pair.j
        conflict = (alone[:, i] & alone[:, j] & ~(sets()[:, :, i] & sets()[:, :, j]).any(axis=0)).mean()
        gap = abs(alone[:, i].mean() - alone[:, j].mean())
        assert pair.conflict == pytest.approx(conflict)
        assert pair.helps == (conflict > gap + 1e-12)
        weights = np.linspace(0, 1, 41)
        grid = [risk(w * np.eye(3)[i] + (1 - w) * np.eye(3)[j]) for w in weights]
        assert pair.helps == (min(grid[1:-1]) < min(grid[0], grid[-1]) - 1e-12)


def test_a_store_answers_for_the_same_set_only(tmp_path: Path) -> None:
    rec, x, y = case()

    def passes(*transforms: Callable[[Tensor], Tensor]) -> tuple[float, int]:
        found = randens.evaluate(rec, (x, y), threat=FiniteThreat(transforms), folder=tmp_path)
        assert isinstance(found, Evaluation)
        again = randens.evaluate(rec, (x, y), threat=FiniteThreat(transforms))
        assert found.robust == again.robust
        return float(found.robust), found.now.forwards

    dark = passes(lambda x: x * 0.3)
    brighter = passes(lambda x: x * 0.9)
    assert passes(lambda x: x * 0.3)[1] < min(dark[1], brighter[1])
    assert dark[0] < brighter[0]


def test_a_witness_of_the_set_is_legal_and_others_are_not() -> None:
    rec, x, y = case()
    found = randens.attacks.create("finite", THREAT)(rec, x, y)
    assert bool(THREAT.contains(found.x_adv, x).all())
    assert not bool(THREAT.contains((found.x_adv + 0.01).clamp(0, 1), x).any())
    assert found.risk.mean() == pytest.approx(risk(rec.probs.numpy()))


@pytest.mark.parametrize("given", [[], None, _dark, [1], "ab"])
def test_what_is_no_list_of_functions_is_named(given: object) -> None:
    with pytest.raises(InputError, match="transforms"):
        FiniteThreat(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("transform", "named"),
    [
        (lambda x: x[:, :, 1:], "keep both"),
        (lambda x: x.double(), "keep both"),
        (lambda x: x + 1, "bounds"),
        (lambda x: x * float("nan"), "bounds"),
        (torch.rand_like, "chance"),
        (
            lambda x: x - x.mean(dim=0).clamp(max=0.5) * 0 + x.mean() * 0.1 - 0.1 * x.mean(),
            "same of every input",
        ),
        (lambda x: (x + x.mean()) / 2, "itself"),
        (lambda x: x, "identity"),
        (_dark, "same of every input"),
        (lambda x: x.missing, "fails"),
    ],
)
def test_functions_that_are_no_perturbations_are_named(
    transform: Callable[[Tensor], Tensor], named: str
) -> None:
    rec, x, y = case()
    with pytest.raises(InputError, match=named):
        randens.evaluate(rec, (x, y), threat=FiniteThreat([_dark, transform]))


def test_what_needs_a_ball_refuses_a_finite_set() -> None:
    rec, x, y = case()
    for use, named in (
        (lambda: randens.evaluate(rec, (x, y), "pgd", threat=THREAT), "finite"),
        (lambda: randens.evaluate(rec, (x, y), "finite"), "FiniteThreat"),
        (lambda: randens.curve(rec, (x, y), threat=THREAT), "no radius"),
        (lambda: randens.certify(rec, (x, y), threat=THREAT), "exact"),
        (lambda: randens.audit(rec, (x, y), threat=THREAT), "exact"),
        (lambda: randens.RandomizedEnsemble(list(rec.members), threat=THREAT), "file"),
    ):
        with pytest.raises(InputError, match=named):
            use()
