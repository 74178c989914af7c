"""The linearised game between perturbation and members, solved for a whole batch without network passes.

min_{δ ∈ D} max_{λ ∈ simplex(T)} λ·(c + A δ): one perturbation that pushes every targeted member's linearised
margin below zero. λ is also a proof, in the linear model, that T is out of reach: the value of
the dual, min_δ λ·(c + A δ), is a lower bound for every δ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from randens.attacks.slopes import Slopes
from randens.core.tensors import either, take
from randens.threat import Region

__all__ = ["Solution", "project_simplex", "solve_game"]

_CACHED = 2**18  # entries of A that are processed together
_SMALL = 400  # numbers of one matrix below which torch's batched product is a plain loop, slow along rows
_FEW = 16  # such matrices up to which that loop is still the fastest way
_LISTED = 4  # columns up to which the thresholds of all their subsets are one product
_BISECTIONS = 12  # of the weights of two targets
_LOOK = 10  # iterations between two looks at how good the current point and the mean of all are
_HUGE = 1e30  # instead of infinity, of which products make NaN
_CLOSE = 1e-4  # relative to the largest change by δ: iterations stop this close to the optimum


@dataclass(frozen=True)
class Solution:
    """delta [k, d]; value [k] = max over targets of c + A·delta; floor [k] ≤ the game's value, from λ [k, T]."""

    delta: Tensor
    value: Tensor
    floor: Tensor
    weights: Tensor


def project_simplex(v: Tensor, support: Tensor) -> Tensor:
    """Nearest point of the simplex over the columns where `support` is true; v, support [k, T]."""
    return _onto_simplex(v.shape[1], v)(v.masked_fill(~support, -_HUGE))


def _onto_simplex(columns: int, like: Tensor) -> Callable[[Tensor], Tensor]:
    """The projection onto the simplex of v [..., T], which is −`_HUGE` outside the support.

    (Σ of the j largest − 1)/j rises with j up to the number of columns that stay positive, and falls after it: its
    largest value is the threshold. It is the largest over all subsets, too, which needs no sorting. For two columns
    that is half their difference, kept within ±½, around ½.
    """
    if columns == 2:
        halves = torch.tensor([[0.5, -0.5], [-0.5, 0.5]], device=like.device, dtype=like.dtype)
        return lambda v: torch.matmul(v, halves).clamp_(-0.5, 0.5).add_(0.5)
    ranks = torch.arange(1, columns + 1, device=like.device)
    inverse_ranks = 1.0 / ranks.to(like.dtype)
    numbers = torch.arange(1, 2 ** min(columns, _LISTED), device=like.device).unsqueeze(1)
    subsets = ((numbers >> (ranks[:_LISTED] - 1)) & 1).to(like.dtype)
    shares = subsets / subsets.sum(dim=1, keepdim=True)
    less = -shares.amax(dim=1)

    def listed(v: Tensor) -> Tensor:
        return (v - F.linear(v, shares, less).amax(dim=-1, keepdim=True)).clamp_min_(0)

    def sorted_(v: Tensor) -> Tensor:
        sums = v.sort(dim=-1, descending=True).values.cumsum(dim=-1).sub_(1)
        return (v - sums.mul_(inverse_ranks).amax(dim=-1, keepdim=True)).clamp_min_(0)

    return listed if columns <= _LISTED else sorted_


