"""Networks that a recipe names by a function, for tests."""

from __future__ import annotations

from torch import nn


def net(classes: int, hidden: int = 8) -> nn.Module:
    """A small network for 8×8 images of one channel."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))
