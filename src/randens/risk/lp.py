"""The linear programs of the theory: minimise over (α, s) with α in the simplex, by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, linprog, milp

from randens.errors import ModelError
from randens.risk.simplex import tidy

__all__ = ["Epigraph", "fewest_members", "solve"]

_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True)
class Epigraph:
    """A model of η: s ≥ g·α for the rows of `below`, s = g·α for those of `equal`, α_i = 0 unless `allowed`.

    below, equal: cuts [c, M]; allowed: bool [M].
    """

    below: NDArray[np.float64]
    equal: NDArray[np.float64]
    allowed: NDArray[np.bool_]

    @property
    def members(self) -> int:
        return len(self.allowed)

    def with_cut(self, cut: NDArray[np.float64]) -> Epigraph:
        """The same model with one more cut s ≥ g·α."""
        return Epigraph(np.vstack([self.below, cut]), self.equal, self.allowed)

    def on_support(self, support: NDArray[np.bool_]) -> Epigraph:
        """The same model with the members outside `support` left out."""
        return Epigraph(self.below, self.equal, self.allowed & support)


def solve(
    model: Epigraph, cost: NDArray[np.float64], height: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Minimise cost·α + height·s over the model: probabilities [M] and the multipliers of `below` [c].

    A solver that does not reach the optimum is an error, never a silent second choice.
    """
    m = model.members
    result = linprog(
        np.append(cost, height),
        A_ub=np.column_stack([model.below, np.full(len(model.below), -1.0)]),
        b_ub=np.zeros(len(model.below)),
        A_eq=_equalities(model),
        b_eq=np.append(np.zeros(len(model.equal)), 1.0),
        bounds=[(0.0, 1.0 if ok else 0.0) for ok in model.allowed] + [(None, None)],
        method="highs-ds",
        options=_TIGHT,
    )
    if result.status != 0:
        raise ModelError(f"the linear program over {m} members failed: {result.message}")
    return tidy(result.x[:m]), np.maximum(-result.ineqlin.marginals, 0.0)


def fewest_members(model: Epigraph, cost: NDArray[np.float64], budget: float) -> NDArray[np.bool_]:
    """The smallest support of any α in the model with cost·α ≤ budget [M]; the first members on equal terms."""
    m = model.members
    n = 2 * m + 1
    # Variables: α [M], s, z [M] with α ≤ z and z binary.
    link = np.zeros((m, n))
    link[:, :m], link[:, m + 1 :] = np.eye(m), -np.eye(m)
    below = np.zeros((len(model.below), n))
    below[:, :m], below[:, m] = model.below, -1.0
    equal = np.zeros((len(model.equal) + 1, n))
    equal[:, : m + 1] = _equalities(model)
    spend = np.append(cost, np.zeros(m + 1))[None, :]
    total = np.append(np.zeros(len(model.equal)), 1.0)
    slack = 1e-9
    result = milp(
        np.concatenate([np.zeros(m + 1), 1.0 + np.arange(m) / (2.0 * m * m)]),
        constraints=[
            LinearConstraint(link, -np.inf, 0.0),
            LinearConstraint(below, -np.inf, slack),
            LinearConstraint(equal, total - slack, total + slack),
            LinearConstraint(spend, -np.inf, budget + slack),
        ],
        bounds=(
            np.concatenate([np.zeros(m), [-np.inf], np.zeros(m)]),
            np.concatenate([model.allowed.astype(np.float64), [np.inf], np.ones(m)]),
        ),
        integrality=np.concatenate([np.zeros(m + 1), np.ones(m)]),
    )
    if result.status != 0:
        raise ModelError(f"the program for the fewest of {m} members failed: {result.message}")
    return np.asarray(result.x[m + 1 :] > 0.5)


def _equalities(model: Epigraph) -> NDArray[np.float64]:
    rows = np.column_stack([model.equal, np.full(len(model.equal), -1.0)])
    return np.vstack([rows, np.append(np.ones(model.members), 0.0)])
