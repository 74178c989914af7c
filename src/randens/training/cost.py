"""Estimate the cost of a recipe: member passes, which do not depend on the machine, and time on this machine.

A pass is one member on one image, forward and backward. The count for validation is an upper bound: it
assumes that no image is finished early and no choice of α converges early.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from randens import data, models
from randens.core.distributed import pick_device
from randens.ensemble import frozen, to_layout
from randens.training import losses
from randens.training.adversaries import adversary
from randens.training.alpha import due
from randens.training.initial_members import Blueprint
from randens.training.methods import METHODS, Roster, uniform
from randens.training.osp import attacks_per_choice
from randens.training.placement import arithmetic
from randens.training.recipe import Recipe

__all__ = ["CostEstimate", "StagePlan", "crafting_pass", "estimate", "plan", "seconds_of", "training_pass"]

Cast = Callable[[], AbstractContextManager[Any]]
Clock = Callable[[], float]
Pass = Callable[[nn.Module, torch.Tensor, Cast], None]


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
    """Member passes by kind, and seconds if passes were measured.

    `crafting` passes go back to the input, `training` passes to the weights; `validation` passes are the
    attack's, at most. `flops` and `parameters` are one member's.
    """

    crafting: int
    training: int
    validation: int
    flops: int
    parameters: int
    seconds: float | None = None

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
        said = (
            f"{_big(self.passes)} member passes: {_big(self.crafting)} to craft, {_big(self.training)} to "
            f"train, at most {_big(self.validation)} to validate; {_big(self.total_flops)} FLOP"
        )
        return said if self.seconds is None else f"{said}; about {_duration(self.seconds)} on this machine"


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
        passes = method.passes(craft, len(victims), losses.passes(recipe.loss), size)
        stages.append(StagePlan(epochs, *passes, validation=attacks * several * per_attack + reach))
    return stages


def estimate(recipe: Recipe, *, measure: bool = True) -> CostEstimate:
    """Cost of a recipe: member passes and, with `measure`, the time, from a few passes on random images.

    Parameters
    ----------
    recipe : Recipe
        What would be trained.
    measure : bool
        Time a few passes on this machine; without it the seconds are unknown.

    Returns
    -------
    CostEstimate
        Passes, FLOPs and seconds.

    Examples
    --------
    >>> from randens.training import load_recipe
    >>> cost = estimate(load_recipe("digits-mlp-barre"), measure=False)
    >>> cost.passes > 0, cost.seconds
    (True, None)
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
    seconds = None
    if measure:
        craft, train = _measured(recipe, model)
        seconds = craft * (crafting + validation) + train * training
    return CostEstimate(crafting, training, validation, flops, parameters, seconds)


def _measured(recipe: Recipe, model: models.Classifier) -> tuple[float, float]:
    """Seconds per image of one crafting pass and of one training pass, in the recipe's batch size."""
    device = pick_device(recipe.device)
    model = model.to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    cast = arithmetic(recipe.precision, device, model)
    generator = torch.Generator().manual_seed(0)
    x = to_layout(torch.rand(recipe.batch_size, *model.input_shape, generator=generator)).to(device)
    with frozen(model):
        craft = min(seconds_of(crafting_pass, model, x, cast) for _ in range(3))
    model.train()
    train = min(seconds_of(training_pass, model, x, cast) for _ in range(3))
    return craft / len(x), train / len(x)


def crafting_pass(model: nn.Module, x: torch.Tensor, cast: Cast) -> None:
    """One pass forward and back to the input."""
    variable = x.detach().requires_grad_()
    with cast():
        z = model(variable)
    torch.autograd.grad(z.float().square().mean(), variable)


def training_pass(model: nn.Module, x: torch.Tensor, cast: Cast) -> None:
    """One pass forward and back to the weights."""
    with cast():
        z = model(x)
    torch.autograd.backward(z.float().square().mean())


def seconds_of(
    one_pass: Pass, model: nn.Module, x: torch.Tensor, cast: Cast, clock: Clock = time.perf_counter
) -> float:
    """The time that a pass takes."""
    begun = clock()
    one_pass(model, x, cast)
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - begun


def _big(value: float) -> str:
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
