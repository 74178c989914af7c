"""What augmentation costs, as a share of one ResNet-20 training step.

The step is the cheapest there is: natural training, one forward and backward pass and one SGD update, on one thread.
Adversarial training with PGD-10 costs about eleven times as much, so its share is a tenth.

    python -m benchmarks.augmentation
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from benchmarks import harness
from benchmarks.harness import Goal, Row, Settings, Side, interleaved
from randens import models
from randens.data import Augment

SHARE = Goal(at_most=0.03)


def training_step(batch: int) -> Callable[[], object]:
    """One natural training step of ResNet-20 on CIFAR-sized images, in channels_last layout."""
    model = models.create("resnet20", classes=10, input_shape=(3, 32, 32), seed=0).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    x = torch.rand(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def rows(settings: Settings) -> Iterator[Row]:
    torch.set_num_threads(1)
    batch, repeats = (32, 3) if settings.quick else (128, 10)
    augment, generator = Augment(), torch.Generator().manual_seed(0)
    x = torch.rand(batch, 3, 32, 32)
    measured = interleaved(
        {"augmentation": lambda: augment(x, generator), "step": training_step(batch)},
        repeats,
        warm_up=2,
        clock=time.process_time,
    )
    ours, step = measured["augmentation"].timing, measured["step"].timing
    yield Row(
        f"augmentation, batch {batch}",
        Side("augmentation", ours),
        Side("a natural training step", step),
        ours.best / step.best,
        "of the step",
        goal=SHARE,
        note="one thread, processor time",
    )


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
