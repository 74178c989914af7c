"""Augmentation equals a plain loop over images, draws fairly, and touches no other generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from randens.core.errors import InputError
from randens.training.augment import Augment


def reference(image: np.ndarray, top: int, left: int, flip: bool, pad: int) -> np.ndarray:
    """One crop of one image [channels, h, w], by the definition."""
    h, w = image.shape[1:]
    turned = image[:, :, ::-1] if flip else image
    padded = np.pad(turned, ((0, 0), (pad, pad), (pad, pad)))
    return padded[:, top : top + h, left : left + w]


@pytest.mark.parametrize("shape", [(40, 3, 9, 7), (40, 1, 8, 8)])
def test_every_result_is_one_of_the_possible_crops(shape: tuple[int, ...]) -> None:
    pad = 2
    x = torch.randint(1, 255, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    y = Augment(crop_padding=pad)(x, torch.Generator().manual_seed(1))
    assert y.dtype == torch.uint8
    assert torch.equal(x, before)
    again = Augment(crop_padding=pad)(
        x.float().contiguous(memory_format=torch.channels_last), torch.Generator().manual_seed(1)
    )
    assert torch.equal(again, y.float())
    used = set()
    for image, result in zip(x.numpy(), y.numpy(), strict=True):
        matches = [
            (top, left, flip)
            for top in range(2 * pad + 1)
            for left in range(2 * pad + 1)
            for flip in (False, True)
            if np.array_equal(reference(image, top, left, flip, pad), result)
        ]
        assert len(matches) == 1
        used.add(matches[0])
    assert len(used) > 20, "every image has its own draw"


def test_offsets_and_flips_are_uniform() -> None:
    """A one-hot pixel in the middle shows where each crop landed."""
    n, pad = 20_000, 1
    x = torch.zeros(n, 1, 3, 4)
    x[:, :, 1, 1] = 1
    y = Augment(crop_padding=pad)(x, torch.Generator().manual_seed(0))
    # Unflipped, the pixel lands in columns 0..2; flipped, in 1..3; rows 0..2 either way.
    counts = y.sum((0, 1))
    expected = torch.tensor([1.0, 2.0, 2.0, 1.0]).expand(3, 4) / 18 * n
    assert counts.sum() == n
    assert float(((counts - expected).square() / expected).sum()) < 31.3  # χ² with 11 degrees, p = 0.001


def test_the_generator_decides_everything_and_the_global_one_is_untouched() -> None:
    x = torch.rand(16, 3, 8, 8)
    before = torch.get_rng_state()
    augment = Augment()
    first = augment(x, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(augment(x, generator), first)
    assert not torch.equal(augment(x, generator), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"x has shape \(3, 8, 8\)"):
        Augment()(torch.rand(3, 8, 8), torch.Generator())
