"""The linear program of the theory, over probabilities α and cuts g·α that bound η(α) from below, by HiGHS.

The program stays in the solver between two solves, so that each starts from the last optimum: adding a cut costs a
few dual simplex steps. If the solver does not reach an optimum, a `ModelError` is raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from randens.core.errors import ModelError
from randens.risk.simplex import tidy

if TYPE_CHECKING:
    import highspy

__all__ = ["CutProgram"]

_TIGHT = 1e-10


class CutProgram:
    """min s + tilt·α over (α, s) with α in the simplex of M members and s ≥ g·α for every cut g.

    `cuts` [c, M] holds the cuts added so far.
    """

    def __init__(self, members: int) -> None:
        import highspy  # loaded with the first program, not with the package

        self.members = members
        self.cuts: NDArray[np.float64] = np.empty((0, members))
        self._h: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self._status = highspy.HighsModelStatus
        self._inf = highspy.kHighsInf
        for option, value in (
            ("output_flag", False),
            ("presolve", "off"),
            ("threads", 1),
            ("primal_feasibility_tolerance", _TIGHT),
            ("dual_feasibility_tolerance", _TIGHT),
        ):
            self._h.setOptionValue(option, value)
        self._columns = np.arange(members + 1, dtype=np.int32)
        lower, upper = np.append(np.zeros(members), -self._inf), np.full(members + 1, self._inf)
        self._h.addVars(members + 1, lower, upper)
        self._h.changeColsCost(members + 1, self._columns, np.append(np.zeros(members), 1.0))
        self._h.addRow(1.0, 1.0, members, self._columns[:-1], np.ones(members))
        # The second row is the limit of `lowest_within`; without one it bounds nothing.
        self._h.addRow(-self._inf, self._inf, members, self._columns[:-1], np.ones(members))

    def add(self, cut: NDArray[np.float64]) -> None:
        """Add the cut s ≥ g·α for g [M]."""
        self.cuts = np.vstack([self.cuts, cut])
        self._h.addRow(0.0, self._inf, self.members + 1, self._columns, np.append(-cut, 1.0))

    def lowest(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """min_α max_c g_c·α over the simplex: the minimiser [M] and the cuts' multipliers [c].

        The multipliers are non-negative, sum to 1, and prove the value: no α is below min_i (Σ_c λ_c g_c)_i.
        """
        solution = self._solve()
        if solution is None:
            raise ModelError(
                f"the linear program for the lowest risk of {self.members} members is infeasible"
            )
        return tidy(np.array(solution.col_value[:-1])), tidy(np.array(solution.row_dual[2:]))

    def lowest_within(
        self,
        tilt: NDArray[np.float64],
        allowed: NDArray[np.bool_],
        limit: tuple[NDArray[np.float64], float],
    ) -> NDArray[np.float64] | None:
        """The α [M] with the lowest max_c g_c·α + tilt·α that uses only allowed members and keeps to the limit.

        limit: (cost [M], budget), for cost·α ≤ budget. None if no α of the simplex does that.
        """
        cost, budget = limit
        # Solve from scratch, so that the choice among several optima does not depend on earlier calls.
        self._h.clearSolver()
        self._h.changeColsCost(self.members, self._columns[:-1], tilt)
        upper = np.where(allowed, self._inf, 0.0)
        self._h.changeColsBounds(self.members, self._columns[:-1], np.zeros(self.members), upper)
        for column, value in enumerate(cost.tolist()):
            self._h.changeCoeff(1, column, value)
        self._h.changeRowBounds(1, -self._inf, budget)
        solution = self._solve()
        return None if solution is None else tidy(np.array(solution.col_value[:-1]))

    def _solve(self) -> highspy.HighsSolution | None:
        """The optimum from the last basis; from scratch if that fails. None if there is no feasible point."""
        for _ in range(2):
            self._h.run()
            status = self._h.getModelStatus()
            if status == self._status.kOptimal:
                return self._h.getSolution()
            if status == self._status.kInfeasible:
                return None
            self._h.clearSolver()
        reason = self._h.modelStatusToString(status)
        raise ModelError(
            f"the linear program over {self.members} members and {len(self.cuts)} cuts failed: {reason}"
        )
