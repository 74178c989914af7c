"""Exponential moving average of weights: smooths the last epochs and reduces robust overfitting."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["average"]


@torch.no_grad()
def average(target: nn.Module, source: nn.Module, decay: float, step: int) -> None:
    """target ← d·target + (1 − d)·source for weights and BatchNorm statistics, in place.

    d = min(decay, (1 + step)/(10 + step)): in early steps the average forgets its random start quickly.
    """
    rate = 1.0 - min(decay, (1 + step) / (10 + step))
    old = target.state_dict()
    new = source.state_dict()
    floating = [key for key, value in old.items() if value.is_floating_point()]
    torch._foreach_lerp_([old[k] for k in floating], [new[k] for k in floating], rate)
    for key, value in old.items():
        if not value.is_floating_point():
            value.copy_(new[key])
