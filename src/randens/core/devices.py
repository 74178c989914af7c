"""Where tensors are: devices, several processes, safetensors files.

Members and batches are on the device; labels, witnesses and results are on the CPU. Of several processes every rank
takes its part of every batch, gradients are averaged, and rank 0 alone writes files. Random numbers are drawn for whole
batches on every rank, so the number of ranks changes a result only by rounding.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

from randens.core.errors import InputError, shown, whole
from randens.core.files import AnyPath, file_errors, read_file


def pick_device(name: str | torch.device | None = "auto") -> torch.device:
    """The device for a name; "auto" and None are a CUDA GPU (under a launcher this process's) if there is one."""
    if name is None or name == "auto":
        return pick_device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device is {shown(name)}; valid: auto, cpu, cuda, cuda:N") from error
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = int(os.environ.get("LOCAL_RANK", "0")) if found.index is None else found.index
        if not 0 <= index < count:
            raise InputError(f"device is {str(name)!r}; torch sees {count} CUDA devices; use 'auto' or 'cpu'")
        return torch.device("cuda", index)
    if found.type == "mps":
        raise InputError(f"device is {str(name)!r}, which has no float64; use 'auto' or 'cpu'")
    return found


@contextlib.contextmanager
def on_device(module: nn.Module, device: str | torch.device | None = None) -> Iterator[torch.device]:
    """Move a module to a device, and back on leaving; None does not move one that is on an accelerator."""
    places = [tensor.device for tensor in (*module.parameters(), *module.buffers())] or [torch.device("cpu")]
    stays = device is None and {place.type for place in places} != {"cpu"}
    if stays and len(set(places)) > 1:
        names = ", ".join(sorted(map(str, set(places))))
        raise InputError(f"the members are on {names}; say with device= where they shall run")
    wanted = places[0] if stays else pick_device(device)
    if set(places) == {wanted}:
        yield wanted
        return
    try:
        module.to(wanted)
        yield wanted
    finally:
        module.to(places[0])


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Gradients on, no inference mode, no autocast or TF32, new tensors on the CPU; all as before on leaving."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    # Newer GPUs otherwise round the factors of float32 products to 10 bits.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    device = contextlib.nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    try:
        autocast = (torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda"))
        with torch.inference_mode(False), torch.enable_grad(), device, next(autocast), next(autocast):
            yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def is_dense(x: object) -> bool:
    """Whether it is a tensor of plain numbers: not sparse, nested, quantized, complex, float8 or on the device meta."""
    kept = (
        isinstance(x, Tensor)
        and x.layout == torch.strided
        and not (x.is_meta or x.is_nested or x.dtype.is_complex)
    )
    return kept and not x.is_quantized and not str(x.dtype).startswith("torch.float8")  # type: ignore[attr-defined]


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
        with warnings.catch_warnings():  # torch 2.13 renames the option, and 2.6 has this name only
            warnings.simplefilter("ignore", FutureWarning)
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
    started = world > 1  # a launcher decides how many there are, whatever a recipe says
    if not started:
        gpus = torch.cuda.device_count() if wanted.type == "cuda" else 0
        most = gpus or max(2, os.cpu_count() or 1)
        local = max(1, gpus) if devices == "auto" else whole("devices", devices, 1, most)
        world = local * nodes
    if world == 1:
        yield Workers(wanted)
        return
    # Takes seconds, which a single process does not pay.
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
    if world == 1:
        return 1, 1
    visible = torch.cuda.device_count() if device.type == "cuda" else world
    local = int(env.get("LOCAL_WORLD_SIZE", min(world, visible)))
    if world % local:
        raise InputError(f"{world} processes do not divide evenly over the nodes; start as many on each")
    env.setdefault("LOCAL_RANK", str(int(env["RANK"]) % local))
    return world, local


def read_tensors(path: AnyPath, largest: int = 1 << 36) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    content = read_file(path, largest)
    with file_errors("read", path):
        tensors = safetensors.torch.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return tensors, header.get("__metadata__", {})


def tensor_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """SHA-256 of names, dtypes, shapes, metadata and bytes."""
    ordered = sorted(tensors.items())
    # A header of all sizes comes first, so that no two different contents give the same stream of bytes.
    header = [[k, str(t.dtype).removeprefix("torch."), [*t.shape], t.nbytes] for k, t in ordered]
    made = hashlib.sha256(json.dumps([metadata or {}, header], sort_keys=True).encode())
    for _, tensor in ordered:
        made.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()
