"""What a training step costs beyond its bare forward and backward passes, and what precision and layout bring.

    python benchmarks/training.py [--network resnet20] [--batch 128] [--steps 12]

The engine's step (batch, augmentation, random start, adversary, loss, optimiser, moving average, accounting) is
timed from outside, by its progress reports, against the same passes in a bare loop; both on one thread and in
processor time, so that other processes on the machine matter little, and the fastest of each counts. The goals
are a ratio of at most 1.15, and bfloat16 with channels_last at least 3 times as fast as float32 with channels
first; where bfloat16 does not work, that is said.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from randens import data, models
from randens.ensemble import frozen
from randens.models.precision import probe
from randens.training import Recipe, train

GRADIENTS = 3


def recipe(network: str, batch: int, method: str, members: int) -> Recipe:
    return Recipe.model_validate(
        {
            "method": method,
            "members": members,
            "epochs": 1,
            "batch_size": batch,
            "ema": 0.99,
            "precision": "float32",
            "model": {"name": network},
            "data": {"name": "cifar10", "crop_padding": 4, "flip": True},
            "threat": {"eps": "8/255"},
            "adversary": {"name": "pgd", "steps": GRADIENTS},
            "validation": {"attack": "fgsm", "size": 8},
            "sampling": {"method": "uniform"},
            "checkpoint": {"seconds": 1e9},
        }
    )


def images(count: int, split: str) -> data.ImageData:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return data.from_arrays(x, torch.arange(count) % 10, split=split, classes=10)


def engine_step(network: str, batch: int, steps: int, method: str, members: int) -> float:
    """Seconds of the engine's fastest step of the last member."""
    moments: list[float] = []

    def progress(task: str, done: float, total: float) -> None:
        if task == "epoch" and done <= total:
            if done == 1:
                moments.clear()
            moments.append(time.process_time())

    pair = (images(batch * steps, "train"), images(8, "validation"))
    with tempfile.TemporaryDirectory() as folder:
        train(recipe(network, batch, method, members), Path(folder) / "run", progress, data=pair)
    return min(moments[k + 1] - moments[k] for k in range(steps - 1))


def bare_passes(
    network: str, batch: int, repeats: int, members: int, *, layout: str = "last", dtype: str = "float32"
) -> float:
    """Seconds of the same forward and backward passes and nothing else."""
    memory = torch.channels_last if layout == "last" else torch.contiguous_format
    nets: list[nn.Module] = []
    for seed in range(members):
        net: nn.Module = models.create(network, classes=10, input_shape=(3, 32, 32), seed=seed)
        net.to(memory_format=memory)  # type: ignore[call-overload]
        nets.append(net)
    for earlier in nets[:-1]:
        earlier.eval().requires_grad_(False)
    last = nets[-1].train()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, 3, 32, 32, generator=generator).contiguous(memory_format=memory)
    y = torch.arange(batch) % 10

    def loss(net: nn.Module, point: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            z = net(point)
        return nn.functional.cross_entropy(z.float(), y)

    times = []
    for _ in range(repeats):
        begun = time.process_time()
        with frozen(last):
            for _ in range(GRADIENTS):
                point = x.detach().requires_grad_()
                torch.autograd.grad(torch.stack([loss(net, point) for net in nets]).sum(), point)
        torch.autograd.backward(loss(last, x))
        last.zero_grad(set_to_none=True)
        times.append(time.process_time() - begun)
    return min(times)


def in_a_child(arguments: list[str]) -> float | None:
    """Bare passes measured in a process of their own, which may die of an instruction it may not use."""
    child = subprocess.run(
        [sys.executable, __file__, "--child", *arguments], capture_output=True, text=True, check=False
    )
    return float(child.stdout) if child.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("LAYOUT", "DTYPE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.child:
        layout, dtype = given.child
        print(bare_passes(given.network, given.batch, 4, 1, layout=layout, dtype=dtype))
        return
    results: dict[str, Any] = {"network": given.network, "batch": given.batch, "gradients": GRADIENTS}
    for method, members in (("at", 1), ("barre", 2)):
        # Taken in turns: a machine that slows down for a while must not slow down only one of them.
        bare = step = float("inf")
        for _ in range(3):
            bare = min(bare, bare_passes(given.network, given.batch, given.steps // 2, members))
            step = min(step, engine_step(given.network, given.batch, given.steps // 2, method, members))
        results[f"{method}-{members}"] = {"step": step, "bare": bare, "ratio": step / bare}
        print(
            f"{method}, {members} members: step {step:.3f} s, bare passes {bare:.3f} s, ratio {step / bare:.3f}"
        )
    first = bare_passes(given.network, given.batch, 4, 1, layout="first")
    last = bare_passes(given.network, given.batch, 4, 1)
    results["layout"] = {"channels_first": first, "channels_last": last, "ratio": first / last}
    print(f"float32: channels first {first:.3f} s, channels_last {last:.3f} s, ratio {first / last:.2f}")
    low = in_a_child(["last", "bfloat16"])
    results["bfloat16"] = {"channels_last": low, "ratio": None if low is None else first / low}
    if low is None:
        print(f"bfloat16: does not work on this machine ({probe().reason})")
    else:
        print(
            f"bfloat16 channels_last {low:.3f} s: {first / low:.2f} times as fast as float32 channels first"
        )
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
