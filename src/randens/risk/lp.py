"""The linear programs of the theory, over probabilities α and cuts g·α that bound η(α) from below, by HiGHS.

A solver that does not reach an optimum is an error (`ModelError`), never a silent second choice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, linprog, milp

from randens.errors import ModelError
from randens.risk.simplex import tidy

__all__ = ["cheapest", "fewest_members", "lowest"]

_INFEASIBLE = 2
_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def lowest(cuts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """min_α max_c g_c·α over the simplex, for cuts [c, M]: the minimiser [M] and the cuts' multipliers [c].

    The multipliers are non-negative, sum to 1, and prove the value: no α is below min_i (Σ_c λ_c g_c)_i.
    """
    count, members = cuts.shape
    result = linprog(
        np.append(np.zeros(members), 1.0),
        A_ub=np.column_stack([cuts, np.full(count, -1.0)]),
        b_ub=np.zeros(count),
        A_eq=np.append(np.ones(members), 0.0)[None, :],
        b_eq=[1.0],
        bounds=[(0.0, None)] * members + [(None, None)],
        method="highs-ds",
        options=_TIGHT,
    )
    if result.status != 0:
        raise ModelError(
            f"the linear program for the lowest risk of {members} members failed: {result.message}"
        )
    return tidy(result.x[:members]), tidy(-result.ineqlin.marginals)


def cheapest(
    cuts: NDArray[np.float64], level: float, cost: NDArray[np.float64], allowed: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """The α with the lowest cost·α among those with every cut at most `level` and only allowed members [M].

    None if there is no such α.
    """
    members = len(cost)
    result = linprog(
        cost,
        A_ub=cuts,
        b_ub=np.full(len(cuts), level),
        A_eq=np.ones((1, members)),
        b_eq=[1.0],
        bounds=[(0.0, 1.0 if ok else 0.0) for ok in allowed],
        method="highs-ds",
        options=_TIGHT,
    )
    if result.status == _INFEASIBLE:
        return None
    if result.status != 0:
        raise ModelError(
            f"the linear program for the lowest cost of {members} members failed: {result.message}"
        )
    return tidy(result.x)


def fewest_members(
    cuts: NDArray[np.float64],
    level: float,
    cost: NDArray[np.float64],
    budget: float,
    refused: list[NDArray[np.bool_]],
) -> NDArray[np.bool_]:
    """The smallest support [M] of any α with every cut at most `level` and cost·α at most `budget`.

    Among supports of the same size, members with low indices are preferred; supports within a refused one
    are not returned. The integer program is solved to about 1e-6, so the answer has to be checked.
    """
    members = len(cost)
    # Variables: α, and binary z with α ≤ z.
    constraints = [
        LinearConstraint(np.hstack([np.eye(members), -np.eye(members)]), -np.inf, 0.0),
        LinearConstraint(np.hstack([cuts, np.zeros(cuts.shape)]), -np.inf, level),
        LinearConstraint(np.concatenate([cost, np.zeros(members)])[None, :], -np.inf, budget),
        LinearConstraint(np.repeat([1.0, 0.0], members)[None, :], 1.0, 1.0),
    ]
    if refused:
        outside = ~np.stack(refused)
        constraints.append(LinearConstraint(np.hstack([np.zeros(outside.shape), outside]), 1.0, np.inf))
    result = milp(
        np.concatenate([np.zeros(members), 1.0 + np.arange(members) / (2.0 * members**2)]),
        constraints=constraints,
        bounds=(np.zeros(2 * members), np.ones(2 * members)),
        integrality=np.repeat([0, 1], members),
    )
    if result.status != 0:
        raise ModelError(f"the integer program for the fewest of {members} members failed: {result.message}")
    return np.asarray(result.x[members:] > 0.5)
