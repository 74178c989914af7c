"""Random crops, mirror images and rotations of training images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from randens.core.errors import InputError


@dataclass(frozen=True)
class Augment:
    """Zero padding by `crop_padding` pixels, a random crop back to size, and a horizontal flip half the time.

    Images [n, channels, h, w] are first turned by up to `rotation` degrees. Each has an offset, flip and angle of its
    own from the generator that is passed, so a run can be repeated; the result is in channels_last layout.

    >>> Augment()(torch.rand(8, 3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    crop_padding: int = 4
    flip: bool = True
    rotation: float = 0.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """An augmented copy of the batch `x`."""
        if x.ndim != 4:
            raise InputError(f"x has shape {tuple(x.shape)}; augmentation takes images [n, channels, h, w]")
        n, _, h, w = x.shape
        if self.rotation:
            x = self._rotated(x, generator)
        pad = self.crop_padding
        # Drawn on the generator's device, so that a CPU generator gives the same crops on any device.
        offsets = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator, device=generator.device)
        top, left = offsets.to(x.device)
        rows, columns = top + torch.arange(h, device=x.device), left + torch.arange(w, device=x.device)
        if self.flip:
            mirrored = torch.rand(n, 1, generator=generator, device=generator.device) < 0.5
            columns = torch.where(mirrored.to(x.device), w + 2 * pad - 1 - columns, columns)
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, pad, pad, pad, pad))
        image = torch.arange(n, device=x.device)[:, None, None]
        return padded[image, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)

    def _rotated(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Every image turned about its center by an angle of its own; pixels from outside are 0."""
        angles = 2 * torch.rand(len(x), generator=generator, device=generator.device) - 1
        angles = angles.to(x.device) * math.radians(self.rotation)
        cos, sin, none = angles.cos(), angles.sin(), torch.zeros_like(angles)
        ratio = x.shape[2] / x.shape[3]
        maps = torch.stack([cos, -sin * ratio, none, sin / ratio, cos, none], dim=1).view(-1, 2, 3)
        grid = F.affine_grid(maps, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="nearest", align_corners=False)
