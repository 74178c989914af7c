"""Choosing among equally good probabilities: lower clean risk first, then fewer members."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from randens.risk.lp import Epigraph, fewest_members, solve
from randens.risk.profile import RiskProfile

__all__ = ["prefer"]

# Multipliers and reduced costs below this are rounding of the solver.
_ZERO = 1e-9
# Risks this close count as equal.
_EQUAL = 1e-11


def prefer(
    profile: RiskProfile,
    best: NDArray[np.float64],
    model: Epigraph,
    multipliers: NDArray[np.float64],
    clean: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """The preferred minimiser of η, given one of them and the dual solution that proves it.

    By complementary slackness α is optimal iff it uses only members that the attacker's mixture fools least
    (Σλg)_i = min, makes every cut with λ > 0 active, and violates no other cut. That face is a small polytope; cuts
    it still lacks are added when a point chosen in it turns out not to be optimal.
    """
    slopes = multipliers @ model.below
    active = multipliers > _ZERO
    face = Epigraph(model.below[~active], model.below[active], slopes <= slopes.min() + _ZERO)
    if _is_point(face):
        return best
    risk = profile.risk(best)
    for _ in range(len(model.below) + 100 * profile.members):
        choice = _preferred(face, clean)
        if profile.risk(choice) <= risk + _EQUAL:
            return choice
        face = face.with_cut(profile.subgradient(choice))
    return best


def _is_point(face: Epigraph) -> bool:
    """Whether the equalities alone leave a single α."""
    forbidden = np.eye(face.members)[~face.allowed]
    rows = np.vstack([face.equal[1:] - face.equal[:1], np.ones((1, face.members)), forbidden])
    return int(np.linalg.matrix_rank(rows, tol=_ZERO)) == face.members


def _preferred(face: Epigraph, clean: NDArray[np.float64] | None) -> NDArray[np.float64]:
    cost = np.zeros(face.members) if clean is None else clean
    cheapest, _ = solve(face, cost, 0.0)
    support = fewest_members(face, cost, float(cost @ cheapest))
    # The integer program is solved to a coarse tolerance: it only says which members to keep.
    probs, _ = solve(face.on_support(support), cost, 0.0)
    return probs
