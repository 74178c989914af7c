"""What a recipe costs before it is run: member passes, which do not depend on the machine, and time measured here.

A pass is one member on one image. Validation is counted as if no image were ever finished early: an upper bound.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from randens import data, models
from randens.ensemble import frozen, to_layout
from randens.training import losses
from randens.training.adversaries import adversary
from randens.training.methods import METHODS
from randens.training.recipe import Recipe

__all__ = ["Estimate", "StagePlan", "estimate", "plan"]


@dataclass(frozen=True)
class StagePlan:
    """One stage: member passes (forward, and as many backward) per image."""

    epochs: int
    crafting: int
    training: int
    validation: int
    validations: int
    reweighings: int


@dataclass(frozen=True)
class Estimate:
    """Member passes by kind, and seconds if a step was measured.

    `crafting` passes go forward and back to the input; `training` passes forward and back to the weights;
    `validation` passes are the attack's, at most.
    """

    crafting: int
    training: int
    validation: int
    parameters: int
    flops: int
    seconds: float | None = None

    @property
    def passes(self) -> int:
        """All member passes, each forward and backward."""
        return self.crafting + self.training + self.validation

    def sentence(self) -> str:
        """For a person to read before the run starts."""
        said = (
            f"{_big(self.passes)} member passes ({_big(self.crafting)} to craft, {_big(self.training)} to train, "
            f"at most {_big(self.validation)} to validate), {_big(6 * self.flops * self.passes // 2)}FLOP"
        )
        return said if self.seconds is None else f"{said}; about {_duration(self.seconds)} on this machine"


def plan(recipe: Recipe) -> list[StagePlan]:
    """The stages of a recipe that are still to be trained."""
    method = METHODS[recipe.method]()
    craft = adversary(recipe.adversary, recipe.threat.build(), method.level)
    stages, before = [], 0
    for number, size in enumerate(method.stages(recipe.members)):
        epochs = recipe.epochs_of(number)
        everyone = before + size
        attacked = everyone if method.level != "loss" else (size if recipe.method != "bat" else 1)
        every = recipe.validation.every
        stages.append(
            StagePlan(
                epochs=0 if number == 0 and recipe.first is not None and size == 1 else epochs,
                crafting=craft.passes(attacked),
                training=losses.passes(recipe.loss) * size,
                validation=(recipe.validation.steps + 1) * (everyone if method.level != "loss" else size),
                validations=math.ceil(epochs / every),
                reweighings=epochs // recipe.sampling.every if method.reweighs and everyone > 1 else 0,
            )
        )
        before = everyone
    return stages


def estimate(recipe: Recipe, *, measure: bool = True) -> Estimate:
    """Cost of a recipe: member passes, and with `measure` the time, from a few passes on random images."""
    known = data.entry(recipe.data.name)
    images = known.sizes["train"]
    held = min(known.sizes["validation"], recipe.validation.size or known.sizes["validation"])
    stages = plan(recipe)
    crafting = sum(s.epochs * s.crafting for s in stages) * images
    training = sum(s.epochs * s.training for s in stages) * images
    validation = sum((s.validations + s.reweighings) * s.validation for s in stages if s.epochs) * held
    if recipe.members > 1:
        validation += held * recipe.members * (recipe.validation.steps + 1) * (1 + recipe.sampling.sweeps)
    model = models.create(
        recipe.model.name, classes=len(known.classes), input_shape=known.shape, seed=0, **network(recipe)
    )
    seconds = None
    if measure:
        craft, train = _measure(recipe, model)
        seconds = craft * (crafting + validation) + train * training
    return Estimate(crafting, training, validation, models.parameters(model), models.flops(model), seconds)


def network(recipe: Recipe) -> dict[str, int]:
    """The network's own sizes, where the recipe gives them."""
    part = recipe.model
    sizes = {"width": part.width, "hidden": part.hidden, "depth": part.depth}
    return {key: value for key, value in sizes.items() if value is not None}


def _measure(recipe: Recipe, model: models.Classifier) -> tuple[float, float]:
    """Seconds per image of one crafting pass and of one training pass, in the recipe's batch size."""
    from randens.training.distributed import pick_device
    from randens.training.engine import arithmetic

    device = pick_device(recipe.device)
    model = model.to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    cast = arithmetic(recipe, device, model)
    x = torch.rand(
        min(recipe.batch_size, 128), *model.input_shape, generator=torch.Generator().manual_seed(0)
    )
    x = to_layout(x).to(device)

    def crafting() -> None:
        with frozen(model):
            variable = x.detach().requires_grad_()
            with cast():
                z = model(variable)
            torch.autograd.grad(z.float().square().mean(), variable)

    def training() -> None:
        with cast():
            z = model(x)
        z.float().square().mean().backward()  # type: ignore[no-untyped-call]

    times = []
    for work in (crafting, training):
        spent = []
        for _ in range(3):
            begun = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - begun)
        times.append(min(spent) / len(x))
    return times[0], times[1]


def _big(value: float) -> str:
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.0f} "


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
