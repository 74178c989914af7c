"""Gradients of some members at some points; only computed ones take memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from randens.core.tensors import take

__all__ = ["Slopes"]


@dataclass(frozen=True)
class Slopes:
    """The gradient of member m at point k is values[place[k, m]]: values [p, d], place [k, M].

    A climb needs the gradients of one or two members per point. A table for all M members would be mostly zeros, which
    take time to fill and to copy. Where no gradient was computed, `place` is meaningless.
    """

    values: Tensor
    place: Tensor

    @classmethod
    def of(cls, table: Tensor) -> Slopes:
        """From the gradients of all members at all points [k, M, d]."""
        rows = torch.arange(table.shape[0] * table.shape[1], device=table.device)
        return cls(table.flatten(0, 1), rows.reshape(table.shape[:2]))

    @classmethod
    def none(cls, like: Tensor, members: int) -> Slopes:
        """No gradients at points like those in `like` [k, d]."""
        return cls(like[:0], torch.zeros(len(like), members, dtype=torch.int64, device=like.device))

    def __getitem__(self, rows: Tensor) -> Slopes:
        """Those at some of the points, by their numbers [j]."""
        return Slopes(self.values, self.place[rows])

    def at(self, points: Tensor, members: Tensor) -> Tensor:
        """The gradients [..., d] of members[...] at points[...], which are numbers."""
        place = self.place[points, members]
        return take(self.values, place.flatten()).reshape(*place.shape, self.values.shape[1])

    def joined(self, points: Tensor, members: Tensor, gradients: Tensor) -> Slopes:
        """With `gradients` [j, d] of members[j] at points[j]."""
        begin = len(self.values)
        place = self.place.clone()
        place[points, members] = torch.arange(begin, begin + len(gradients), device=place.device)
        return Slopes(torch.cat([self.values, gradients]) if begin else gradients, place)

    def table(self, wanted: Tensor) -> Tensor:
        """The gradients [k, M, d], zero where not `wanted` [k, M]."""
        rank, member = wanted.nonzero(as_tuple=True)
        dense = self.values.new_zeros(*wanted.shape, self.values.shape[1])
        dense[rank, member] = self.at(rank, member)
        return dense
