"""What a training step costs beyond its bare forward and backward passes.

The engine's step (batch, augmentation, random start, adversary, loss, optimizer, moving average, accounting) is timed
from outside, by its progress reports, against the same passes in a bare loop, in turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import Row, Settings
from randens import data, models
from randens.attacks.members import folded
from randens.ensemble import frozen
from randens.training import Recipe, train

ABOUT = (
    "One step of the training engine on ResNet-20, batch 128, against the forward and backward passes that it consists "
    "of and nothing else; best of all steps."
)


def recipe(batch: int, method: str, members: int, gradients: int) -> Recipe:
    return Recipe.model_validate(
        {
            "method": method,
            "members": members,
            "epochs": 1,
            "batch_size": batch,
            "ema": 0.99,
            "precision": "float32",
            "model": {"name": "resnet20"},
            "data": {"name": "cifar10", "crop_padding": 4, "flip": True},
            "threat": {"eps": "8/255"},
            "adversary": {"name": "pgd", "steps": gradients},
            "validation": {"attack": "fgsm", "size": 8},
            "sampling": {"method": "uniform"},
            "checkpoint": {"seconds": 1e6},
        }
    )


def images(count: int, split: str) -> data.Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return data.as_data((x, torch.arange(count) % 10), split=split, classes=10)


def engine_steps(chosen: Recipe, steps: int) -> list[float]:
    """Seconds of the engine's steps of the last member, the first left out."""
    moments: list[float] = []

    def progress(task: str, done: float, _: float) -> None:
        if task == "epoch":
            if done == 1:
                moments.clear()
            moments.append(time.process_time())

    pair = (images(chosen.batch_size * steps, "train"), images(8, "validation"))
    with tempfile.TemporaryDirectory() as folder:
        train(chosen, Path(folder) / "run", progress, data=pair)
    return [moments[k + 1] - moments[k] for k in range(steps - 1)]


class BareStep:
    """The forward and backward passes of one step and nothing else."""

    def __init__(self, batch: int, members: int, gradients: int) -> None:
        self.gradients = gradients
        # The engine's members normalize their inputs, which is a part of every pass.
        mean, std = images(batch, "train").mean_std()
        create = partial(models.create, "resnet20", classes=10, input_shape=(3, 32, 32), mean=mean, std=std)
        nets: list[nn.Module] = [create(seed=seed) for seed in range(members)]
        self.trained = nets[-1].to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.trained.train()
        # Earlier members are finished: like the engine, attack them with their BatchNorm folded.
        x = torch.rand(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        self.nets = [*(folded(net.eval().requires_grad_(False), x[:4]) for net in nets[:-1]), self.trained]
        self.x, self.y = x.contiguous(memory_format=torch.channels_last), torch.arange(batch) % 10

    def loss(self, net: nn.Module, points: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(points), self.y)

    def __call__(self) -> None:
        with frozen(self.trained):
            for _ in range(self.gradients):
                points = self.x.detach().requires_grad_()
                torch.autograd.grad(torch.stack([self.loss(net, points) for net in self.nets]).sum(), points)
        torch.autograd.backward(self.loss(self.trained, self.x))
        self.trained.zero_grad(set_to_none=True)


def measure(method: str, members: int, gradients: int, *, batch: int, steps: int, rounds: int) -> Row:
    bare, chosen = BareStep(batch, members, gradients), recipe(batch, method, members, gradients)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        bare()
        for _ in range(steps - 1):
            begun = time.process_time()
            bare()
            theirs.append(time.process_time() - begun)
        ours += engine_steps(chosen, steps)
    # The crafting passes over all members and one training pass of the last.
    passes = gradients * members + 1
    name, note = f"step of {method}, PGD-{gradients}, M = {members}", f"{passes} + {passes} passes per image"
    return Row(name, min(ours), min(theirs), "s", min(ours) / min(theirs), "× its passes", note)


def rows(settings: Settings) -> Iterator[Row]:
    sizes: dict[str, Any] = {"batch": 128, "steps": 6, "rounds": 3}
    if settings.quick:
        sizes = {"batch": 16, "steps": 4, "rounds": 1}
    yield measure("at", 1, 2, **sizes)
    yield measure("barre", 2, 3, **sizes)
