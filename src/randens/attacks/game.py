"""The linearised game between perturbation and members, solved for a whole batch without network passes.

min_{δ ∈ D} max_{λ ∈ simplex(T)} λ·(c + A δ): one perturbation that pushes every targeted member's linearised
margin below zero. λ is also a proof, in the linear model, that T is out of reach: the value of
the dual, min_δ λ·(c + A δ), is a lower bound for every δ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from randens.threat import Region

__all__ = ["Solution", "project_simplex", "solve_game"]

_CACHED = 2**18  # entries of A that are processed together
_SMALL = 400  # numbers of one matrix below which torch's batched product is a plain loop, slow along rows
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
    return _onto_simplex(v.shape[1], v)(v.masked_fill(~support, -torch.inf))


def _onto_simplex(columns: int, like: Tensor) -> Callable[[Tensor], Tensor]:
    """The projection onto the simplex of v [..., T], which is −∞ outside the support.

    (Σ of the j largest − 1)/j rises with j up to the number of columns that stay positive, and falls after it: its
    largest value is the threshold. For two columns that is half their difference, kept within ±½, around ½.
    """
    if columns == 2:
        halves = torch.tensor([[0.5, -0.5], [-0.5, 0.5]], device=like.device, dtype=like.dtype)
        return lambda v: torch.matmul(v, halves).clamp_(-0.5, 0.5).add_(0.5)
    inverse_ranks = 1.0 / torch.arange(1, columns + 1, device=like.device, dtype=like.dtype)

    def project(v: Tensor) -> Tensor:
        sums = v.sort(dim=-1, descending=True).values.cumsum(dim=-1).sub_(1)
        return (v - sums.mul_(inverse_ranks).amax(dim=-1, keepdim=True)).clamp_min_(0)

    return project


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


def _moved(current: Tensor, weights: Tensor, matrix: Tensor) -> Tensor:
    """current [k, 1, d] + weights [k, 1, T] · matrix [k, T, d]."""
    if matrix[0].numel() < _SMALL:
        return current + (matrix * weights.transpose(1, 2)).sum(dim=1, keepdim=True)
    return torch.baddbmm(current, weights, matrix)


def _play(
    c: Tensor, matrix: Tensor, support: Tensor, domain: Region, delta: Tensor, iterations: int
) -> Solution:
    """The iterations, for rows with several targets; `matrix` [k, T, d] is zero outside `support`.

    δ, λ and A·δ have a middle dimension of 1, which batched products want. An iteration of a small network's game is
    mostly the number of its operations, so there are as few as possible.
    """
    weights = (support.to(c.dtype) / support.sum(dim=1, keepdim=True)).unsqueeze(1)
    bounded = c.masked_fill(~support, 0.0)
    c = c.masked_fill(~support, -torch.inf).unsqueeze(1)
    onto_simplex = _onto_simplex(c.shape[2], c)
    transposed = matrix.transpose(1, 2)
    # Steps scaled to the sizes of δ's domain and of the simplex; their product stays below 1/‖A‖².
    operator = torch.linalg.matrix_norm(torch.bmm(matrix, transposed), ord="fro").sqrt()
    operator = operator.clamp_min(1e-20).unsqueeze(1)
    size = torch.linalg.vector_norm((domain.high - domain.low), dim=1, keepdim=True) / 2
    if domain.radius is not None:
        size = size.clamp(max=domain.radius)
    down = (-0.95 * size / operator).unsqueeze(1)
    up = (0.95 / (size.clamp_min(1e-20) * operator)).unsqueeze(1)
    pull = up * c
    current = domain.project(delta).unsqueeze(1)
    reached = torch.bmm(current, transposed)
    best, best_value = current.squeeze(1), (c + reached).amax(dim=(1, 2))
    floor, kept_weights = torch.full_like(best_value, -torch.inf), weights.squeeze(1)
    mean_delta, mean_weights = torch.zeros_like(current), torch.zeros_like(weights)
    close, done = _CLOSE * (size * operator).squeeze(1), torch.zeros_like(best_value, dtype=torch.bool)
    for count in range(1, iterations + 1):
        moved = _moved(current, down * weights, matrix)
        current = domain.project(moved.squeeze(1)).unsqueeze(1)
        before, reached = reached, torch.bmm(current, transposed)
        weights = onto_simplex((weights + pull).addcmul_(up, torch.lerp(before, reached, 2.0)))
        mean_delta.lerp_(current, 1 / count)
        mean_weights.lerp_(weights, 1 / count)
        if count % 5 == 0 or count == iterations:
            for candidate, there in ((current, reached), (mean_delta, torch.bmm(mean_delta, transposed))):
                value = (c + there).amax(dim=(1, 2))
                better = (value < best_value) & ~done
                best = torch.where(better.unsqueeze(1), candidate.squeeze(1), best)
                best_value = torch.where(better, value, best_value)
            slope = torch.bmm(mean_weights, matrix).squeeze(1)
            bound = (mean_weights.squeeze(1) * bounded).sum(dim=1) + domain.floor(slope)
            higher = (bound > floor) & ~done
            floor = torch.where(higher, bound, floor)
            kept_weights = torch.where(higher.unsqueeze(1), mean_weights.squeeze(1), kept_weights)
            done = best_value - floor <= close
            if bool(done.all()):
                break
    return Solution(best, best_value, floor, kept_weights)
