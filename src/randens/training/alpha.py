"""The rule for α: its start, when and how it changes in training, its final value; the attacks to choose by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from randens import attacks
from randens.attacks.base import Attack
from randens.attacks.result import Cost
from randens.ensemble import RandomizedEnsemble
from randens.risk import RiskProfile, candidates, cutting_planes, project_simplex
from randens.risk.theorems import MOST_CANDIDATE_MEMBERS
from randens.training.methods import Method, Weights, mirror_descent, uniform
from randens.training.recipe import Recipe, SamplingPart
from randens.witness import WitnessPool

Held = tuple[Tensor, Tensor]
"""Inputs [n, ...] and labels [n]."""


@dataclass(frozen=True)
class Validated:
    """The result of attacks at α: all witnesses, the clean errors of every member, passes, number of attacks."""

    probs: Weights
    pool: WitnessPool
    clean_risks: Weights
    cost: Cost
    attacks: int = 1

    @property
    def natural(self) -> float:
        """Expected error on the unperturbed inputs."""
        return float(self.clean_risks @ self.probs)

    @property
    def risk(self) -> float:
        """Expected error on the worst perturbations found."""
        return self.pool.risk(self.probs)

    def summary(self, attack: str) -> dict[str, Any]:
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
        }


class AlphaRule:
    """α of one run, by `sampling` and the method, on the same `images` every time: those `held`, or training images."""

    def __init__(self, recipe: Recipe, method: Method, images: Held, held: Held) -> None:
        self.part, self.method, self.images, self.held = recipe.sampling, method, images, held
        named = method.attack or recipe.sampling.attack or recipe.validation.attack
        self.attack = validation_attack(recipe, named)

    def start(self, members: int) -> Weights:
        """Uniform, with the floor for the member in training where α is optimized."""
        probs = uniform(members)
        return floored(probs, self.part.floor) if self.method.reweighs else probs

    def descended(self, probs: Weights, losses: Weights) -> Weights:
        """One step of mirror descent after an epoch, for the methods that use it."""
        return mirror_descent(probs, losses, self.part.rate) if self.method.descends else probs

    def due(self, members: int, done: int, epochs: int) -> bool:
        """Is α optimized after epoch `done` of `epochs`?"""
        return self.method.reweighs and members > 1 and due(self.part, members, done, epochs)

    def reweighed(self, rec: RandomizedEnsemble, rate: float) -> Validated:
        """Choose α with the floor of the member in training (Algorithm 2, line 12); "released" steps by 10·`rate`."""
        part = self.part
        if part.rule == "released":
            part = part.model_copy(update={"step": 10 * rate})
        choice = self._choice(rec, part)
        return replace(choice, probs=floored(choice.probs, part.floor))

    def final(self, rec: RandomizedEnsemble, best: Weights | None) -> Validated:
        """α of the finished ensemble, with its risk on validation data; `best` is that of the best checkpoint."""
        if self.part.final == "checkpoint" and best is not None and len(best) == len(rec.members):
            return attacked(rec.with_probs(best), *self.held, self.attack)
        if self.method.sweeps and self.part.method == "exact" and len(rec.members) > 1:
            choice = _sweep(rec, *self.images, self.attack)
        else:
            choice = self._choice(rec, self.part)
        if self.images is self.held:
            return choice
        found = attacked(rec.with_probs(choice.probs), *self.held, self.attack)
        return replace(found, cost=choice.cost + found.cost, attacks=choice.attacks + 1)

    def _choice(self, rec: RandomizedEnsemble, part: SamplingPart) -> Validated:
        """α by the method of `part`, with the witnesses."""
        if len(rec.members) == 1 or part.method == "uniform":
            return attacked(rec.with_probs(None), *self.images, self.attack)
        if part.method == "osp":
            return osp(rec, *self.images, self.attack, part)
        return exact(rec, *self.images, self.attack, part.sweeps)


def due(part: SamplingPart, members: int, done: int, epochs: int) -> bool:
    """Is α updated after epoch `done`: by Algorithm 2 ("printed"), or as in the authors' program ("released")?"""
    if part.rule == "printed":
        return done % part.every == 0
    half = epochs // 2
    return (
        members > MOST_CANDIDATE_MEMBERS
        and done > half
        and ((done - half) % part.every == 0 or done == epochs)
    )


