"""The cost of one inference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from randens.core.errors import InputError


def flops(model: nn.Module, input_shape: Sequence[int] | None = None) -> int:
    """Floating-point operations of one inference, two for each multiply-accumulate, counted by torch.

    >>> flops(nn.Linear(4, 3), (4,))
    24
    """
    # Takes a second, which only those pay who count.
    from torch.utils.flop_counter import FlopCounterMode

    shape = getattr(model, "input_shape", None) if input_shape is None else input_shape
    if shape is None:
        raise InputError("input_shape is None; give it as (channels, height, width)")
    parameter = next(model.parameters(), torch.zeros(()))
    x = torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype)
    training = [module for module in model.modules() if module.training]
    # Counting must not change batch statistics or use memory for gradients.
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(x)
    finally:
        for module in training:
            module.training = True
    return int(counter.get_total_flops())


def parameters(model: nn.Module) -> int:
    """Number of trainable weights."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
