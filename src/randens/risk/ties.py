"""Choosing among equally good probabilities: lower clean risk first, then fewer members."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from randens.risk.lp import CutProgram
from randens.risk.profile import RiskProfile

__all__ = ["prefer"]

# Multipliers, slacks and reduced costs below this are the solver's rounding.
_ZERO = 1e-8
# Risks this close are equal while choosing; what is chosen is compared once more afterwards.
_EQUAL = 1e-11
# Clean risks this close count as equal, and probabilities below it as unused.
_COARSE = 1e-6
# Factors by which a preference is added to the risk; the first is enough unless inputs weigh less than 1e-5.
_TILTS = (1e-5, 1e-7)
# Far more programs than 16 members need; beyond it the smallest support found so far is used.
_MOST_NODES = 1000


def prefer(
    profile: RiskProfile,
    best: NDArray[np.float64],
    program: CutProgram,
    multipliers: NDArray[np.float64],
    clean: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """The preferred minimiser of η, given one of them, the program with the cuts [c, M] and their multipliers [c]."""
    if _only_one(best, program.cuts, multipliers):
        return best
    cost = np.zeros(profile.members) if clean is None else clean
    minimisers = _Minimisers(profile, program, profile.risk(best) + _EQUAL)
    everyone = np.ones(profile.members, dtype=np.bool_)
    cleanest = minimisers.find(cost, everyone)
    if cleanest is None:
        return best
    minimisers.limit = (cost, float(cost @ cleanest) + _COARSE)
    chosen = minimisers.find(cost, _fewest_members(minimisers, cleanest > 0))
    return cleanest if chosen is None else chosen


def _only_one(best: NDArray[np.float64], cuts: NDArray[np.float64], multipliers: NDArray[np.float64]) -> bool:
    """Whether the proof leaves one minimiser, by complementary slackness.

    Every minimiser makes each cut with a positive multiplier active, and uses only members that the mixed
    cuts charge least; if these equations have rank M there is no second one.
    """
    members = len(best)
    slopes = multipliers @ cuts
    active = cuts[(multipliers > _ZERO) & (cuts @ best >= (cuts @ best).max() - _ZERO)]
    unused = np.eye(members)[slopes > slopes.min() + _ZERO]
    rows = np.vstack([active[1:] - active[:1], unused, np.ones((1, members))])
    return int(np.linalg.matrix_rank(rows, tol=_ZERO)) == members


class _Minimisers:
    """The α with η(α) ≤ level, searched by minimising η plus a small multiple of what is preferred.

    That set may be a segment or a single point, which a solver's tolerances do not respect as constraints;
    as an objective it is well posed. Missing cuts are added during the search.
    """

    def __init__(self, profile: RiskProfile, program: CutProgram, level: float) -> None:
        self.profile, self.program, self.level = profile, program, level
        self.limit = (np.zeros(profile.members), 1.0)

    def find(self, cost: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.float64] | None:
        """The minimiser with the lowest cost·α that uses only allowed members; None if no minimiser does."""
        found = self._descend(np.zeros(len(cost)), allowed)
        if found is None or self.profile.risk(found) > self.level:
            return None
        scale = np.abs(cost[allowed]).max()
        for tilt in _TILTS if scale > 0 else ():
            other = self._descend(tilt / scale * cost, allowed)
            if other is not None and self.profile.risk(other) <= self.level:
                return other
        return found

    def _descend(self, tilt: NDArray[np.float64], allowed: NDArray[np.bool_]) -> NDArray[np.float64] | None:
        while (probs := self.program.lowest_within(tilt, allowed, self.limit)) is not None:
            cut, cuts = self.profile.subgradient(probs), self.program.cuts
            # A cut that is there already is violated by no more than rounding.
            if cut @ probs <= (cuts @ probs).max() or (cuts == cut).all(axis=1).any():
                return probs
            self.program.add(cut)
        return None


def _fewest_members(minimisers: _Minimisers, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The smallest support [M] of a minimiser, by branch and bound; `known` is the support of one.

    With v_i the largest α_i of any minimiser, none has a smaller support than min Σ α_i / v_i: a linear
    program, whose solutions tend to be sparse. On equal terms low indices are favoured.
    """
    members = len(known)
    everyone = np.ones(members, dtype=np.bool_)
    corners = [minimisers.find(-axis, everyone) for axis in np.eye(members)]
    largest = np.array([0.0 if corner is None else corner[i] for i, corner in enumerate(corners)])
    useful = largest > _COARSE
    price = np.where(useful, (1.0 + 1e-6 * np.arange(members)) / np.maximum(largest, _COARSE), 0.0)
    best, fewest = known, members + 1
    # Nodes: the members that may be used, and those of them that are taken as used.
    nodes = [(useful, np.zeros(members, dtype=np.bool_))]
    for _ in range(_MOST_NODES):
        if not nodes:
            break
        allowed, taken = nodes.pop()
        open_price = np.where(taken, 0.0, price)
        probs = minimisers.find(open_price, allowed) if allowed.any() else None
        if probs is None:
            continue
        support = probs > 0
        if support.sum() < fewest:
            best, fewest = support, int(support.sum())
        at_least = int(taken.sum()) + math.ceil(float(open_price @ probs) - 1e-3)
        undecided = np.flatnonzero(support & ~taken)
        if at_least >= fewest or not len(undecided):
            continue
        branch = np.arange(members) == undecided[int(np.argmin((open_price * probs)[undecided]))]
        nodes += [(allowed, taken | branch), (allowed & ~branch, taken)]
    return best
