"""The linearised game between perturbation and members, solved for a whole batch without network passes.

min_{δ ∈ D} max_{λ ∈ simplex(T)} λ·(c + A δ): one perturbation that pushes every targeted member's linearised
margin below zero. λ is also a proof, in the linear model, that T is out of reach: the value of
the dual, min_δ λ·(c + A δ), is a lower bound for every δ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from randens.threat import Region

__all__ = ["Solution", "project_simplex", "solve_game"]

_CACHED = 2**18  # entries of A that are processed together
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
    return _onto_simplex(v.masked_fill(~support, -torch.inf), _inverse_ranks(v))


def _inverse_ranks(v: Tensor) -> Tensor:
    return 1.0 / torch.arange(1, v.shape[1] + 1, device=v.device, dtype=v.dtype)


def _onto_simplex(v: Tensor, inverse_ranks: Tensor) -> Tensor:
    """`project_simplex` of v [k, T], which is −∞ outside the support.

    (Σ of the j largest − 1)/j rises with j up to the number of columns that stay positive, and falls after it: its
    largest value is the threshold.
    """
    sums = v.sort(dim=1, descending=True).values.cumsum(dim=1).sub_(1)
    return (v - sums.mul_(inverse_ranks).amax(dim=1, keepdim=True)).clamp_min_(0)


def solve_game(
    c: Tensor, a: Tensor, support: Tensor, domain: Region, delta: Tensor, iterations: int
) -> Solution:
    """Primal-dual iterations (Chambolle and Pock) from `delta`; c [k, T], a [k, T, d], support bool [k, T].

    A single target has a closed form. Iterations continue after δ has fooled all targets, or after λ has
    proven that no δ can, because a better compromise fools more members. They end where δ is optimal by λ's
    bound. Rows of a batch do not depend on each other.
    """
    counts = support.sum(dim=1)
    solution = Solution(delta.clone(), c.new_zeros(len(c)), c.new_zeros(len(c)), torch.zeros_like(c))
    single = (counts == 1).nonzero().flatten()
    if len(single):
        target = support[single].int().argmax(dim=1)
        _store(solution, single, _alone(c[single, target], a[single, target], domain[single], delta[single]))
        solution.weights[single, target] = 1.0
    several = (counts > 1).nonzero().flatten()
    # Parts that fit the processor's cache for all iterations, grouped by the number of targets.
    several = several[counts[several].argsort(stable=True)]
    width = max(1, _CACHED // max(1, a.shape[1] * a.shape[2]))
    for rows in torch.split(several, width) if len(several) else ():
        columns = (
            support[rows].int().argsort(dim=1, descending=True, stable=True)[:, : int(counts[rows].max())]
        )
        inside = support[rows].gather(1, columns)
        matrix = a[rows.unsqueeze(1), columns] * inside.unsqueeze(2)
        part = _play(c[rows].gather(1, columns), matrix, inside, domain[rows], delta[rows], iterations)
        _store(solution, rows, part)
        solution.weights[rows] = torch.zeros_like(solution.weights[rows]).scatter(1, columns, part.weights)
    return solution


def _store(solution: Solution, rows: Tensor, part: Solution) -> None:
    solution.delta[rows], solution.value[rows], solution.floor[rows] = part.delta, part.value, part.floor


def _alone(c: Tensor, slope: Tensor, domain: Region, delta: Tensor) -> Solution:
    """Solve rows with one target: c [k], slope [k, d]. A slope of zero gives no move."""
    best = torch.where(slope == 0, delta, domain.lowest(slope))
    return Solution(
        best, c + (slope * best).sum(dim=1), c + domain.floor(slope), torch.ones_like(c).unsqueeze(1)
    )


def _play(
    c: Tensor, matrix: Tensor, support: Tensor, domain: Region, delta: Tensor, iterations: int
) -> Solution:
    """The iterations, for rows with several targets; `matrix` is zero outside `support`."""
    weights = support.to(c.dtype) / support.sum(dim=1, keepdim=True)
    bounded, c = c.masked_fill(~support, 0.0), c.masked_fill(~support, -torch.inf)
    inverse_ranks = _inverse_ranks(c)
    # Steps scaled to the sizes of δ's domain and of the simplex; their product stays below 1/‖A‖².
    operator = torch.linalg.matrix_norm(torch.bmm(matrix, matrix.transpose(1, 2)), ord="fro").sqrt()
    operator = operator.clamp_min(1e-20).unsqueeze(1)
    size = torch.linalg.vector_norm((domain.high - domain.low), dim=1, keepdim=True) / 2
    if domain.radius is not None:
        size = size.clamp(max=domain.radius)
    primal, dual = 0.95 * size / operator, 0.95 / (size.clamp_min(1e-20) * operator)
    current = domain.project(delta)
    # A·δ of the current point and of the mean: their values need no further product.
    reached = torch.bmm(matrix, current.unsqueeze(2)).squeeze(2)
    best, best_value = current.clone(), (c + reached).amax(dim=1)
    floor, kept_weights = torch.full_like(best_value, -torch.inf), weights
    mean_delta, mean_reached, mean_weights = (torch.zeros_like(t) for t in (current, reached, weights))
    close, done = _CLOSE * (size * operator).squeeze(1), torch.zeros_like(best_value, dtype=torch.bool)
    for count in range(1, iterations + 1):
        moved = torch.baddbmm(current.unsqueeze(1), (-primal * weights).unsqueeze(1), matrix).squeeze(1)
        current = domain.project(moved)
        before, reached = reached, torch.bmm(matrix, current.unsqueeze(2)).squeeze(2)
        weights = _onto_simplex(weights + dual * (c + (2 * reached - before)), inverse_ranks)
        mean_delta.lerp_(current, 1 / count)
        mean_reached.lerp_(reached, 1 / count)
        mean_weights.lerp_(weights, 1 / count)
        if count % 5 == 0 or count == iterations:
            for candidate, there in ((current, reached), (mean_delta, mean_reached)):
                value = (c + there).amax(dim=1)
                better = (value < best_value) & ~done
                best = torch.where(better.unsqueeze(1), candidate, best)
                best_value = torch.where(better, value, best_value)
            slope = torch.bmm(mean_weights.unsqueeze(1), matrix).squeeze(1)
            bound = (mean_weights * bounded).sum(dim=1) + domain.floor(slope)
            higher = (bound > floor) & ~done
            floor = torch.where(higher, bound, floor)
            kept_weights = torch.where(higher.unsqueeze(1), mean_weights, kept_weights)
            done = best_value - floor <= close
            if bool(done.all()):
                break
    return Solution(best, best_value, floor, kept_weights)
