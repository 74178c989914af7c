"""The precision of forward and backward passes; weights, losses and verdicts are always float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from randens.models.precision import bfloat16_pays

__all__ = ["arithmetic"]


def arithmetic(
    precision: str, device: torch.device, model: nn.Module
) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context for passes of `model`: "float32", "bfloat16", or "auto" for the faster one on this
    device.
    """
    convolutional = any(isinstance(m, nn.Conv2d) for m in model.modules())
    low = precision == "bfloat16" or (precision == "auto" and convolutional and bfloat16_pays(device.type))
    if not low:
        return contextlib.nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
