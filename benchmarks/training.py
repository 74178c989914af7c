"""What a training step costs beyond its bare forward and backward passes, and what layout, compiling and a
second process bring. ResNet-20, batch 128; three crafting gradients, unless a row says N-FGSM (one) or PGD-2.

The engine's step (batch, augmentation, random start, adversary, loss, optimiser, moving average, accounting) is
timed from outside, by its progress reports, against the same passes in a bare loop; both on one thread and in
processor time, so that other processes on the machine matter little. Two processes are compared with
one by the clock on the wall, one thread each, by the same recipe.

    python -m benchmarks.training
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import harness, machine
from benchmarks.harness import Goal, Row, Settings, Side, Timing, as_fast, interleaved, left_out, of_cost
from randens import data, models
from randens.attacks.members import folded
from randens.core.files import read_json, write_json
from randens.ensemble import frozen
from randens.training import Recipe, train

GRADIENTS = 3
NEAR_BARE = Goal(at_most=1.08)


@dataclass(frozen=True)
class Size:
    """Batch size and number of steps that are timed."""

    batch: int
    steps: int


def recipe(batch: int, method: str, members: int, **settings: Any) -> Recipe:
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
            "adversary": {"name": "pgd", "steps": GRADIENTS},
            "validation": {"attack": "fgsm", "size": 8},
            "sampling": {"method": "uniform"},
            "checkpoint": {"seconds": 1e6},
            **settings,
        }
    )


def images(count: int, split: str) -> data.Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return data.as_data((x, torch.arange(count) % 10), split=split, classes=10)


def engine_steps(
    chosen: Recipe, steps: int, clock: Callable[[], float], shared: Path | None = None
) -> list[float]:
    """Seconds of the engine's steps of the last member, the first left out.

    Several processes must train into one folder, `shared`.
    """
    moments: list[float] = []

    def progress(task: str, done: float, total: float) -> None:
        if task == "epoch" and done <= total:
            if done == 1:
                moments.clear()
            moments.append(clock())

    pair = (images(chosen.batch_size * steps, "train"), images(8, "validation"))
    with tempfile.TemporaryDirectory() as folder:
        train(chosen, shared or Path(folder) / "run", progress, data=pair)
    return [moments[k + 1] - moments[k] for k in range(steps - 1)]


class BareStep:
    """The forward and backward passes of one step and nothing else."""

    def __init__(
        self,
        batch: int,
        members: int,
        *,
        layout: str = "last",
        gradients: int = GRADIENTS,
    ) -> None:
        self.gradients = gradients
        memory = torch.channels_last if layout == "last" else torch.contiguous_format
        self.nets: list[nn.Module] = []
        # The engine's members normalise their inputs, which is a part of every pass.
        mean, std = images(batch, "train").mean_std()
        for seed in range(members):
            net: nn.Module = models.create(
                "resnet20", classes=10, input_shape=(3, 32, 32), mean=mean, std=std, seed=seed
            )
            net.to(memory_format=memory)  # type: ignore[call-overload]
            self.nets.append(net)
        # Earlier members are finished: like the engine, attack them with their BatchNorm folded.
        self.nets[:-1] = [folded(earlier.eval().requires_grad_(False)) for earlier in self.nets[:-1]]
        self.nets[-1].train()
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(batch, 3, 32, 32, generator=generator).contiguous(memory_format=memory)
        self.y = torch.arange(batch) % 10

    def loss(self, net: nn.Module, point: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(point), self.y)

    def __call__(self) -> None:
        last = self.nets[-1]
        with frozen(last):
            for _ in range(self.gradients):
                point = self.x.detach().requires_grad_()
                torch.autograd.grad(torch.stack([self.loss(net, point) for net in self.nets]).sum(), point)
        torch.autograd.backward(self.loss(last, self.x))
        last.zero_grad(set_to_none=True)


def step_rows(size: Size, rounds: int) -> Iterator[Row]:
    """The engine's step against its bare passes, in turns."""
    pgd2, three = {"name": "pgd", "steps": 2}, {"name": "pgd", "steps": GRADIENTS}
    for label, method, members, adversary, gradients in (
        ("N-FGSM", "at", 1, {"name": "n-fgsm"}, 1),
        ("PGD-2", "at", 1, pgd2, 2),
        (f"PGD-{GRADIENTS}", "barre", 2, three, GRADIENTS),
    ):
        bare = BareStep(size.batch, members, gradients=gradients)
        limits: list[float] = []
        steps: list[float] = []
        chosen = recipe(size.batch, method, members, adversary=adversary)
        for _ in range(rounds):
            bare()
            for _ in range(size.steps - 1):
                begun = time.process_time()
                bare()
                limits.append(time.process_time() - begun)
            steps += engine_steps(chosen, size.steps, time.process_time)
        # Per step the crafting passes over all members and one training pass of the last.
        passes = f"{gradients * members + 1} f {gradients * members + 1} b"
        yield of_cost(
            f"training step, {method}, {label}, M = {members}",
            Side("step", Timing.of(steps), passes=passes),
            Side("its passes, bare", Timing.of(limits), passes=passes),
            NEAR_BARE,
            note="one thread, processor time",
        )


