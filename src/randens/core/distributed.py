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
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from randens.core.devices import pick_device
from randens.core.errors import InputError, whole


@dataclass
class Workers:
    """The processes of this run, `world` of them, of which this is number `rank`."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def part(self, n: int) -> slice:
        """This rank's rows of a batch of n: consecutive, sizes differing by at most one."""
        return slice(n * self.rank // self.world, n * (self.rank + 1) // self.world)

    def wrap(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """A callable whose backward pass averages gradients over the ranks."""
        if self.world == 1:
            return module
        return nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks."""
        if self.world > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def agreed(self, flag: bool) -> bool:
        """True on every rank as soon as it is true on one."""
        return bool(self.total(torch.tensor([float(flag)])).item() > 0)

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.world > 1:
            dist.barrier()


@contextlib.contextmanager
def workers(device: str = "auto", devices: int | str = 1, nodes: int = 1) -> Iterator[Workers]:
    """The processes of a launcher (torchrun, srun ...), or `devices` per node that Fabric starts, or just this one.

    An existing process group is used and not destroyed, so that several runs can share one.
    """
    wanted = pick_device(device)
    world, local = launched(wanted)
    there = torch.cuda.device_count() if wanted.type == "cuda" else max(2, os.cpu_count() or 1)
    if world > 1 and (devices not in (1, "auto", local) or nodes not in (1, world // local)):
        raise InputError(
            f"devices is {devices} and nodes is {nodes}; the launcher started {world} processes, {local} per node"
        )
    started = world > 1
    if not started:
        usual = there if wanted.type == "cuda" else 1
        local = usual if devices == "auto" else whole("devices", devices, 1, there)
        world = local * whole("nodes", nodes, 1, 1 << 16)
    if world == 1:
        yield Workers(wanted)
        return
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    strategy = DDPStrategy(
        # Named explicitly: Fabric's own search misses launchers that it does not know.
        cluster_environment=TorchElasticEnvironment() if started else LightningEnvironment(),
        # Witnesses are gathered on the CPU, which NCCL alone would refuse, gradients on the GPUs.
        process_group_backend="cpu:gloo,cuda:nccl" if wanted.type == "cuda" else None,
    )
    fabric = Fabric(accelerator=wanted.type, devices=local, num_nodes=world // local, strategy=strategy)
    shared = dist.is_initialized()
    fabric.launch()
    try:
        yield Workers(fabric.device, fabric.global_rank, fabric.world_size)
    finally:
        # Objects that hold the process group are collected first, because gloo otherwise aborts some exits.
        del fabric, strategy
        gc.collect()
        if dist.is_initialized() and not shared:
            with contextlib.suppress(RuntimeError):
                dist.barrier()
            dist.destroy_process_group()


def launched(device: torch.device) -> tuple[int, int]:
    """Processes in all and per node, as RANK and WORLD_SIZE say, which srun's variables are translated to."""
    env = os.environ
    # Set only inside a step that srun started, not in the batch script around it.
    if "RANK" not in env and "SLURM_STEP_NUM_TASKS" in env:
        tasks, nodes = int(env["SLURM_STEP_NUM_TASKS"]), int(env.get("SLURM_STEP_NUM_NODES", "1"))
        env.update(RANK=env.get("SLURM_PROCID", "0"), WORLD_SIZE=str(tasks))
        env.update(LOCAL_RANK=env.get("SLURM_LOCALID", "0"), LOCAL_WORLD_SIZE=str(tasks // nodes))
        from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

        hosts = env.get("SLURM_STEP_NODELIST", env.get("SLURM_NODELIST", "127.0.0.1"))
        env.setdefault("MASTER_ADDR", SLURMEnvironment.resolve_root_node_address(hosts))
        env.setdefault("MASTER_PORT", str(20_000 + int(env.get("SLURM_JOB_ID", "0")) % 10_000))
    world = int(env.get("WORLD_SIZE", "1")) if "RANK" in env else 1
    visible = torch.cuda.device_count() if device.type == "cuda" else world
    local = int(env.get("LOCAL_WORLD_SIZE", min(world, visible))) if world > 1 else 1
    if local < 1 or world % local:
        raise InputError(f"{world} processes do not divide evenly over the nodes; start as many on each")
    if world > 1:
        env.setdefault("LOCAL_RANK", str(int(env["RANK"]) % local))
    return world, local
