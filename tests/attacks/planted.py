"""Planted cases: linear members in conflict, with ground truth from the exact solver.

Members that agree test nothing: one perturbation fools them all. Here each class difference w_i has the share
`CONFLICT` of the members' mean taken away, so that what moves the input towards one boundary moves it away from
others. A member's margin is between 0.2 and 1.2 of what ε can do to it, so that four in five can be fooled alone.
Nothing is chosen per attack or per norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat
from randens.attacks import exact

CONFLICT = 0.9
MARGINS = (0.2, 1.2)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Planted:
    """An ensemble of linear members, n inputs with labels, and the threat they are attacked under."""

    rec: RandomizedEnsemble
    x: Tensor
    y: Tensor
    threat: Threat


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A member with these weights [C, d] and biases [C]."""
    member = nn.Linear(weight.shape[1], weight.shape[0]).to(weight.dtype)
    with torch.no_grad():
        member.weight.copy_(weight)
        member.bias.copy_(bias)
    return member


def planted(
    norm: str,
    *,
    n: int,
    members: int = 5,
    d: int = 20,
    classes: int = 2,
    boxed: bool = False,
    probs: list[float] | None = None,
    conflict: float = CONFLICT,
    margins: tuple[float, float] = MARGINS,
    seed: int = 0,
) -> Planted:
    """Conflicting linear members and inputs whose margins are `margins` of what ε can do to each member alone.

    With `boxed`, inputs lie in [0, 1] and about a third of their coordinates so near an end that the box cuts the
    ball there; the margins are then what ε could do without it.
    """
    generator = torch.Generator().manual_seed(seed)
    eps = 0.1 if boxed else 1.0
    threat = Threat(norm, eps, (0.0, 1.0) if boxed else None)
    low, high = margins
    # One direction per member and wrong class: rows[i, c]·x + offset is the margin of y = 0 against class c + 1.
    rows = torch.randn(members, classes - 1, d, generator=generator)
    rows = rows - conflict * rows.mean(dim=0)
    rows = rows / torch.linalg.vector_norm(rows, threat.q, dim=2, keepdim=True)
    fractions = low + (high - low) * torch.rand(n, members, classes - 1, generator=generator)
    wanted = (fractions * eps).flatten(1)
    flat = rows.flatten(0, 1)
    if boxed:
        # A common centre in the box; margins are reached by a small least-norm shift of each input around it.
        centre = 0.05 + 0.9 * torch.rand(d, generator=generator)
        centre = torch.where(torch.rand(d, generator=generator) < 1 / 3, 0.03 * torch.ones(d), centre)
        offset = (high + low) / 2 * eps - flat @ centre
        x = centre + (wanted - (high + low) / 2 * eps) @ torch.linalg.pinv(flat).T
        x = x.clamp(0.0, 1.0)
    else:
        offset = torch.zeros(len(flat))
        x = wanted @ torch.linalg.pinv(flat).T
    offset = offset.reshape(members, classes - 1)
    zero = torch.zeros(1, d)
    networks = [
        linear(torch.cat([zero, -rows[i]]), torch.cat([torch.zeros(1), -offset[i]])) for i in range(members)
    ]
    y = torch.zeros(n, dtype=torch.int64)
    return Planted(RandomizedEnsemble(networks, probs).eval(), x, y, threat)


def unequal(norm: str, *, n: int, seed: int = 0) -> Planted:
    """Every member can be fooled alone (margins of .2 to .9 of ε), and α is drawn from a Dirichlet distribution.

    Here a maximal set need not have a large probability.
    """
    probs = np.random.default_rng(seed).dirichlet(np.ones(5))
    return planted(norm, n=n, probs=probs.tolist(), margins=(0.2, 0.9), seed=1000 + seed)


def truth(case: Planted) -> Array:
    """The exact optimum of every input, [n]."""
    probs = case.rec.probs.numpy()
    problems = exact.problems(case.rec.members, case.x, case.y, case.threat)
    return np.array([exact.optimum(problem, probs).value for problem in problems])


def share_solved(risk: Tensor, optimum: Array) -> float:
    """The share of inputs on which an attack reached the optimum."""
    return float((risk.numpy() >= optimum - 1e-9).mean())
