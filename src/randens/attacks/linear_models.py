"""A cache of linear models: the members' margins and gradients at one point of every input."""

from __future__ import annotations

import torch
from torch import Tensor


class LinearModels:
    """Margins [n, M], gradients [n, M, d] and verdicts [n, M] at `points` [n, ...], where `have` [n, M] is true."""

    def __init__(self, x: Tensor, errors: Tensor) -> None:
        self.x, self.have, self.errors = x, torch.zeros_like(errors), torch.zeros_like(errors)
        self.classes = 0  # runners-up that the models look at; models of one number are kept at a time

    def known(self, rows: Tensor, points: Tensor, classes: int) -> Tensor:
        """Bool [k, M]: the models at `points` that are here."""
        if classes != self.classes:
            return torch.zeros_like(self.have[rows])
        return self.have[rows] & (points == self.points[rows]).flatten(1).all(dim=1)[:, None]

    def add(
        self, rows: Tensor, member: int, points: Tensor, classes: int, models: tuple[Tensor, ...]
    ) -> None:
        """Keep one member's margins [k], gradients [k, d] and verdicts [k]; those at other points are forgotten."""
        if not len(rows):
            return
        if classes != self.classes:
            self.classes, self.points = classes, torch.full_like(self.x, torch.nan)
            self.have = torch.zeros_like(self.have)
            self.margin = self.x.new_zeros(self.have.shape)
            self.slope = self.x.new_zeros(*self.have.shape, self.x[0].numel())
        self.have[rows[(points != self.points[rows]).flatten(1).any(dim=1)]] = False
        self.points[rows], self.have[rows, member] = points, True
        margin, slope, errors = models
        self.margin[rows, member], self.slope[rows, member] = margin.to(self.margin.dtype), slope
        self.errors[rows, member] = errors

    def get(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Margins [k, M], gradients [k, M, d] and verdicts [k, M]."""
        if not self.classes:
            shape = self.have[rows].shape
            return self.x.new_zeros(shape), self.x.new_zeros(*shape, self.x[:1].numel()), self.errors[rows]
        return self.margin[rows], self.slope[rows], self.errors[rows]
