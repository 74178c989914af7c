"""The rule for α: its start, when and how it changes during the training of a member, and its final value."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.training.initial_members import seed_for
from randens.training.methods import Method, Weights, mirror_descent, uniform
from randens.training.osp import MOST_CANDIDATES, optimal_sampling_probability
from randens.training.recipe import Recipe, SamplingPart
from randens.training.validation import Batch, Validated, attacked, choose, validation_attack
from randens.witness.store import WitnessStore

__all__ = ["AlphaRule", "due", "floored"]


class AlphaRule:
    """α of one run, by the recipe's `sampling` and the method, on validation data (`held`), or with
    ``sampling.data = "train"`` on the same training images at every choice.
    """

    def __init__(self, recipe: Recipe, method: Method, train_data: Data, held: Batch) -> None:
        self.part, self.seed, self.method = recipe.sampling, recipe.seed, method
        self.train_data, self.held = train_data, held
        named = method.attack or recipe.sampling.attack or recipe.validation.attack
        self.oracle = validation_attack(recipe, named)

    def start(self, members: int) -> Weights:
        """Uniform, with the floor for the member in training where α is optimised."""
        probs = uniform(members)
        return floored(probs, self.part.floor) if self.method.reweighs else probs

    def descended(self, probs: Weights, losses: Weights) -> Weights:
        """Make one step of mirror descent after an epoch, for the methods that use it."""
        return mirror_descent(probs, losses, self.part.rate) if self.method.descends else probs

    def due(self, members: int, done: int, epochs: int) -> bool:
        """Is α optimised after epoch `done` of `epochs`?"""
        return self.method.reweighs and members > 1 and due(self.part, members, done, epochs)

    def reweighed(self, rec: RandomizedEnsemble, rate: float) -> Validated:
        """Choose α for the current members, with the floor of the member in training (Algorithm 2, line 12).

        The released rule steps by ten times the learning rate `rate`.
        """
        part = self.part
        if part.rule == "released":
            part = part.model_copy(update={"step": 10 * rate})
        choice = self._choice(rec, part)
        return dataclasses.replace(choice, probs=floored(choice.probs, part.floor))

    def final(self, rec: RandomizedEnsemble, store: WitnessStore) -> Validated:
        """Choose α for the finished ensemble; return it with its risk on validation data."""
        part = self.part
        if part.method == "exact" and self.method.choice is not None:
            part = part.model_copy(update={"method": self.method.choice})
        choice = self._choice(rec, part, store)
        if part.data == "validation":
            return choice
        judged = attacked(rec.with_probs(choice.probs), *self.held, self.oracle)
        return dataclasses.replace(judged, cost=choice.cost + judged.cost)

    def _choice(
        self, rec: RandomizedEnsemble, part: SamplingPart, store: WitnessStore | None = None
    ) -> Validated:
        """Choose α by the method of `part` on the split of `part`; return it with the witnesses."""
        x, y = self.held
        if part.data == "train":
            generator = torch.Generator().manual_seed(seed_for(self.seed, "osp"))
            x, y = self.train_data[torch.randperm(len(self.train_data), generator=generator)[: part.size]]
        if part.method == "osp":
            return optimal_sampling_probability(rec, x, y, self.oracle, part)
        return choose(rec, x, y, self.oracle, part, store)


def due(part: SamplingPart, members: int, done: int, epochs: int) -> bool:
    """Is α updated after epoch `done` of `epochs` of member number `members`?

    "printed" (Algorithm 2): after every E_o epochs. "released": never up to the third member; from the fourth on
    after every E_o epochs of the second half, and after the last epoch.
    """
    if part.rule == "printed":
        return done % part.every == 0
    half = epochs // 2
    return members > MOST_CANDIDATES and done > half and ((done - half) % part.every == 0 or done == epochs)


def floored(probs: Weights, floor: float) -> Weights:
    """Return α with at least min(floor/m, 1) for the last member; the others are reduced in proportion."""
    least = min(1.0, floor / len(probs))
    if probs[-1] >= least:
        return probs
    others: Weights = probs[:-1] / probs[:-1].sum() * (1 - least)
    return np.append(others, least)
