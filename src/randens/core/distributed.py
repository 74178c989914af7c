"""Several processes: divide batches among them and combine their results.

A single process needs none of this and imports nothing for it. Under ``torchrun`` or ``srun`` Lightning
Fabric sets up the processes (gloo on CPUs, NCCL on GPUs), every rank takes its part of every batch, gradients
are averaged, and rank 0 alone writes files. Random numbers are drawn for whole batches on every rank, so the
number of ranks changes the result only by rounding.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from randens.core.devices import pick_device
from randens.core.errors import InputError

__all__ = ["SyncedBatchNorm", "Workers", "pick_device", "workers"]


class Workers:
    """The processes of this run; with `fabric` None there is one."""

    def __init__(self, device: torch.device, fabric: Any = None) -> None:
        self.device = device
        self.fabric = fabric
        self.rank: int = 0 if fabric is None else fabric.global_rank
        self.world: int = 1 if fabric is None else fabric.world_size

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def part(self, n: int) -> slice:
        """This rank's rows of a batch of n: consecutive, sizes differing by at most one."""
        return slice(n * self.rank // self.world, n * (self.rank + 1) // self.world)

    def wrap(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """A callable whose backward pass averages gradients over the ranks."""
        if self.fabric is None:
            return module
        return self.fabric.setup_module(module, move_to_device=False)

    def backward(self, loss: Tensor) -> None:
        """Gradients of `loss`, averaged over ranks where the forward pass was wrapped."""
        if self.fabric is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.fabric.backward(loss)

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks."""
        if self.world > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def agreed(self, flag: bool) -> bool:
        """True on every rank as soon as it is true on one."""
        return bool(self.total(torch.tensor([float(flag)])).item() > 0) if self.world > 1 else flag

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.world > 1:
            dist.barrier()

    def prepare(self, module: nn.Module, synced: bool) -> nn.Module:
        """Make BatchNorm use the whole batch instead of this rank's part, if `synced`."""
        if synced and self.world > 1:
            _synchronise(module)
        return module


@contextlib.contextmanager
def workers(device: str) -> Iterator[Workers]:
    """The processes that ``torchrun`` or ``srun`` started, or just this one.

    At the end, objects that hold the process group are collected first, because gloo otherwise aborts some
    exits. An existing group is used and not destroyed, so that several runs can share one.
    """
    wanted = pick_device(device)
    world, local = _layout()
    if world == 1:
        yield Workers(wanted)
        return
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    # Witnesses are gathered on the CPU, which NCCL alone would refuse, gradients on the GPUs.
    backend = "cpu:gloo,cuda:nccl" if wanted.type == "cuda" else None
    fabric = Fabric(
        accelerator=wanted.type,
        devices=local,
        num_nodes=world // local,
        # Buffers stay local; BatchNorm is synchronised explicitly.
        strategy=DDPStrategy(broadcast_buffers=False, process_group_backend=backend),
    )
    shared = dist.is_initialized()
    fabric.launch()
    try:
        yield Workers(fabric.device, fabric)
    finally:
        del fabric
        gc.collect()
        if dist.is_initialized() and not shared:
            with contextlib.suppress(RuntimeError):
                dist.barrier()
            dist.destroy_process_group()


def _layout() -> tuple[int, int]:
    """(processes in all, processes on this node), as the launcher put them into the environment."""
    environment = os.environ
    if dist.is_available() and dist.is_torchelastic_launched():
        return int(environment["WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"])
    # Set only inside a step that srun started, not in the batch script around it.
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    nodes = int(environment.get("SLURM_STEP_NUM_NODES", "1"))
    if tasks % nodes:
        raise InputError(f"{tasks} tasks do not divide evenly over {nodes} nodes; use --ntasks-per-node")
    return tasks, tasks // nodes


class SyncedBatchNorm(nn.BatchNorm2d):
    """BatchNorm whose training statistics are those of all ranks' images together, on any backend."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        shape = (1, -1, 1, 1)
        pixels = x.numel() // x.shape[1]
        count = torch.tensor([float(pixels)], device=x.device)
        dist.all_reduce(count)
        # First the mean, then the deviations, because the one-pass formula loses digits in float32.
        mean = _sum_over_ranks(x.float().sum(dim=(0, 2, 3))) / count
        deviation = x.float() - mean.view(shape)
        variance = _sum_over_ranks(deviation.square().sum(dim=(0, 2, 3))) / count
        with torch.no_grad():
            rate = self.momentum if self.momentum is not None else 0.1
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.running_mean.lerp_(mean, rate)
            self.running_var.lerp_(variance * count / (count - 1), rate)
            self.num_batches_tracked.add_(1)
        output: Tensor = deviation * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(x.dtype)


class _SumOverRanks(torch.autograd.Function):
    """The sum over ranks. Every rank's loss depends on every rank's values, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ARG004
        summed = values.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _SumOverRanks.forward(ctx, gradients[0])


def _sum_over_ranks(values: Tensor) -> Tensor:
    return _SumOverRanks.apply(values)  # type: ignore[no-untyped-call]


def _synchronise(module: nn.Module) -> None:
    for name, child in module.named_children():
        if type(child) is nn.BatchNorm2d:
            synced = SyncedBatchNorm(child.num_features, child.eps, child.momentum, child.affine)
            synced.load_state_dict(child.state_dict())
            setattr(module, name, synced.to(next(child.buffers()).device).train(child.training))
        else:
            _synchronise(child)
