"""Attacks while training: the verdicts that compare checkpoints, and α from the witnesses found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from randens import attacks
from randens.attacks.base import Attack
from randens.attacks.dataset import Knowledge, attack_data
from randens.attacks.found import Cost
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.gradient_conflict import Conflict, conflict_of
from randens.risk import RiskProfile, cutting_planes, optimal_sampling
from randens.threat import Threat
from randens.training.methods import Weights, uniform
from randens.training.recipe import Recipe, SamplingPart
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore

__all__ = ["Batch", "Validated", "attacked", "choose", "directions", "validation_attack"]

Batch = tuple[Tensor, Tensor]
"""Inputs [n, ...] and labels [n]."""


@dataclass(frozen=True)
class Validated:
    """The result of a validation at α: all witnesses, the clean errors of every member, and the member passes."""

    probs: Weights
    pool: WitnessPool
    clean_risks: Weights
    cost: Cost

    @property
    def natural(self) -> float:
        """Expected error on the unperturbed inputs."""
        return float(self.clean_risks @ self.probs)

    @property
    def risk(self) -> float:
        """Expected error on the worst perturbations found."""
        return self.pool.risk(self.probs)

    def summary(self, attack: str, reach: Conflict | None) -> dict[str, Any]:
        """What training.json says about the finished ensemble."""
        profile = self.pool.profile()
        return {
            "images": self.pool.n,
            "attack": attack,
            "natural_accuracy": 1 - self.natural,
            "robust_accuracy": 1 - self.risk,
            "robust_accuracy_uniform": 1 - profile.risk(uniform(len(self.probs))),
            "member_natural_accuracies": (1 - self.clean_risks).tolist(),
            "member_robust_accuracies": (1 - profile.member_risks).tolist(),
            "conflict": None if reach is None else reach.to_json(),
        }


def attacked(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack) -> Validated:
    """Attack `rec` at its α on (x, y); ranks share the batches, and every rank gets the whole result.

    A batch's random numbers depend only on its number, so the number of ranks does not change the result.
    """
    found = attack_data(attack, rec, (x, y), inputs=False)
    clean = found.clean_errors.numpy().mean(axis=0)
    return Validated(rec.probs.cpu().numpy(), found.pool, clean, found.cost)


def validation_attack(recipe: Recipe, name: str) -> Attack:
    """Return the attack `name` with the recipe's threat, seed, precision and, if it has one, number of steps."""
    threat = recipe.threat.build()
    options: dict[str, Any] = {"seed": recipe.seed, "precision": recipe.precision}
    if hasattr(attacks.create(name, threat), "steps"):
        options["steps"] = recipe.validation.steps
    return attacks.create(name, threat, **options)


def directions(members: Sequence[nn.Module], x: Tensor, y: Tensor, threat: Threat) -> Conflict | None:
    """The joint reach of the members on validation data; None for one member or a threat without a dual norm."""
    if len(members) == 1 or not threat.is_ball:
        return None
    return conflict_of(RandomizedEnsemble(members), Data(x, y, name="held", split="validation"), threat)


def choose(
    rec: RandomizedEnsemble,
    x: Tensor,
    y: Tensor,
    attack: Attack,
    part: SamplingPart,
    store: WitnessStore | None = None,
) -> Validated:
    """Choose α for `rec`: the attacked probabilities with the lowest risk.

    This is a cutting-plane loop: optimise over the known witnesses, attack at the result, and repeat while
    there are new witnesses. The recipe's method finds the optimum over the witnesses. store: keeps the
    witnesses.
    """
    members = len(rec.members)
    if part.method == "sweep" and members > 1:
        return _sweep(rec, x, y, attack)
    known = Knowledge(rec, x.cpu(), y.cpu(), attack.threat, store=store)

    def attack_at(probs: NDArray[np.float64]) -> RiskProfile:
        known.attack(attack, probs, f"{attack.name} on validation data")
        return known.pool.profile()

    even = uniform(members)
    clean = known.clean.mean(axis=0)
    if members == 1 or part.method == "uniform":
        attack_at(even)
        return Validated(even, known.pool.without_inputs(), clean, known.cost)
    method: str = part.method
    if method == "paper":
        method = "candidates" if members <= 3 else "subgradient"
    options = {"iterations": part.iterations} if method == "subgradient" else {}
    best = cutting_planes(
        attack_at,
        even,
        tol=0.0,
        max_sweeps=part.sweeps + 1,
        clean_risks=clean,
        solver=lambda profile: optimal_sampling(profile, method, clean, **options),
    )
    return Validated(np.array(best.probs), known.pool.without_inputs(), clean, known.cost)


def _sweep(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack) -> Validated:
    """Try the first member's probability on a grid, with equal probabilities for the others. Each α is
    evaluated by the attack at that α alone, as in work before the paper."""
    members = len(rec.members)
    choices = []
    for share in np.linspace(0.1, 1.0, 10):
        probs = np.full(members, (1 - share) / (members - 1))
        probs[0] = share
        choices.append(attacked(rec.with_probs(probs), x, y, attack))
    return min(choices, key=lambda choice: (choice.risk, choice.natural))
