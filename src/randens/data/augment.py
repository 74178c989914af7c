"""Random crops and flips of a whole batch at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from randens.core.errors import InputError, whole

__all__ = ["Augment"]


@dataclass(frozen=True)
class Augment:
    """Zero padding by `crop_padding` pixels, a random crop back to size, and a horizontal flip half the time.

    Every image gets its own offset and flip, drawn from the generator that is passed, so a run can be
    repeated and continued.  [n, channels, h, w] in and out, any type; the result is in channels_last layout.

    Parameters
    ----------
    crop_padding : int
        Pixels of padding around an image before it is cropped at random.
    flip : bool
        Mirror half of the images.
    rotation : float
        Turn every image by an angle of at most so many degrees, before anything else.

    Examples
    --------
    >>> augment = Augment(crop_padding=4, flip=True)
    >>> augment(torch.rand(8, 3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    crop_padding: int = 4
    flip: bool = True
    rotation: float = 0.0

    def __post_init__(self) -> None:
        whole("crop_padding", self.crop_padding, 0)

    def __call__(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """An augmented copy of the batch `x`."""
        if x.ndim != 4:
            raise InputError(f"x has shape {tuple(x.shape)}; augmentation takes images [n, channels, h, w]")
        n, channels, h, w = x.shape
        if self.rotation:
            x = self._rotated(x, generator)
        pad = self.crop_padding
        # Drawn on the generator's device, so that a CPU generator gives the same crops on any device.
        offsets = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator, device=generator.device)
        top, left = offsets.to(x.device)
        pixels = x.permute(0, 2, 3, 1)
        if self.flip:
            mirrored = torch.rand(n, 1, 1, 1, generator=generator, device=generator.device) < 0.5
            pixels = torch.where(mirrored.to(x.device), pixels.flip(2), pixels)
        height, width = h + 2 * pad, w + 2 * pad
        padded = x.new_zeros(n, height, width, channels)
        padded[:, pad : pad + h, pad : pad + w] = pixels
        # With channels innermost, a row of a crop is one run of w·channels numbers: copy runs, not pixels.
        image = torch.arange(n, device=x.device)[:, None] * height
        row = torch.arange(h, device=x.device)
        starts = ((image + top + row) * width + left).flatten() * channels
        runs = padded.flatten().unfold(0, w * channels, 1)
        return runs.index_select(0, starts).view(n, h, w, channels).permute(0, 3, 1, 2)

    def _rotated(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Every image turned about its center by an angle of its own; pixels from outside are 0."""
        angles = 2 * torch.rand(len(x), generator=generator, device=generator.device) - 1
        angles = angles.to(x.device) * math.radians(self.rotation)
        cos, sin, none = angles.cos(), angles.sin(), torch.zeros_like(angles)
        ratio = x.shape[2] / x.shape[3]
        maps = torch.stack([cos, -sin * ratio, none, sin / ratio, cos, none], dim=1).view(-1, 2, 3)
        grid = F.affine_grid(maps, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="nearest", align_corners=False)
