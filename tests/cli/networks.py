"""Small classifiers for the command line to work on."""

from __future__ import annotations

import torch
from torch import nn

from randens import models
from randens.data import Data

__all__ = ["trained"]


def trained(data: Data, seed: int) -> nn.Module:
    """A linear classifier after a few passes over a third of the data, different for every seed."""
    member = models.create("linear", classes=len(data.classes), input_shape=data.shape, seed=seed)
    optimizer = torch.optim.SGD(member.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(seed)
    part = data.subset(torch.randperm(len(data), generator=generator)[: len(data) // 3])
    for _ in range(5):
        for x, y in part.batches(64, generator=generator):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(member(x), y))
            optimizer.step()
    return member.eval()
