"""Validation under attack: what chooses checkpoints and α."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from randens.attacks.base import Attack
from randens.attacks.dataset import Knowledge, attack_data
from randens.attacks.found import Cost
from randens.core.errors import InputError
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.labelled import Labelled
from randens.evaluation.reach import Conflict, conflict_of
from randens.risk import RiskProfile, cutting_planes, optimal_sampling
from randens.training.methods import Weights
from randens.training.recipe import SamplingPart
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore

__all__ = ["Validated", "attacked", "check_splits", "choose", "directions"]


@dataclass(frozen=True)
class Validated:
    """α on validation data: every witness found, the clean errors of every member, and the member passes spent."""

    probs: Weights
    pool: WitnessPool
    clean_risks: Weights
    cost: Cost

    @property
    def natural(self) -> float:
        """Expected error on the inputs as they are."""
        return float(self.clean_risks @ self.probs)

    @property
    def risk(self) -> float:
        """Expected error on the worst perturbations found."""
        return self.pool.risk(self.probs)


def attacked(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack) -> Validated:
    """Attack `rec` at its α on (x, y); ranks share the batches out, and every rank gets the whole result.

    A batch's random numbers depend on its number alone, so the number of ranks changes nothing.
    """
    found = attack_data(attack, rec, (x, y), inputs=False)
    clean = found.clean_errors.numpy().mean(axis=0)
    return Validated(rec.probs.cpu().numpy(), found.pool, clean, found.cost)


def directions(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack) -> Conflict | None:
    """Joint reach of the members on validation data; None for a single one, and for a threat without a dual norm."""
    if len(rec.members) == 1 or not attack.threat.is_ball:
        return None
    return conflict_of(rec, Labelled(x, y, "held", "validation"), attack.threat)


def choose(
    rec: RandomizedEnsemble,
    x: Tensor,
    y: Tensor,
    attack: Attack,
    part: SamplingPart,
    store: WitnessStore | None = None,
) -> Validated:
    """α for `rec`, chosen among the probabilities that were really attacked: the one with the lowest risk.

    Cutting planes: optimise on the witnesses known, attack what comes out, and repeat while that brings new ones. The
    recipe's method is how the optimum on the witnesses is found. store: where the witnesses go.
    """
    members = len(rec.members)
    if part.method == "sweep" and members > 1:
        return _sweep(rec, x, y, attack)
    known = Knowledge(rec, x.cpu(), y.cpu(), attack.threat, store=store)

    def attack_at(probs: NDArray[np.float64]) -> RiskProfile:
        known.attack(attack, probs, f"{attack.name} on validation data")
        return known.pool.profile()

    uniform = np.full(members, 1 / members)
    clean = known.clean.mean(axis=0)
    if members == 1 or part.method == "uniform":
        attack_at(uniform)
        return Validated(uniform, known.pool.without_inputs(), clean, known.cost)
    method, options = _solver(part, members)
    best = cutting_planes(
        attack_at,
        uniform,
        tol=0.0,
        max_sweeps=part.sweeps + 1,
        clean_risks=clean,
        solver=lambda profile: optimal_sampling(profile, method, clean, **options),
    )
    return Validated(np.array(best.probs), known.pool.without_inputs(), clean, known.cost)


def _solver(part: SamplingPart, members: int) -> tuple[str, dict[str, int]]:
    method: str = part.method
    if method == "paper":
        method = "candidates" if members <= 3 else "subgradient"
    return method, {"iterations": part.iterations} if method == "subgradient" else {}


def _sweep(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack) -> Validated:
    """The first member's probability over a grid, the rest shared equally, each judged by the attack at that α
    alone: how randomized ensembles were tuned before their risk function was understood."""
    members = len(rec.members)
    choices = []
    for share in np.linspace(0.1, 1.0, 10):
        probs = np.full(members, (1 - share) / (members - 1))
        probs[0] = share
        choices.append(attacked(rec.with_probs(probs), x, y, attack))
    return min(choices, key=lambda choice: (choice.risk, choice.natural))


def check_splits(train: str, validation: str) -> None:
    """α and checkpoints are never chosen on test data."""
    if train != "train" or validation != "validation":
        raise InputError(
            f"data holds the splits {train!r} and {validation!r}; training takes ('train', 'validation')"
        )