def floored(probs: Weights, floor: float) -> Weights:
    """α with at least min(floor/m, 1) for the last member; the others are reduced in proportion."""
    least = min(1.0, floor / len(probs))
    if probs[-1] >= least:
        return probs
    others: Weights = probs[:-1] / probs[:-1].sum() * (1 - least)
    return np.append(others, least)


def attacks_per_choice(part: SamplingPart, members: int, sweeps: bool = False) -> int:
    """The largest number of attacks for one choice of α; `sweeps`: over a grid."""
    if members == 1 or part.method == "uniform":
        return 1
    if part.method == "exact":
        return 10 if sweeps else 1 + part.sweeps
    return len(candidates(members)) if members <= MOST_CANDIDATE_MEMBERS else part.iterations


def validation_attack(recipe: Recipe, name: str) -> Attack:
    """The attack `name` with the recipe's threat, seed and, if it has one, number of steps."""
    threat = recipe.threat.build()
    options = {"steps": recipe.validation.steps} if hasattr(attacks.create(name, threat), "steps") else {}
    return attacks.create(name, threat, seed=recipe.seed, **options)


def attacked(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack) -> Validated:
    """Attack `rec` at its α on (x, y); ranks share the batches, and every rank gets the whole result."""
    found = attack.run(rec, (x, y))
    clean = found.clean_errors.numpy().mean(axis=0)
    return Validated(rec.probs.cpu().numpy(), found.pool.without_inputs(), clean, found.cost)


def exact(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack, sweeps: int) -> Validated:
    """The best α by cutting planes: optimize over the witnesses, attack there, repeat while new ones are found."""
    pool: WitnessPool | None = None
    costs: list[Cost] = []

    def attack_at(probs: Weights) -> RiskProfile:
        nonlocal pool
        found = attack.run(rec.with_probs(probs), (x, y), start=pool)
        # Without a start, the pool of a result also holds the errors on the inputs themselves.
        pool = found.pool if pool is None else pool.merge(found.pool)
        costs.append(found.cost)
        return pool.profile()

    clean = rec.errors(x, y).double().mean(dim=0).cpu().numpy()
    start = uniform(len(rec))
    best = cutting_planes(attack_at, start, tol=0.0, max_sweeps=sweeps + 1, clean_risks=clean)
    cost = sum(costs, Cost(forwards=len(x) * len(rec)))
    assert pool is not None
    return Validated(np.array(best.probs), pool.without_inputs(), clean, cost, len(costs))


def osp(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack, part: SamplingPart) -> Validated:
    """α* by Algorithm 1 as printed, with a fresh attack at every α; up to three members, the best of the candidates."""
    members = len(rec.members)
    tried: list[Validated] = []
    if members <= MOST_CANDIDATE_MEMBERS:
        for fractions in candidates(members):
            alpha = np.array([float(share) for share in fractions])
            tried.append(attacked(rec.with_probs(alpha), x, y, attack))
    else:
        alpha = uniform(members) if part.begin == "uniform" else rec.probs.cpu().numpy()
        for t in range(1, part.iterations + 1):
            tried.append(attacked(rec.with_probs(alpha), x, y, attack))
            # g: the share of inputs on which the attack at α fools each member (lines 6 to 10).
            gradient = tried[-1].pool.profile().subgradient(alpha)
            alpha = project_simplex(alpha - part.step / t * gradient)
    # Ties go to the later α (line 13).
    return _best(tried[::-1], lambda choice: choice.risk)


def _sweep(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack) -> Validated:
    """The first member's probability on a grid, equal ones for the others, as in work before the paper."""
    tried = []
    for share in np.linspace(0.1, 1.0, 10):
        probs = np.full(len(rec.members), (1 - share) / (len(rec.members) - 1))
        probs[0] = share
        tried.append(attacked(rec.with_probs(probs), x, y, attack))
    return _best(tried, lambda choice: (choice.risk, choice.natural))


def _best(tried: list[Validated], key: Any) -> Validated:
    """The first of the best choices, with the cost of all of them."""
    cost = sum((choice.cost for choice in tried), Cost())
    return replace(min(tried, key=key), cost=cost, attacks=len(tried))
