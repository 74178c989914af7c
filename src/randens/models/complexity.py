"""What one inference costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from randens.core.errors import InputError

__all__ = ["flops", "parameters"]


def flops(model: nn.Module, input_shape: Sequence[int] | None = None) -> int:
    """Floating-point operations of one inference, counted by torch: two for each multiply-accumulate of
    convolutions and linear layers; batch normalisation, ReLU and additions count nothing.

    `input_shape` is one image's, without the batch; None takes the model's own `input_shape`.

    Parameters
    ----------
    model : nn.Module
        A network.
    input_shape : sequence of int
        Of one input.

    Returns
    -------
    int
        Floating-point operations of one inference.

    Examples
    --------
    >>> flops(nn.Linear(4, 3), (4,))
    24
    """
    shape = getattr(model, "input_shape", None) if input_shape is None else input_shape
    if shape is None:
        raise InputError(
            "input_shape=None needs a model of randens.models; give it as (channels, height, width)"
        )
    parameter = next(model.parameters(), torch.zeros(()))
    x = torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype)
    training = [module for module in model.modules() if module.training]
    # Only the counting must not touch batch statistics or cost memory for gradients.
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(x)
    finally:
        for module in training:
            module.training = True
    return int(counter.get_total_flops())


def parameters(model: nn.Module) -> int:
    """Number of trainable weights.

    Parameters
    ----------
    model : nn.Module
        A network.

    Returns
    -------
    int
        How many numbers it has learned.

    Examples
    --------
    >>> parameters(nn.Linear(4, 3))
    15
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
