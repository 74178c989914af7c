"""The linear programs of the theory, over probabilities α and cuts g·α that bound η(α) from below, by HiGHS.

A solver that does not reach an optimum is an error (`ModelError`), never a silent second choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from randens.errors import ModelError
from randens.risk.simplex import tidy

__all__ = ["lowest", "lowest_within"]

_INFEASIBLE = 2
_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def lowest(cuts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """min_α max_c g_c·α over the simplex, for cuts [c, M]: the minimiser [M] and the cuts' multipliers [c].

    The multipliers are non-negative, sum to 1, and prove the value: no α is below min_i (Σ_c λ_c g_c)_i.
    """
    members = cuts.shape[1]
    result = _solve(cuts, np.zeros(members), [(0.0, None)] * members, None)
    if result.status != 0:
        raise ModelError(
            f"the linear program for the lowest risk of {members} members failed: {result.message}"
        )
    return tidy(result.x[:members]), tidy(-result.ineqlin.marginals)


def lowest_within(
    cuts: NDArray[np.float64],
    tilt: NDArray[np.float64],
    allowed: NDArray[np.bool_],
    limit: tuple[NDArray[np.float64], float],
) -> NDArray[np.float64] | None:
    """The α [M] with the lowest max_c g_c·α + tilt·α that uses only allowed members and keeps to the limit.

    limit: (cost [M], budget), for cost·α ≤ budget. None if no α of the simplex does that.
    """
    members = cuts.shape[1]
    result = _solve(cuts, tilt, [(0.0, None if ok else 0.0) for ok in allowed], limit)
    if result.status == _INFEASIBLE:
        return None
    if result.status != 0:
        raise ModelError(f"the linear program for the best of {members} members failed: {result.message}")
    return tidy(result.x[:members])


def _solve(
    cuts: NDArray[np.float64],
    tilt: NDArray[np.float64],
    ranges: list[tuple[float, float | None]],
    limit: tuple[NDArray[np.float64], float] | None,
) -> Any:
    """min s + tilt·α over (α, s) with s ≥ g_c·α for all cuts."""
    count, members = cuts.shape
    rows, sides = np.column_stack([cuts, np.full(count, -1.0)]), np.zeros(count)
    if limit is not None:
        rows, sides = np.vstack([rows, np.append(limit[0], 0.0)]), np.append(sides, limit[1])
    return linprog(
        np.append(tilt, 1.0),
        A_ub=rows,
        b_ub=sides,
        A_eq=np.append(np.ones(members), 0.0)[None, :],
        b_eq=[1.0],
        bounds=[*ranges, (None, None)],
        method="highs-ds",
        options=_TIGHT,
    )
