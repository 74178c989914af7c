"""Algorithm 1 (OSP) as printed in the paper, under attack; `randens.training.alpha` says when BARRE calls it.

Every α that is tried is evaluated by a fresh attack alone. `choose` in `randens.training.validation` makes
the same choice from all witnesses found so far, with fewer attacks.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from torch import Tensor

from randens.attacks.base import Attack
from randens.attacks.found import Cost
from randens.ensemble import RandomizedEnsemble
from randens.risk import candidates, project_simplex
from randens.training.methods import Weights, uniform
from randens.training.recipe import SamplingPart
from randens.training.validation import Validated, attacked

__all__ = ["MOST_CANDIDATES", "attacks_per_choice", "optimal_sampling_probability"]

MOST_CANDIDATES = 3
"""Up to this many members the paper tries the candidates of Theorems 1 and 2 instead of Algorithm 1."""


def attacks_per_choice(part: SamplingPart, members: int) -> int:
    """Return the largest number of attacks for one choice of α."""
    if members == 1 or part.method == "uniform":
        return 1
    if part.method == "sweep":
        return 10
    if part.method != "osp":
        return 1 + part.sweeps
    return len(candidates(members)) if members <= MOST_CANDIDATES else part.iterations


def optimal_sampling_probability(
    rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack, part: SamplingPart
) -> Validated:
    """α* by Algorithm 1: from uniform, T_o projected subgradient steps of size a/t, the best α is returned.

    Up to three members the candidates of Theorems 1 and 2 are attacked instead, as the paper does. The witnesses
    are those of the attack at the α returned; the cost is that of all attacks. x, y: the inputs of Eq. 17. attack: the
    oracle. part: `iterations` is T_o, `step` is a.
    """
    members = len(rec.members)
    tried: list[Validated] = []

    def judge(alpha: Weights) -> Validated:
        tried.append(attacked(rec.with_probs(alpha), x, y, attack))
        return tried[-1]

    if members <= MOST_CANDIDATES:
        for fractions in candidates(members):
            judge(np.array([float(share) for share in fractions]))
    else:
        alpha = uniform(members)
        for t in range(1, part.iterations + 1):
            # g: the share of inputs on which the attack at α fools each member (lines 6 to 10).
            gradient = judge(alpha).pool.profile().subgradient(alpha)
            alpha = project_simplex(alpha - part.step / t * gradient)
    # Ties go to the later α (line 13).
    best = min(reversed(tried), key=lambda choice: choice.risk)
    return dataclasses.replace(best, cost=sum((choice.cost for choice in tried), Cost()))
