"""Many small networks trained at once, as one network of stacked weights: what the engine trains one by one.

A network of a few thousand weights spends its time between operations, not in them. Here S runs of one recipe, which
differ only in their seeds, are trained side by side: every operation works on all of them. Row r of a batch belongs to
network r mod S. The adversaries, losses, methods and the order of images are the engine's own, drawn from the same
seeds, so that the weights are those of the engine up to rounding (tested). Gradients come
from `by_hand` where it has them, and from autograd elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from paper.when_does_drawing_pay import by_hand
from randens import data as datasets
from randens.data import ImageData
from randens.training.adversaries import Start, Victims, adversary
from randens.training.initial_members import Blueprint, seed_for
from randens.training.losses import passes, training_loss
from randens.training.methods import METHODS, Lesson, Roster, uniform
from randens.training.recipe import Recipe
from randens.training.schedule import learning_rate
from randens.training.weight_average import average

__all__ = ["Stack", "Trained", "train"]


class Stack(nn.Module):
    """S networks of one architecture as one: [n·S, ...] → [n·S, C], row r through network r mod S."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        weights, buffers = torch.func.stack_module_state(list(networks))
        self.size = len(networks)
        self.named = list(weights)
        self.values = nn.ParameterList([nn.Parameter(value.detach().clone()) for value in weights.values()])
        self.fixed = {name: value.clone() for name, value in buffers.items()}
        # In a list, so that its weights do not count as parameters here.
        self.shape_of = [copy.deepcopy(networks[0]).to("meta")]

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.unflatten(x, 0, (-1, self.size)).transpose(0, 1)
        weights = dict(zip(self.named, self.values, strict=True))

        def alone(weights: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor) -> Tensor:
            logits: Tensor = torch.func.functional_call(self.shape_of[0], (weights, fixed), (x,))
            return logits

        z = torch.func.vmap(alone)(weights, self.fixed, rows)
        return z.transpose(0, 1).flatten(0, 1)

    def states(self) -> list[dict[str, Tensor]]:
        """The state of every network alone."""
        pairs = [*zip(self.named, self.values, strict=True), *self.fixed.items()]
        return [{name: value[i].detach().clone() for name, value in pairs} for i in range(self.size)]


@dataclass(frozen=True)
class Trained:
    """The members of one run, frozen and in eval mode, and the member passes that they took."""

    members: list[nn.Module]
    passes: int


def train(
    recipes: Sequence[Recipe],
    first: Sequence[Sequence[nn.Module]] | None = None,
    train_data: ImageData | None = None,
) -> list[Trained]:
    """The members of every recipe; the recipes differ in their seeds only. first: the members each starts from.
    train_data: other images than those that the recipe names.

    For methods that train all members in one stage with α uniform, and networks without batch normalisation.
    The weights of the last epoch count.
    """
    recipe = recipes[0]
    if any(other.model_copy(update={"seed": recipe.seed}) != recipe for other in recipes):
        raise ValueError("the recipes of a stack differ in more than their seeds")
    method = METHODS[recipe.method](recipe.weight)
    if method.stages(recipe.members) != [recipe.members] or method.descends:
        raise ValueError(f"method {recipe.method!r} has stages or moves α; the engine trains it")
    train_data = train_data or datasets.load(recipe.data.name, "train")
    blueprints = [Blueprint.of(one, train_data) for one in recipes]
    given = first or [[] for _ in recipes]
    stacks = []
    for index in range(recipe.members):
        made: list[nn.Module] = [blueprint(index) for blueprint in blueprints]
        for member, start in zip(made, given, strict=True):
            if start:
                member.load_state_dict(start[index].state_dict())
        stacks.append(Stack(made))
    teachers = [copy.deepcopy(stack).requires_grad_(False) for stack in stacks] if first else []
    averaged = [copy.deepcopy(stack) for stack in stacks]
    part = recipe.optimizer
    optimizer = torch.optim.SGD(
        [value for stack in stacks for value in stack.parameters()],
        lr=part.lr,
        momentum=part.momentum,
        weight_decay=part.weight_decay,
        nesterov=part.nesterov,
    )
    roster = Roster([], stacks, uniform(len(stacks)))
    members, probs = method.victims(roster)
    victims = Victims.of(members, torch.from_numpy(probs))
    level = method.level if recipe.members > 1 else "loss"
    loss, threat = training_loss(recipe.loss), recipe.threat.build()
    quick, network = by_hand.fits(recipe), blueprints[0]()
    images, labels = train_data[: len(train_data)]
    batches = ceil(len(train_data) / recipe.batch_size)
    bounds = np.linspace(0, len(train_data), batches + 1).round().astype(int).tolist()
    spent = 0
    for epoch in range(recipe.epochs):
        radius = min(1.0, (epoch + 1) / (recipe.adversary.warmup + 1))
        craft = adversary(recipe.adversary, threat.scaled(radius), level)
        orders = [
            torch.randperm(len(train_data), generator=_generator(one, "order", 0, epoch)) for one in recipes
        ]
        known = by_hand.Images.of(images, labels, craft) if quick else None
        for step in range(batches):
            count = bounds[step + 1] - bounds[step]
            optimizer.zero_grad(set_to_none=True)
            generators = [_generator(one, "batch", 0, epoch, step) for one in recipes]
            if known is not None:
                rows = torch.stack([order[bounds[step] : bounds[step + 1]] for order in orders])
                by_hand.learn(method, stacks, network, craft, known.batch(rows, craft, generators))
            else:
                if recipe.members > 1:
                    count -= count % 4  # shares of a batch hold as many images of every run
                drawn = []
                for order, generator in zip(orders, generators, strict=True):
                    rows = order[bounds[step] : bounds[step] + count]
                    drawn.append((images[rows], labels[rows], craft.begin(images[rows], generator)))
                x, y, point = (
                    torch.stack(values, dim=1).flatten(0, 1) for values in zip(*drawn, strict=True)
                )
                seed = seed_for(recipe.seed, "arc", 0, epoch, step, 0)
                learners = list(range(len(stacks)))
                x_adv = method.examples(craft, victims, Start(x, y, point, seed), learners)
                lesson = Lesson(x, y, [made.detach() for made in x_adv], stacks, stacks, teachers, threat)
                total = torch.stack([value.sum() for value, _ in method.losses(loss, lesson)]).sum()
                (total / count).backward()
            rate = learning_rate(recipe.schedule, part.lr, epoch * batches + step, batches, recipe.epochs)
            for settings in optimizer.param_groups:
                settings["lr"] = rate
            optimizer.step()
            for target, stack in zip(averaged, stacks, strict=True):
                average(target, stack, recipe.ema, epoch * batches + step)
            spent += count * sum(method.passes(craft, len(stacks), passes(recipe.loss), len(stacks)))
    states = [stack.states() for stack in (averaged if recipe.ema else stacks)]
    found = []
    for run, blueprint in enumerate(blueprints):
        members = [blueprint(index) for index in range(recipe.members)]
        for member, of_member in zip(members, states, strict=True):
            member.load_state_dict(of_member[run])
            member.requires_grad_(False).eval()
        found.append(Trained(list(members), spent))
    return found


def _generator(recipe: Recipe, *purpose: object) -> torch.Generator:
    return torch.Generator().manual_seed(seed_for(recipe.seed, *purpose))
