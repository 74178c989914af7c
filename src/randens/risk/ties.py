"""Choosing among equally good probabilities: lower clean risk first, then fewer members."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from randens.errors import ModelError
from randens.risk.lp import cheapest, fewest_members
from randens.risk.profile import RiskProfile

__all__ = ["prefer"]

# Multipliers, slacks and reduced costs below this are the solver's rounding.
_ZERO = 1e-8
# Risks, and clean risks, this close count as equal while choosing; what is chosen is compared afterwards.
_EQUAL = 1e-9


def prefer(
    profile: RiskProfile,
    best: NDArray[np.float64],
    cuts: NDArray[np.float64],
    multipliers: NDArray[np.float64],
    clean: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """The preferred minimiser of η, given one of them, the cuts [c, M] and the multipliers [c] that prove it.

    The minimisers are the α with η(α) ≤ η(best), a small polytope that the cuts describe from outside; a cut
    that is still missing is added when a point chosen there turns out to be worse.
    """
    if _only_one(best, cuts, multipliers):
        return best
    level = profile.risk(best) + _EQUAL
    cost = np.zeros(profile.members) if clean is None else clean
    everyone = np.ones(profile.members, dtype=np.bool_)
    refused: list[NDArray[np.bool_]] = []
    while True:
        cleanest = cheapest(cuts, level, cost, everyone)
        if cleanest is None:
            raise ModelError(f"the linear program lost the minimiser {best.tolist()} of the risk")
        support = fewest_members(cuts, level, cost, float(cost @ cleanest) + _EQUAL, refused)
        choice = cheapest(cuts, level + _EQUAL, cost, support)
        if choice is None or cost @ choice > cost @ cleanest + 2 * _EQUAL:
            refused.append(support)
            continue
        cut = profile.subgradient(choice)
        if cut @ choice <= level + 2 * _EQUAL:
            return choice
        cuts = np.vstack([cuts, cut])


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
