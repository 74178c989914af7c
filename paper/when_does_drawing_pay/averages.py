"""Networks for CIFAR-10 that see averages of 4×4 pixels: one core trains them in seconds per epoch.

A fully connected network on averages is one on pixels whose first weights are equal within each square. Under l2,
changes that differ within a square are wasted on it, so ε on pixels is ε / 4 on averages, up to the limits of a pixel.
Networks are trained on averages and kept, attacked and judged on pixels.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from randens.data import ImageData
from randens.models import Classifier, build

__all__ = ["SIDE", "averaged", "gathered", "spread"]

SIDE = 4


def averaged(data: ImageData) -> ImageData:
    """The images' averages over squares of `SIDE` × `SIDE` pixels."""
    parts = [F.avg_pool2d(data[start : start + 5000][0], SIDE) for start in range(0, len(data), 5000)]
    return replace(data, stored=torch.cat(parts))


def spread(network: Classifier) -> Classifier:
    """The network on pixels that says of an image what `network` says of its averages."""
    channels, height, width = network.input_shape
    first = torch.unflatten(_first(network), 1, (channels, height, width)) / SIDE**2
    wide = first.repeat_interleave(SIDE, dim=2).repeat_interleave(SIDE, dim=3)
    return _with(network, (channels, height * SIDE, width * SIDE), wide)


def gathered(network: Classifier) -> Classifier:
    """The network on averages that `spread` makes `network` of."""
    channels, height, width = network.input_shape
    first = torch.unflatten(_first(network), 1, (channels, height, width))
    narrow = F.avg_pool2d(first, SIDE) * SIDE**2
    return _with(network, (channels, height // SIDE, width // SIDE), narrow)


def _first(network: Classifier) -> Tensor:
    return next(network.parameters()).detach()


def _with(network: Classifier, shape: tuple[int, int, int], first: Tensor) -> Classifier:
    """The same network for images of `shape`, with these weights of its first layer."""
    made = build(network.architecture | {"input_shape": list(shape)})
    name = next(name for name, _ in network.named_parameters())
    made.load_state_dict(network.state_dict() | {name: first.flatten(1)})
    return made
