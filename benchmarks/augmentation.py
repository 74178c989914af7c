"""What augmentation costs, as a share of one ResNet-20 training step (target: under 3 %).

The step is the cheapest there is: natural training, one forward and backward pass and one SGD update.
Adversarial training with PGD-10 costs about eleven times as much, so its share is a tenth.

    python benchmarks/augmentation.py [--batch 128] [--threads 1] [--precision bfloat16]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from randens import models
from randens.data import Augment

TARGET = 0.03


def median_seconds(action: Callable[[], object], repeats: int) -> float:
    """Median time of `action` after two unmeasured runs."""
    times = []
    for index in range(repeats + 2):
        start = time.perf_counter()
        action()
        if index >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def training_step(batch: int, precision: str) -> Callable[[], None]:
    """One natural training step of ResNet-20 on CIFAR-sized images, in channels_last layout."""
    model = models.create("resnet20", classes=10, input_shape=(3, 32, 32), seed=0).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    x = torch.rand(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,))

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    augment, generator = Augment(), torch.Generator().manual_seed(0)
    x = torch.rand(arguments.batch, 3, 32, 32)
    cost = median_seconds(lambda: augment(x, generator), 5 * arguments.repeats)
    step = median_seconds(training_step(arguments.batch, arguments.precision), arguments.repeats)
    share = cost / step
    print(f"batch {arguments.batch}, {arguments.threads} thread(s), {arguments.precision}")
    print(f"augmentation {1e3 * cost:.2f} ms, training step {1e3 * step:.1f} ms: share {100 * share:.2f} %")
    return int(share >= TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
