"""Devices: choose one, move members there and back, send batches.

Members and batches are on the device; labels, witnesses and results are on the CPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from randens.core.errors import InputError


def native_bfloat16(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 by instructions of its own; only CUDA GPUs are trusted to say so."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def pick_device(name: str | torch.device | None = "auto") -> torch.device:
    """The device for a name; "auto" and None are a CUDA GPU (under a launcher this process's) if there is one."""
    if name is None or name == "auto":
        return pick_device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device is {name!r}; valid: auto, cpu, cuda, cuda:N") from error
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = int(os.environ.get("LOCAL_RANK", "0")) if found.index is None else found.index
        if index >= count:
            raise InputError(f"device is {str(name)!r}; torch sees {count} CUDA devices; use 'auto' or 'cpu'")
        return torch.device("cuda", index)
    if found.type == "mps":
        raise InputError(f"device is {str(name)!r}, which has no float64; use 'auto' or 'cpu'")
    return found


@contextlib.contextmanager
def on_device(module: nn.Module, device: str | torch.device | None = None) -> Iterator[torch.device]:
    """Move a module to a device, and back on leaving; None does not move one that is on an accelerator."""
    tensors = [*module.parameters(), *module.buffers()]
    places = {tensor.device for tensor in tensors}
    first = tensors[0].device if tensors else torch.device("cpu")
    stays = device is None and any(place.type != "cpu" for place in places)
    if stays and len(places) > 1:
        names = ", ".join(sorted(map(str, places)))
        raise InputError(f"the members are on {names}; say with device= where they shall run")
    wanted = first if stays else pick_device(device)
    moves = bool(places - {wanted})
    if moves:
        module.to(wanted)
    try:
        yield wanted
    finally:
        if moves:
            module.to(first)


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Switch TF32 off: newer GPUs otherwise round the factors of float32 products to 10 bits."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def send(x: Tensor, device: torch.device) -> Tensor:
    """A batch on a device; to a CUDA GPU through pinned memory and without waiting."""
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)
