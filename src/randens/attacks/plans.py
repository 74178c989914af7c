"""Choose the next target set by the linear models of all members at the clean input.

A climb ends at a set that cannot grow, which need not be the set of largest probability. The members'
gradients at the input, known since the first climb, say which sets of larger probability one perturbation may
reach: the game of a set is solved without network passes, and a proof λ that a set is out of reach rules out
every set that contains λ's support.
"""

from __future__ import annotations

import torch
from torch import Tensor

from randens.attacks.game import Solution, solve_game
from randens.attacks.search import Search
from randens.attacks.slopes import Slopes
from randens.core.tensors import norms, take
from randens.threat import Region

__all__ = ["MOST_MEMBERS", "planned"]

MOST_MEMBERS = 8  # all 2^M sets are listed
_GAMES = 12  # games per input and plan; sets that remain undecided are tried
_SUPPORT = 0.02  # smaller weights of a proof are dropped, if it still is a proof without them


def planned(s: Search, iterations: int, kappa: float) -> tuple[Tensor, Tensor]:
    """Return inputs [k] with a reachable set of larger probability than the best one, and the largest such
    set [k, M].

    Sets that the ledger marks as refused are left out.
    """
    rows = s.unfinished
    if int((s.probs > 0).sum()) > MOST_MEMBERS or not len(rows):
        return rows[:0], s.best_errors[:0]
    sets = _subsets(s.probs)
    weights = s.weigh(sets)
    # By more than rounding: equal sums of probabilities are added in different orders.
    open_ = (weights > s.best_value[rows].unsqueeze(1) + 1e-9) & ~s.refused(rows, sets)
    open_ &= ~(sets & s.safe[rows].unsqueeze(1)).any(dim=2)
    wanted = (s.probs > 0).expand(len(rows), -1)
    useful = open_.any(dim=1)
    rows, open_ = rows[useful], open_[useful]
    lin = s.linearise(rows, s.x[rows], wanted[useful])
    a = lin.gradients
    scale = norms(a, s.threat.q).clamp_min(1e-20)
    a /= scale.unsqueeze(2)
    c = lin.margins / scale + kappa * s.threat.eps
    region, slack = Region.around(s.x[rows], s.threat), kappa * s.threat.eps
    slopes = Slopes.of(a)
    choice = torch.full((len(rows),), -1, dtype=torch.int64, device=s.device)
    left = torch.arange(len(rows), device=s.device)
    for _ in range(_GAMES):
        left = left[open_[left].any(dim=1)]
        if not len(left):
            break
        heaviest = weights.expand(len(left), -1).masked_fill(~open_[left], -1.0).argmax(dim=1)
        origin = region.low.new_zeros(len(left), a.shape[2])
        solved = solve_game(c[left], slopes[left], sets[heaviest], region[left], origin, iterations)
        refuted = solved.floor > slack
        choice[left[~refuted]] = heaviest[~refuted]
        gone, left = left, left[refuted]
        if len(left):
            support = _support(solved, c[gone], take(a, gone), region[gone], slack)[refuted]
            inside = (sets.unsqueeze(0) | ~support.unsqueeze(1)).all(dim=2)
            open_[left] &= ~inside
            # The linear models stay as they are, so later plans need not solve these games again.
            s.refuse(rows[left], support)
    undecided = left[open_[left].any(dim=1)] if len(left) else left
    choice[undecided] = weights.expand(len(undecided), -1).masked_fill(~open_[undecided], -1.0).argmax(dim=1)
    named = (choice >= 0).nonzero().flatten()
    return rows[named], sets[choice[named]]


def _subsets(probs: Tensor) -> Tensor:
    """Every set of members that can be drawn, bool [S, M]."""
    drawn = (probs > 0).nonzero().flatten()
    numbers = torch.arange(1, 2 ** len(drawn), device=probs.device)
    table = torch.zeros(len(numbers), len(probs), dtype=torch.bool, device=probs.device)
    table[:, drawn] = (numbers.unsqueeze(1) >> torch.arange(len(drawn), device=probs.device)) & 1 == 1
    return table


def _support(solved: Solution, c: Tensor, a: Tensor, region: Region, slack: float) -> Tensor:
    """Return the members [k, M] that a proof needs: those with enough weight, if they suffice for the
    proof.
    """
    weights = solved.weights
    fewer = weights * (weights >= _SUPPORT)
    fewer = fewer / fewer.sum(dim=1, keepdim=True).clamp_min(1e-20)
    bound = (fewer * c).sum(dim=1) + region.floor(torch.bmm(fewer.unsqueeze(1), a).squeeze(1))
    return torch.where((bound > slack).unsqueeze(1), fewer, weights) > 0
