"""CROWN: linear lower bounds of a network's outputs, by going backward through it (Zhang et al. 2018).

A ReLU whose input v lies in [l, u], l < 0 < u, lies between two lines. Going backward from Σ_j a_j relu(v_j), a
coefficient a_j ≥ 0 takes the lower line and a_j < 0 the upper one, so that what arrives at the input is a linear
function below the output, for all inputs of the perturbation set.

The backward pass is torch's: it has the exact transposes of affine operations, and a custom ReLU returns the
coefficients of its lines. The constant needs no extra computation either. At the clean input x the true
network gives s·z(x); replacing relu(v) by its line changes that by a·(line(v) − relu(v)) ≤ 0 for each ReLU. So

    s·z(x + δ) ≥ s·z(x) + Σ_ReLUs a·(line(v(x)) − relu(v(x))) + A·δ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Bounds = Sequence[tuple[Tensor, Tensor]]

_ROWS = 1 << 21  # numbers per layer and pass: keeps the working set in the cache


@dataclass(frozen=True)
class Lower:
    """R linear functions below R outputs: value + slope·δ, with value [R] and slopes [R, d]."""

    value: Tensor
    slopes: Tensor


def crown(
    member: nn.Module,
    x: Tensor,
    rows: Tensor,
    directions: Callable[[Tensor], Tensor],
    bounds: Bounds,
    at: int | None = None,
    widest: int = 1,
) -> Lower:
    """Linear lower bounds of directions·output for inputs x[rows], R of them.

    The output is the logits, or with `at` the input of that ReLU. directions(rows of this chunk's positions) gives
    the coefficients [r, ...] shaped like the output. bounds: of every ReLU's input, [n, ...] each. widest: the
    number of values in the largest layer, which decides how many rows go together.
    """
    size = max(1, _ROWS // max(widest, x[0].numel()))
    values, slopes = [], []
    for positions in torch.split(torch.arange(len(rows)), size):
        chosen = rows[positions]
        point = x[chosen].detach().requires_grad_(True)
        gaps: list[Tensor] = []
        with torch.enable_grad():
            with _Relaxed(bounds, chosen, gaps, at):
                try:
                    output = member(point.clone())  # a network may change its input in place, a leaf may not
                except _ReachedError as found:
                    output = found.args[0]
            coefficients = directions(positions)
            here = (output.detach() * coefficients).flatten(1).sum(dim=1)
            (slope,) = torch.autograd.grad(output, point, coefficients)
        values.append(here + sum(gaps, torch.zeros_like(here)))
        slopes.append(slope.flatten(1))
    return Lower(torch.cat(values), torch.cat(slopes))


class _ReachedError(Exception):
    """The requested ReLU is reached, with this input; later layers are not needed."""


class _Relaxed(TorchFunctionMode):
    """Within this context every ReLU is one whose backward pass gives the coefficients of its lines."""

    def __init__(self, bounds: Bounds, rows: Tensor, gaps: list[Tensor], at: int | None) -> None:
        super().__init__()
        self.bounds, self.rows, self.gaps, self.at = bounds, rows, gaps, at
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, options = getattr(func, "__name__", ""), dict(kwargs or {})
        if name not in ("relu", "relu_"):
            return func(*args, **options)
        value = args[0] if args else options["input"]
        if self.count == self.at:
            raise _ReachedError(value)
        low, high = self.bounds[self.count]
        self.count += 1
        in_place = name == "relu_" or options.get("inplace", args[1] if len(args) > 1 else False)
        before = value.clone() if in_place else value
        after: Tensor = _Relu.apply(before, low[self.rows], high[self.rows], self.gaps)  # type: ignore[no-untyped-call]
        return value.copy_(after) if in_place else after


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, low: Tensor, high: Tensor, gaps: list[Tensor]) -> Tensor:
        ctx.save_for_backward(value, low, high)
        ctx.gaps = gaps
        return value.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *coefficients: Any) -> Any:
        value, low, high = ctx.saved_tensors
        (a,) = coefficients
        unstable = (low < 0) & (high > 0)
        active = (low >= 0).to(a.dtype)
        rise = high / (high - low).clamp_min(1e-300)
        upper = torch.where(unstable, rise, active)
        offset = torch.where(unstable, -rise * low, torch.zeros_like(low))
        # Of the lines through 0 below an unstable ReLU, the one that leaves the smaller area.
        lower = torch.where(unstable, (high > -low).to(a.dtype), active)
        above, below = a.clamp_min(0), a.clamp_max(0)
        true = value.clamp_min(0)
        gap = above * (lower * value - true) + below * (upper * value + offset - true)
        ctx.gaps.append(gap.flatten(1).sum(dim=1))
        return above * lower + below * upper, None, None, None