def solve_game(
    c: Tensor,
    a: Slopes,
    support: Tensor,
    domain: Region,
    delta: Tensor,
    iterations: int,
    weights: Tensor | None = None,
) -> Solution:
    """Primal-dual iterations (Chambolle and Pock); c [k, T], A's rows a, support bool [k, T].

    They begin at `delta` and at the λ in `weights` [k, T], the simplex's centre by default; the λ of a similar game
    saves half of the iterations.
    A single target has a closed form, and two targets in a box are found by bisection. Iterations continue after δ
    has fooled all targets, or after λ has proven that no δ can, because a better compromise fools more members. They
    end where δ is optimal by λ's bound. Rows of a batch do not depend on each other.
    """
    counts = support.sum(dim=1)
    weights = support.to(c.dtype) / counts.unsqueeze(1) if weights is None else weights
    solution = Solution(delta.clone(), c.new_zeros(len(c)), c.new_zeros(len(c)), torch.zeros_like(c))
    single = (counts == 1).nonzero().flatten()
    if len(single):
        target = support[single].int().argmax(dim=1)
        slope, start = a.at(single, target), take(delta, single)
        _store(solution, single, _alone(c[single, target], slope, domain[single], start))
        solution.weights[single, target] = 1.0
    pairs = (counts == 2).nonzero().flatten() if domain.radius is None else single[:0]
    if len(pairs):
        columns = support[pairs].int().topk(2, dim=1).indices
        first, second = (a.at(pairs, each) for each in columns.unbind(dim=1))
        gaps, start = c[pairs].gather(1, columns), take(delta, pairs)
        with torch.inference_mode(c.device.type == "cpu"):
            part = _pair(gaps, first, second, domain[pairs], start)
        _store(solution, pairs, part)
        solution.weights[pairs] = torch.zeros_like(c[pairs]).scatter(1, columns, part.weights)
    several = (counts > (2 if domain.radius is None else 1)).nonzero().flatten()
    # Parts that fit the processor's cache for all iterations, grouped by the number of targets.
    several = several[counts[several].argsort(stable=True)]
    width = max(1, _CACHED // max(1, c.shape[1] * delta.shape[1]))
    for rows in torch.split(several, width) if len(several) else ():
        columns = (
            support[rows].int().argsort(dim=1, descending=True, stable=True)[:, : int(counts[rows].max())]
        )
        inside = support[rows].gather(1, columns)
        # Targets come first; the places after them are filled with the first one, and then with zeros.
        filled = torch.where(inside, columns, columns[:, :1])
        matrix = a.at(rows.unsqueeze(1), filled) * inside.unsqueeze(2)
        # Without autograd's records, which take a tenth of the time on a CPU; what is kept is copied out of `part`.
        with torch.inference_mode(c.device.type == "cpu"):
            gaps, start = c[rows].gather(1, columns), take(delta, rows)
            first = weights[rows].gather(1, columns)
            part = _play(gaps, matrix, inside, domain[rows], start, iterations, first)
        _store(solution, rows, part)
        solution.weights[rows] = torch.zeros_like(solution.weights[rows]).scatter(1, columns, part.weights)
    return solution


def _store(solution: Solution, rows: Tensor, part: Solution) -> None:
    solution.delta[rows], solution.value[rows], solution.floor[rows] = part.delta, part.value, part.floor


def _alone(c: Tensor, slope: Tensor, domain: Region, delta: Tensor) -> Solution:
    """Solve rows with one target: c [k], slope [k, d]. A slope of zero gives no move."""
    best = domain.lowest(slope, delta)
    return Solution(
        best, c + (slope * best).sum(dim=1), c + domain.floor(slope), torch.ones_like(c).unsqueeze(1)
    )


def _pair(c: Tensor, first: Tensor, second: Tensor, domain: Region, start: Tensor) -> Solution:
    """Solve rows with two targets in a box: c [k, 2], slopes first, second [k, d]; `start` [k, d] where a slope is 0.

    With the weight λ on the first target and 1 − λ on the second, the lowest δ(λ) is a corner of the box. By how much
    the first target is above the second there falls with λ. Bisection encloses the λ at which it changes its sign;
    between the two corners lies the δ at which both targets are equal, or the better corner, if λ is 0 or 1.
    """
    gap, slope = c[:, :1] - c[:, 1:], first - second

    def corner(weight: Tensor) -> tuple[Tensor, Tensor]:
        """δ(λ), and by how much the first target is above the second there."""
        lowest = domain.lowest(torch.addcmul(second, weight, slope), start)
        return lowest, gap + _products(lowest, slope)

    low, high = torch.zeros_like(gap), torch.ones_like(gap)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = corner(middle)[1] > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    (near, above), (far, below) = corner(low), corner(high)
    above, below = above.clamp_min(0), -below.clamp(max=0)
    best = torch.lerp(near, far, above / (above + below).clamp_min(1e-30))
    value = torch.maximum(c[:, :1] + _products(best, first), c[:, 1:] + _products(best, second))
    weight = torch.cat([low, high], dim=1)
    floors = c[:, 1:] + weight * gap
    floors += torch.stack([domain.floor(torch.addcmul(second, each, slope)) for each in (low, high)], dim=1)
    floor, higher = floors.max(dim=1, keepdim=True)
    weight = weight.gather(1, higher)
    return Solution(best, value.flatten(), floor.flatten(), torch.cat([weight, 1 - weight], dim=1))


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Inner products [k, 1] of rows a, b [k, d]."""
    return torch.bmm(a.unsqueeze(1), b.unsqueeze(1).transpose(1, 2)).flatten(1)


def _moved(current: Tensor, weights: Tensor, matrix: Tensor, scale: Tensor) -> Tensor:
    """current [k, 1, d] + scale [k, 1, 1] · weights [k, 1, T] · matrix [k, T, d]."""
    if matrix[0].numel() < _SMALL and len(matrix) > _FEW:
        return torch.addcmul(current, scale, (matrix * weights.transpose(1, 2)).sum(dim=1, keepdim=True))
    return torch.baddbmm(current, scale * weights, matrix)


def _play(
    c: Tensor,
    matrix: Tensor,
    support: Tensor,
    domain: Region,
    delta: Tensor,
    iterations: int,
    weights: Tensor,
) -> Solution:
    """The iterations, for rows with several targets; `matrix` [k, T, d] is zero outside `support`.

    Everything has a middle dimension of 1, which batched products want. An iteration of a small network's game is
    mostly the number of its operations, so there are as few as possible: `matrix` and c are scaled by λ's step, and
    c is added by the product.
    """
    domain = Region(domain.low.unsqueeze(1), domain.high.unsqueeze(1), domain.radius, domain.p)
    support, weights = support.unsqueeze(1), weights.unsqueeze(1)
    onto_simplex = _onto_simplex(c.shape[1], c)
    # Steps scaled to the sizes of δ's domain and of the simplex; their product stays below 1/‖A‖².
    square = torch.bmm(matrix, matrix.transpose(1, 2))
    operator = torch.linalg.matrix_norm(square, ord="fro", keepdim=True).sqrt().clamp_min(1e-20)
    size = torch.linalg.vector_norm((domain.high - domain.low), dim=2, keepdim=True) / 2
    if domain.radius is not None:
        size = size.clamp(max=domain.radius)
    size = size.clamp_min(1e-20)
    up = 0.95 / (size * operator)
    step = -size.square()  # δ's step over λ's
    matrix = up * matrix
    transposed = matrix.transpose(1, 2)
    pull = (up * c.unsqueeze(1)).clamp(-_HUGE, _HUGE)
    offset = pull.masked_fill(~support, 0.0).transpose(1, 2)
    pull = pull.masked_fill(~support, -_HUGE)
    current = domain.project(delta.unsqueeze(1))
    reached = torch.baddbmm(pull, current, transposed)  # up · (c + A·δ)
    best, best_value = current, reached.amax(dim=2, keepdim=True)
    floor, kept_weights = torch.full_like(best_value, -torch.inf), weights
    mean_delta, mean_weights = torch.zeros_like(current), torch.zeros_like(weights)
    close, left = 0.95 * _CLOSE, torch.ones_like(best_value, dtype=torch.bool)
    for count in range(1, iterations + 1):
        current = domain.project(_moved(current, weights, matrix, step))
        before, reached = reached, torch.baddbmm(pull, current, transposed)
        weights = onto_simplex(torch.lerp(before, reached, 2.0).add_(weights))
        mean_delta.lerp_(current, 1 / count)
        mean_weights.lerp_(weights, 1 / count)
        if count % _LOOK == 0 or count == iterations:
            for candidate, there in (
                (current, reached),
                (mean_delta, torch.baddbmm(pull, mean_delta, transposed)),
            ):
                value = there.amax(dim=2, keepdim=True)
                better = (value < best_value) & left
                best = either(better, candidate, best)
                best_value = torch.where(better, value, best_value)
            bound = domain.floor(torch.bmm(mean_weights, matrix)).unsqueeze(2)
            bound = torch.baddbmm(bound, mean_weights, offset)
            higher = (bound > floor) & left
            floor = torch.where(higher, bound, floor)
            kept_weights = torch.where(higher, mean_weights, kept_weights)
            left = best_value - floor > close
            if not bool(left.any()):
                break
    value, floor = ((each / up).flatten() for each in (best_value, floor))
    return Solution(best.squeeze(1), value, floor, kept_weights.squeeze(1))
