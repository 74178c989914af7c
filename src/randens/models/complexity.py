"""The cost of one inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from randens.core.errors import InputError

__all__ = ["flops", "parameters"]


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the FLOPs of every operation from torch's table.

    torch's `FlopCounterMode` does the same, but it imports the compiler, which takes as long as importing
    torch.
    """

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        options = dict(kwargs or {})
        out = func(*args, **options)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **options, out_val=out))
        return out


def flops(model: nn.Module, input_shape: Sequence[int] | None = None) -> int:
    """Floating-point operations of one inference, counted by torch: two for each multiply-accumulate of
    convolutions and linear layers; batch normalisation, ReLU and additions count nothing.

    Parameters
    ----------
    model : nn.Module
        A network.
    input_shape : sequence of int, optional
        Of one input, without the batch; the model's own `input_shape` by default.

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
    # Counting must not change batch statistics or use memory for gradients.
    model.eval()
    try:
        with torch.no_grad(), _Counter() as counter:  # type: ignore[no-untyped-call]
            model(x)
    finally:
        for module in training:
            module.training = True
    return int(counter.total)


def parameters(model: nn.Module) -> int:
    """Number of trainable weights.

    Parameters
    ----------
    model : nn.Module
        A network.

    Returns
    -------
    int
        The number of trainable weights.

    Examples
    --------
    >>> parameters(nn.Linear(4, 3))
    15
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
