"""The linearised game between perturbation and members, solved for a whole batch without network passes.

min_{δ ∈ D} max_{λ ∈ simplex(T)} λ·(c + A δ): one perturbation that pushes every targeted member's linearised
margin below zero. λ is at the same time the proof, for the linear model, that T is hopeless:
the value of the dual, min_δ λ·(c + A δ), is a lower bound on what any δ can reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from randens.threat import Region

__all__ = ["Solution", "project_simplex", "solve_game"]


@dataclass(frozen=True)
class Solution:
    """delta [k, d]; value [k] = max over targets of c + A·delta; floor [k] ≤ the game's value, from λ [k, T]."""

    delta: Tensor
    value: Tensor
    floor: Tensor
    weights: Tensor


def project_simplex(v: Tensor, support: Tensor) -> Tensor:
    """Nearest point of the simplex over the columns where `support` is true; v, support [k, T]."""
    v = v.masked_fill(~support, -torch.inf)
    ordered = v.sort(dim=1, descending=True).values
    ranks = torch.arange(1, v.shape[1] + 1, device=v.device, dtype=v.dtype)
    sums = torch.where(torch.isfinite(ordered), ordered, torch.zeros_like(ordered)).cumsum(dim=1) - 1
    inside = torch.isfinite(ordered) & (ordered - sums / ranks > 0)
    count = inside.sum(dim=1, keepdim=True).clamp_min(1)
    threshold = sums.gather(1, count - 1) / count
    return (v - threshold).clamp_min(0).masked_fill(~support, 0.0)


def solve_game(
    c: Tensor, a: Tensor, support: Tensor, domain: Region, delta: Tensor, iterations: int
) -> Solution:
    """Primal-dual iterations (Chambolle and Pock) from `delta`; c [k, T], a [k, T, d], support bool [k, T].

    A single target has a closed form. All iterations are made, even where δ wins or λ proves that none can: a
    better compromise fools more members on the way, and no row depends on those it shares the batch with.
    """
    matrix = a * support.unsqueeze(2)
    several = (support.sum(dim=1) > 1).nonzero().flatten()
    gradient = matrix.sum(dim=1)
    best = torch.where(gradient == 0, delta, domain.lowest(gradient))
    alone = Solution(
        best, _worst(c, matrix, support, best), _floor(c, matrix, support, domain), support.to(c.dtype)
    )
    if not len(several):
        return alone
    played = _play(c[several], matrix[several], support[several], domain[several], delta[several], iterations)
    return Solution(
        alone.delta.index_copy(0, several, played.delta),
        alone.value.index_copy(0, several, played.value),
        alone.floor.index_copy(0, several, played.floor),
        alone.weights.index_copy(0, several, played.weights),
    )


def _play(
    c: Tensor, matrix: Tensor, support: Tensor, domain: Region, delta: Tensor, iterations: int
) -> Solution:
    """The iterations, for rows with several targets; `matrix` is zero outside `support`."""
    weights = support.to(c.dtype) / support.sum(dim=1, keepdim=True)
    # Steps scaled to the sizes of δ's domain and of the simplex; their product stays below 1/‖A‖².
    operator = torch.linalg.matrix_norm(torch.bmm(matrix, matrix.transpose(1, 2)), ord="fro").sqrt()
    operator = operator.clamp_min(1e-20).unsqueeze(1)
    size = torch.linalg.vector_norm((domain.high - domain.low), dim=1, keepdim=True) / 2
    if domain.radius is not None:
        size = size.clamp(max=domain.radius)
    primal, dual = 0.95 * size / operator, 0.95 / (size.clamp_min(1e-20) * operator)
    current = domain.project(delta)
    best, best_value = current, _worst(c, matrix, support, current)
    floor, kept_weights = torch.full_like(best_value, -torch.inf), weights
    mean_delta, mean_weights = torch.zeros_like(current), torch.zeros_like(weights)
    for count in range(1, iterations + 1):
        gradient = torch.bmm(weights.unsqueeze(1), matrix).squeeze(1)
        following = domain.project(current - primal * gradient)
        ahead = torch.bmm(matrix, (2 * following - current).unsqueeze(2)).squeeze(2)
        weights = project_simplex(weights + dual * (c + ahead), support)
        current = following
        mean_delta.lerp_(current, 1 / count)
        mean_weights.lerp_(weights, 1 / count)
        if count % 5 == 0 or count == iterations:
            for candidate in (current, mean_delta):
                value = _worst(c, matrix, support, candidate)
                better = value < best_value
                best = torch.where(better.unsqueeze(1), candidate, best)
                best_value = torch.where(better, value, best_value)
            slope = torch.bmm(mean_weights.unsqueeze(1), matrix).squeeze(1)
            bound = (mean_weights * c.masked_fill(~support, 0.0)).sum(dim=1) + domain.floor(slope)
            higher = bound > floor
            floor = torch.where(higher, bound, floor)
            kept_weights = torch.where(higher.unsqueeze(1), mean_weights, kept_weights)
    return Solution(best, best_value, floor, kept_weights)


def _floor(c: Tensor, matrix: Tensor, support: Tensor, domain: Region) -> Tensor:
    """A lower bound on the game's value for single targets."""
    return c.masked_fill(~support, 0.0).sum(dim=1) + domain.floor(matrix.sum(dim=1))


def _worst(c: Tensor, matrix: Tensor, support: Tensor, delta: Tensor) -> Tensor:
    values = c + torch.bmm(matrix, delta.unsqueeze(2)).squeeze(2)
    return values.masked_fill(~support, -torch.inf).amax(dim=1)
