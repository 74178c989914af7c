"""Several processes: Lightning Fabric starts or joins them; batches are divided and results combined here.

Every rank takes its part of every batch, gradients are averaged, and rank 0 alone writes files. Random numbers are
drawn for whole batches on every rank, so the number of ranks changes a result only by rounding. A single process
needs none of this and does not import Fabric, which takes seconds.
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

__all__ = ["Workers", "launched", "leads", "workers"]


class Workers:
    """The processes of this run; with `fabric` None there is one."""

    def __init__(self, device: torch.device, fabric: Any = None) -> None:
        self.device = device
        self.fabric = fabric
        self.rank: int = 0 if fabric is None else fabric.global_rank
        self.world: int = 1 if fabric is None else fabric.world_size

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def part(self, n: int) -> slice:
        """This rank's rows of a batch of n: consecutive, sizes differing by at most one."""
        return slice(n * self.rank // self.world, n * (self.rank + 1) // self.world)

    def wrap(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """A callable whose backward pass averages gradients over the ranks."""
        return module if self.fabric is None else self.fabric.setup_module(module, move_to_device=False)

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


@contextlib.contextmanager
def workers(device: str = "auto", devices: int | str = 1, nodes: int = 1) -> Iterator[Workers]:
    """The processes that a launcher started, or `devices` per node that Fabric starts, or just this one.

    Launchers are torchrun, srun, and any that sets RANK and WORLD_SIZE. An existing process group is used and not
    destroyed, so that several runs can share one.
    """
    wanted = pick_device(device)
    launcher, world, local = launched(wanted)
    if launcher:
        if devices not in (1, "auto", local) or nodes not in (1, world // local):
            raise InputError(
                f"devices is {devices} and nodes is {nodes}; the launcher started {world} processes, {local} per node"
            )
    else:
        local = _count(devices, wanted)
        world = local * nodes
    if world == 1:
        yield Workers(wanted)
        return
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    # Named explicitly: Fabric's own search misses srun in an interactive allocation and launchers it does not know.
    kinds: dict[str, Any] = {
        "rank": TorchElasticEnvironment,
        "srun": SLURMEnvironment,
        "": LightningEnvironment,
    }
    fabric = Fabric(
        accelerator=wanted.type,
        devices=local,
        num_nodes=world // local,
        strategy=DDPStrategy(
            cluster_environment=kinds[launcher](),
            broadcast_buffers=False,
            # Witnesses are gathered on the CPU, which NCCL alone would refuse, gradients on the GPUs.
            process_group_backend="cpu:gloo,cuda:nccl" if wanted.type == "cuda" else None,
        ),
    )
    shared = dist.is_initialized()
    fabric.launch()
    try:
        yield Workers(fabric.device, fabric)
    finally:
        # Objects that hold the process group are collected first, because gloo otherwise aborts some exits.
        del fabric
        gc.collect()
        if dist.is_initialized() and not shared:
            with contextlib.suppress(RuntimeError):
                dist.barrier()
            dist.destroy_process_group()


def launched(device: torch.device) -> tuple[str, int, int]:
    """(launcher, processes in all, processes per node): "rank" for RANK and WORLD_SIZE, "srun", or "" for none."""
    env = os.environ
    if "RANK" in env and "WORLD_SIZE" in env:
        world = int(env["WORLD_SIZE"])
        visible = torch.cuda.device_count() if device.type == "cuda" else world
        local = int(env.get("LOCAL_WORLD_SIZE", min(world, visible)))
        env.setdefault("LOCAL_RANK", str(int(env["RANK"]) % local))
        launcher = "rank"
    else:
        # Set only inside a step that srun started, not in the batch script around it.
        world, nodes = (int(env.get(f"SLURM_STEP_NUM_{name}", "1")) for name in ("TASKS", "NODES"))
        local, launcher = world // nodes if world % nodes == 0 else 0, "srun" if world > 1 else ""
        if world > 1:
            # The allocation may be larger than the step, and `srun -n` leaves the last one unset.
            env["SLURM_NTASKS"], env["SLURM_NNODES"] = str(world), str(nodes)
            env["SLURM_NTASKS_PER_NODE"] = str(local)
    if local < 1 or world % local:
        raise InputError(f"{world} processes do not divide evenly over the nodes; start as many on each")
    return launcher, world, local


def leads() -> bool:
    """Whether this is the process that prints, as far as the environment says; before any group exists."""
    env = os.environ
    rank = env.get("RANK") or env.get("SLURM_PROCID") or env.get("LOCAL_RANK") or "0"
    return int(rank) == 0 and int(env.get("NODE_RANK", "0")) == 0


def _count(devices: int | str, device: torch.device) -> int:
    """How many processes Fabric shall start on this machine."""
    there = torch.cuda.device_count() if device.type == "cuda" else max(2, os.cpu_count() or 1)
    if devices == "auto":
        return there if device.type == "cuda" else 1
    if not isinstance(devices, int) or not 1 <= devices <= there:
        kind = "CUDA devices" if device.type == "cuda" else "processor cores"
        raise InputError(f"devices is {devices!r}; this machine has {there} {kind}")
    return devices
