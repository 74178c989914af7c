"""ARC and ARC-R (Dbouk and Shanbhag 2022; Appendix B.3): fool members one after another.

For each member in turn, the perturbation moves towards the member's nearest decision boundary. The move stays
inside a local ball around the current point and is long enough to pass the boundary after scaling back into
that ball.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from randens.attacks.base import Attack, register
from randens.attacks.search import Search
from randens.attacks.walk import Plane, Walk
from randens.core.errors import InputError
from randens.core.tensors import norms, take
from randens.threat import Threat

__all__ = ["arc", "binary_linear_arc"]

_RHO = 0.05  # ρ/ε: distance past the boundary that a move aims at


def arc(
    s: Search,
    point: Tensor,
    *,
    steps: int,
    radius: float,
    hyperplanes: int,
    order: Callable[[Search], Sequence[int]],
) -> None:
    """Algorithm 2 of ARC with the changes of Appendix B.3, from `point` = x + δ; `order(s)` orders the members.

    K = `steps`, G = `hyperplanes`, and the local ball has radius b = `radius`·ε. For a member
    that is already fooled, the point moves back to its boundary, as in the paper. The move is kept only if
    another member is fooled instead; without such exchanges half of the planted optima are missed. If the
    move was refused, the next move for that member at the same point goes further past the boundary instead.
    """
    b = radius * s.threat.eps
    walk = Walk(s, point)
    for _ in range(steps):
        delta = walk.step()  # x + δ
        local = torch.zeros_like(point)  # δ_l
        for position, i in enumerate(order(s)):
            rows = walk.rows()
            if not len(rows):
                return
            rows = rows[~s.safe[rows, i]]
            if s.probs[i] == 0 or not len(rows):
                continue
            # w and ζ of the nearest of G boundaries of f_i
            plane, again = walk.boundary(rows, i, hyperplanes)
            back = walk.errors[rows, i] & ~again
            # b(δ_l + βg)/‖δ_l + βg‖
            here = take(delta, rows)
            pulled = _pull(take(local, rows), here, plane, back, s.threat, b, first=position == 0)
            candidate = s.project(rows, here + pulled)
            accepted = walk.accept(rows, candidate, i, plane)
            local[rows[accepted]] = take(pulled, accepted.nonzero().flatten())


def _pull(
    local: Tensor, centre: Tensor, plane: Plane, fooled: Tensor, threat: Threat, b: float, *, first: bool
) -> Tensor:
    """Return local − β·μ(w), scaled back to length b: towards the boundary, or back to it for a fooled
    member.

    The length of the first move does not matter, because it is scaled. A later move has length β, just enough
    to pass its boundary after scaling.
    """
    shape = (-1,) + (1,) * (local.dim() - 1)
    side = torch.where(fooled, -1.0, 1.0).to(local.dtype)
    residual = side * plane.distance
    # ζ, the boundary's distance from the local centre, by the same hyperplane.
    zeta = residual - side * plane.along(local)
    beta = torch.full_like(zeta, b)
    if not first:
        reach = (b - zeta).clamp_min(1e-6 * b)
        beta = torch.where(zeta < b, b / reach * residual.abs() + _RHO * threat.eps, beta)
    stride = beta.clamp(max=1e3 * threat.eps)
    pulled = threat.step(centre + local, -side.reshape(shape) * plane.normal, stride) - centre
    length = norms(pulled.flatten(1), threat.p).clamp_min(1e-20)
    scaled: Tensor = pulled * (b / length).reshape(shape)
    return scaled


def binary_linear_arc(
    weights: Tensor, biases: Tensor, x: Tensor, y: Tensor, probs: Tensor, threat: Threat
) -> Tensor:
    """ARC for binary linear members sign(w_i·x + b_i), y ∈ {−1, +1}: one pass with exact distances.

    weights [M, d], biases [M], x [n, d] → perturbed inputs [n, d] (without a box). Consistent: if some member
    can be fooled inside the ball, the returned point fools some member.
    """
    if weights.dim() != 2 or x.dim() != 2 or weights.shape[1] != x.shape[1]:
        raise InputError(f"weights {tuple(weights.shape)} and x {tuple(x.shape)} must be [M, d] and [n, d]")
    eps = threat.eps
    delta = torch.zeros_like(x)
    value = (_wrong(weights, biases, x, y).double() @ probs.double()).clone()
    for i in probs.argsort(descending=True, stable=True).tolist():
        norm = norms(weights[i], threat.q)
        # Distance to the boundary, negative if wrong already.
        signed = y * (x @ weights[i] + biases[i]) / norm
        direction = threat.steepest(-y.unsqueeze(1) * weights[i])
        moved = y * ((x + delta) @ weights[i] + biases[i]) / norm
        # The first move may have any length, because it is scaled to ε. Later ones must pass the boundary
        # after scaling.
        grip = (eps - signed).clamp_min(1e-12)
        beta = torch.where(
            delta.flatten(1).any(dim=1), eps / grip * moved.abs() + _RHO * eps, eps + 0 * moved
        )
        pulled = delta + beta.unsqueeze(1) * direction
        length = norms(pulled, threat.p).clamp_min(1e-20)
        pulled = pulled * (eps / length).unsqueeze(1)
        risk = _wrong(weights, biases, x + pulled, y).double() @ probs.double()
        accept = (signed < eps) & (risk >= value)
        delta = torch.where(accept.unsqueeze(1), pulled, delta)
        value = torch.where(accept, risk, value)
    return x + delta


def _wrong(weights: Tensor, biases: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return y.unsqueeze(1) * (x @ weights.T + biases) < 0


def _by_weight(s: Search) -> Sequence[int]:
    return s.probs.argsort(descending=True, stable=True).tolist()


def _default_radius(members: int) -> float:
    """The paper's settings: a local ball of ε for ensembles, ε/4 for a single model."""
    return 1.0 if members > 1 else 0.25


@dataclass(frozen=True, kw_only=True)
class _ARC(Attack):
    steps: int = 20
    hyperplanes: int = 2
    step: float | None = None  # local radius in units of ε; None: the paper's choice for the ensemble's size
    margins_only = True


@register("arc")
@dataclass(frozen=True, kw_only=True)
class ARC(_ARC):
    """Attacking Randomized ensembles of Classifiers: members in order of their weights.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.ARC(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("arc", attack.threat)
    ('arc', True)
    """

    def search(self, s: Search) -> None:
        radius = self.step or _default_radius(s.members)
        arc(s, s.start(), steps=self.steps, radius=radius, hyperplanes=self.hyperplanes, order=_by_weight)


@register("arc-r")
@dataclass(frozen=True, kw_only=True)
class ARCR(_ARC):
    """ARC with a fresh random order of the members at every step, so that restarts from the input differ.

    Examples
    --------
    >>> import randens
    >>> attack = randens.attacks.ARCR(randens.Threat("linf", 8 / 255))
    >>> attack.name, attack == randens.attacks.create("arc-r", attack.threat)
    ('arc-r', True)
    """

    def search(self, s: Search) -> None:
        radius = self.step or _default_radius(s.members)
        arc(s, s.x.clone(), steps=self.steps, radius=radius, hyperplanes=self.hyperplanes, order=Search.order)
