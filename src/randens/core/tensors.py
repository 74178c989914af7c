"""Tensor operations whose usual form in torch is several times as slow on a CPU.

Measured on [50, 3072] float32 with one thread: the largest absolute value by `torch.linalg.vector_norm` 410 µs and by
`amax` 26; ‖·‖₁ 135 and 33; rows by a tensor of numbers 91 and 17 by `index_select`; `torch.where` with a mask that no
processor can foresee 530 and 25 by `lerp`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["either", "norms", "take"]


def norms(values: Tensor, p: float, dim: int = -1) -> Tensor:
    """‖·‖_p along one dimension; NaN and infinity reach the result.

    Examples
    --------
    >>> norms(torch.tensor([[3.0, -4.0]]), 1.0), norms(torch.tensor([[3.0, -4.0]]), math.inf)
    (tensor([7.]), tensor([4.]))
    """
    if p == math.inf:
        return values.abs().amax(dim=dim)
    return values.abs().sum(dim=dim) if p == 1 else torch.linalg.vector_norm(values, p, dim=dim)


def take(values: Tensor, rows: Tensor) -> Tensor:
    """values[rows] for row numbers, in the layout of `values`."""
    return values.index_select(0, rows)


def either(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`yes` where `chosen`, elsewhere `no`, to the last bit; both must be finite, and `chosen` may broadcast.

    Examples
    --------
    >>> either(torch.tensor([True, False]), torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0]))
    tensor([1., 2.])
    """
    return torch.lerp(no, yes, chosen.to(no.dtype))