def layout_rows(size: Size, repeats: int) -> Iterator[Row]:
    """Float32 channels first against channels_last."""
    cases = {
        "first": BareStep(size.batch, 1, layout="first"),
        "last": BareStep(size.batch, 1, layout="last"),
    }
    measured = interleaved(cases, repeats, warm_up=1, clock=time.process_time)
    first = Side("float32 channels first", measured["first"].timing)
    yield as_fast(
        "passes of a step, float32 channels_last",
        Side("float32 channels_last", measured["last"].timing),
        first,
        note="one thread, processor time",
    )


def process_rows(size: Size, rounds: int) -> Iterator[Row]:
    """One process against two: by the wall clock, one thread each."""
    if machine.cores() < 2:
        yield left_out("training step, two processes", "one process", "there is only one core")
        return
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for processes, found in times.items():
            found += in_processes(processes, size)
    yield as_fast(
        "training step, at, two processes",
        Side("two processes", Timing.of(times[2])),
        Side("one process", Timing.of(times[1])),
        note=f"batch {size.batch} split over gloo, one thread each",
    )


def compile_row(size: Size) -> Row:
    """Compiled members against eager ones. The first steps compile and are not counted."""
    compiled = engine_steps(recipe(size.batch, "at", 1, compile=True), size.steps + 2, time.process_time)[2:]
    eager = engine_steps(recipe(size.batch, "at", 1), size.steps, time.process_time)
    return as_fast(
        "training step, at, compiled",
        Side("compiled", Timing.of(compiled)),
        Side("eager", Timing.of(eager)),
        note="one thread, processor time, after compiling",
    )


def in_processes(count: int, size: Size) -> list[float]:
    """Wall seconds of the engine's steps in `count` processes, as the first of them sees them."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "steps.json"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(count),
            "--standalone",
        ]
        command += ["-m", "benchmarks.training", "worker", str(target), str(size.batch), str(size.steps)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        if done.returncode:
            raise RuntimeError(f"{count} processes: exit code {done.returncode}: {done.stderr[-300:]}")
        found: list[float] = read_json(target)
    return found


def worker(target: Path, size: Size) -> None:
    """One of several processes that train together."""
    from randens.core.distributed import workers

    torch.set_num_threads(1)
    with workers("cpu") as processes:
        steps = engine_steps(
            recipe(size.batch, "at", 1), size.steps, time.perf_counter, target.parent / "run"
        )
        if processes.is_main:
            write_json(target, steps)


def rows(settings: Settings) -> Iterator[Row]:
    torch.set_num_threads(1)
    size, rounds = (Size(16, 4), 2) if settings.quick else (Size(128, 6), 2)
    yield from step_rows(size, rounds)
    yield from layout_rows(size, 3 if settings.quick else 4)
    compiled = "training step, at, compiled"
    if settings.quick:
        yield left_out(compiled, "eager", "compiling takes minutes: left out of quick runs")
    else:
        try:
            yield compile_row(size)
        except Exception as error:  # Compiling needs a C++ compiler and fails in many ways.
            yield left_out(compiled, "eager", f"torch.compile does not work here ({type(error).__name__})")
    yield from process_rows(size, 1 if settings.quick else 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]), Size(int(sys.argv[3]), int(sys.argv[4])))
    else:
        raise SystemExit(harness.main(rows, __doc__))
