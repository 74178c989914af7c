"""Estimate the cost of a recipe in member passes, which do not depend on the machine.

A pass is one member on one image, forward and backward. The count for validation is an upper bound: it
assumes that no image is finished early and no choice of α converges early.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from randens import data, models
from randens.training import losses
from randens.training.adversaries import adversary
from randens.training.alpha import due
from randens.training.initial_members import Blueprint
from randens.training.methods import METHODS, Roster, uniform
from randens.training.osp import attacks_per_choice
from randens.training.recipe import Recipe

__all__ = ["CostEstimate", "StagePlan", "estimate", "plan"]


@dataclass(frozen=True)
class StagePlan:
    """One stage: passes per image and epoch to craft and to train, passes per validation image in all."""

    epochs: int
    crafting: int
    training: int
    validation: int

    @property
    def work(self) -> int:
        """Passes per training image."""
        return self.epochs * (self.crafting + self.training)


@dataclass(frozen=True)
class CostEstimate:
    """Member passes by kind.

    `crafting` passes go back to the input, `training` passes to the weights; `validation` passes are the
    attack's, at most. `flops` and `parameters` are one member's.
    """

    crafting: int
    training: int
    validation: int
    flops: int
    parameters: int

    @property
    def passes(self) -> int:
        """All member passes."""
        return self.crafting + self.training + self.validation

    @property
    def total_flops(self) -> int:
        """FLOPs of all passes: a backward pass to the input costs one forward pass, one to the weights costs two."""
        return self.flops * (2 * (self.crafting + self.validation) + 3 * self.training)

    def sentence(self) -> str:
        """Return a sentence for the user before the run starts."""
        return (
            f"{_big(self.passes)} member passes: {_big(self.crafting)} to craft, {_big(self.training)} to "
            f"train, at most {_big(self.validation)} to validate; {_big(self.total_flops)} FLOP"
        )


def plan(recipe: Recipe) -> list[StagePlan]:
    """Return the stages of a recipe; members from earlier runs cost nothing."""
    method = METHODS[recipe.method](recipe.weight)
    level = "kl" if recipe.loss.name == "trades" else method.level
    craft = adversary(recipe.adversary, recipe.threat.build(), level)
    counts = method.stages(recipe.members)
    per_attack = recipe.validation.steps + 2  # the clean verdict and the last one
    stages: list[StagePlan] = []
    for number, size in enumerate(counts):
        before = sum(counts[:number])
        roster = Roster([nn.Identity()] * before, [nn.Identity()] * size, uniform(before + size))
        victims, _ = method.victims(roster)
        given = number < len(recipe.given) and len(counts) > 1
        epochs = 0 if given else recipe.epochs_of(number)
        several = before + size if method.level != "loss" or recipe.method == "bat" else size
        attacks = judged = math.ceil(epochs / recipe.validation.every)
        reach = judged * (before + size) if before + size > 1 else 0
        if method.reweighs and before:
            updates = sum(due(recipe.sampling, before + size, done, epochs) for done in range(1, epochs + 1))
            attacks += updates * (1 + attacks_per_choice(recipe.sampling, before + size))
        training = losses.passes(recipe.loss) * size
        validation = attacks * several * per_attack + reach
        stages.append(StagePlan(epochs, craft.passes(len(victims)), training, validation))
    return stages


def estimate(recipe: Recipe) -> CostEstimate:
    """Count the member passes of a recipe.

    Parameters
    ----------
    recipe : Recipe
        What would be trained.

    Returns
    -------
    CostEstimate
        Passes and FLOPs.

    Examples
    --------
    >>> from randens.training import load_recipe
    >>> estimate(load_recipe("digits-mlp-barre")).passes > 0
    True
    """
    known = data.entry(recipe.data.name)
    images, held = known.sizes["train"], known.sizes["validation"]
    held = min(held, recipe.validation.size or held)
    stages = plan(recipe)
    crafting = sum(s.epochs * s.crafting for s in stages) * images
    training = sum(s.epochs * s.training for s in stages) * images
    choices = attacks_per_choice(recipe.sampling, recipe.members)
    last = recipe.members * ((recipe.validation.steps + 2) * choices + 1)
    validation = (sum(s.validation for s in stages) + last) * held
    model = Blueprint(recipe, len(known.classes), known.shape)()
    flops, parameters = models.flops(model), models.parameters(model)
    return CostEstimate(crafting, training, validation, flops, parameters)


def _big(value: float) -> str:
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"
