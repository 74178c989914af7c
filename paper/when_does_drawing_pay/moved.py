"""Training images of digits turned, scaled and shifted a little: copies against overfitting.

The study's networks are more robust on their training images than on others, single networks and ensembles alike. Both
are trained on the same copies. Only the images themselves are judged.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from randens.data import ImageData

__all__ = ["COPIES", "moved"]

COPIES = 8
TURN = 0.05  # radians
SCALE = 0.04
SHIFT = 0.05  # of half an image's side: 0.2 pixels of 8


def moved(data: ImageData) -> ImageData:
    """`COPIES` copies of every image, each moved at random; the same at every call."""
    x, y = data[: len(data)]
    x, y = x.repeat(COPIES, 1, 1, 1), y.repeat(COPIES)
    generator = torch.Generator().manual_seed(0)
    turn, wide, high, right, down = 2 * torch.rand(5, len(y), generator=generator) - 1
    turn, wide, high = TURN * turn, 1 + SCALE * wide, 1 + SCALE * high
    rows = (
        torch.stack([wide * turn.cos(), -high * turn.sin(), SHIFT * right], dim=1),
        torch.stack([wide * turn.sin(), high * turn.cos(), SHIFT * down], dim=1),
    )
    grid = F.affine_grid(torch.stack(rows, dim=1), list(x.shape), align_corners=False)
    stored = F.grid_sample(x, grid, padding_mode="zeros", align_corners=False)
    return replace(data, stored=stored, y=y)
