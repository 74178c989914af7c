"""Column generation: train the next member on the attacker's mixed strategy against the earlier members.

α and the attacker play a zero-sum game whose columns are the members. Over stored witnesses the value of the
game is that of a linear program, and the multipliers of its cuts say how often the attacker plays each
witness of an input. If a new member's risk against that mixed strategy is below the value of the game, its
reduced cost is negative and the value decreases. If the value does not decrease, no more members are added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randens.risk import optimal_sampling
from randens.risk.lp import CutProgram
from randens.training.adversaries import Adversary, Start, Victims
from randens.witness import WitnessPool

__all__ = ["Strategy", "attackers_strategy", "improves"]

_TOLERANCE = 1e-6
_MOST_CUTS = 200


@dataclass(frozen=True)
class Strategy:
    """The attacker's mixed strategy against members with optimal α: at every input, `chosen[t]` with probability
    `mass[t]`.

    pool: the witnesses, with their perturbed inputs. chosen: rows of the pool [t, n], -1 where no member is fooled.
    value: the risk of the optimal α `probs` over the pool; the attacker's strategy has at least this risk for
    any α.
    """

    pool: WitnessPool
    mass: NDArray[np.float64]
    chosen: NDArray[np.int64]
    probs: NDArray[np.float64]
    value: float

    def draw(self, points: Tensor, inputs: NDArray[np.int64], seed: int) -> Tensor:
        """Return `points` with some rows replaced by the attacker's perturbed inputs: those whose `inputs` is
        an input of the pool (-1: none) and whose drawn witness is stored."""
        played = np.random.default_rng(seed).choice(len(self.mass), size=len(inputs), p=self.mass)
        rows = np.where(inputs >= 0, self.chosen[played, inputs], -1)
        known = np.flatnonzero(rows >= 0)
        drawn = points.clone()
        assert self.pool.x_adv is not None
        drawn[torch.from_numpy(known).to(points.device)] = torch.from_numpy(self.pool.x_adv[rows[known]]).to(
            points
        )
        return drawn

    def against(self, fooled: NDArray[np.bool_]) -> float:
        """Return the risk of a member under the strategy; `fooled` says which witnesses of the pool fool it."""
        known = self.chosen >= 0
        hits = np.where(known, fooled[np.where(known, self.chosen, 0)], False)
        return float(self.mass @ hits.mean(axis=1))


def attackers_strategy(craft: Adversary, victims: Victims, start: Start) -> Strategy:
    """The strategy over witnesses that `craft` finds on each victim alone, on each pair and on all of them."""
    count = len(victims.members)
    pairs = [victims.some([i, j]) for i in range(count) for j in range(i)] if count > 2 else []
    targets = [*(victims.only(i) for i in range(count)), *pairs, victims]
    tried = [start.x, *(craft.craft(target, start) for target in targets)]
    fooled = []
    for points in tried:
        with torch.no_grad():
            fooled.append((victims.logits(points).argmax(dim=2) != start.y).T.cpu().numpy())
    n = len(start.x)
    pool = WitnessPool(
        n,
        count,
        np.tile(np.arange(n), len(tried)),
        np.concatenate(fooled),
        x_adv=torch.cat(tried).detach().cpu().contiguous().numpy(),
        sources="training",
    )
    return _solved(pool)


def _solved(pool: WitnessPool) -> Strategy:
    """By cutting planes: a cut is the attacker's best response to one α, its multiplier the probability of it."""
    program = CutProgram(pool.members)
    alpha = np.full(pool.members, 1 / pool.members)
    answers: list[NDArray[np.int64]] = []
    lowest, best = np.inf, alpha
    for _ in range(_MOST_CUTS):
        risks, rows = pool.best(alpha)
        if risks.mean() < lowest:
            lowest, best = float(risks.mean()), alpha
        answers.append(rows)
        known = rows >= 0
        program.add(pool.fooled[rows[known]].sum(axis=0) / max(1, pool.n))
        alpha, mass = program.lowest()
        if lowest - float((program.cuts @ alpha).max()) <= _TOLERANCE:
            break
    mass = np.maximum(mass, 0.0)
    return Strategy(pool, mass / mass.sum(), np.stack(answers), best, lowest)


def improves(strategy: Strategy) -> bool:
    """Whether the last member lowers the value of the game over the pool (its reduced cost was negative)."""
    members = strategy.pool.members
    if members == 1:
        return True
    before = optimal_sampling(strategy.pool.profile().restrict(list(range(members - 1)))).risk
    return strategy.value < before - _TOLERANCE
