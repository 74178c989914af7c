"""How robust any classifier can be on given data, and whether a random one can be more robust than a deterministic one.

Two inputs of different classes whose perturbation sets meet are in conflict: at a common point no classifier is right
about both. A deterministic classifier is robust at inputs without conflicts among them at best, an independent set of
the conflict graph (integral packing). A random one is right with probabilities q, and inputs of different classes
whose sets share a point have Σ q ≤ 1 (fractional packing over cliques). In the maximum norm, boxes that meet in pairs
have a common point, so every clique counts. After Dai et al. (NeurIPS 2023) and Gnecco-Heredia et al. (AISTATS 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from scipy.spatial import KDTree

from randens.core.files import Plain

_GROUPS = 16
_BLOCK = 1 << 24  # numbers compared at once
_MOST_CLIQUES = 100_000
_SECONDS = 20.0
_EXPONENT = {"linf": np.inf, "l2": 2.0, "l1": 1.0}


@dataclass(frozen=True)
class Ceiling(Plain):
    """The largest robust accuracy of any classifier on n inputs.

    conflicts: pairs of inputs in conflict. inputs: how many inputs are in one. deterministic, randomized: the largest
    robust accuracy of a deterministic and of a random classifier. exact: whether both are; else they are upper bounds.
    """

    n: int
    conflicts: int
    inputs: int
    deterministic: float
    randomized: float
    exact: bool

    @property
    def gain(self) -> float:
        """How much more robust a random classifier can be."""
        return max(0.0, self.randomized - self.deterministic)

    @property
    def message(self) -> str:
        """The answer in words."""
        if not self.conflicts:
            return (
                f"None of the {self.n} inputs are in conflict: some deterministic classifier is right at all of them, "
                "so the data do not call for randomization."
            )
        most = "" if self.exact else "at most "
        return (
            f"{self.inputs} of {self.n} inputs are in conflict: a deterministic classifier reaches {most}"
            f"{self.deterministic:.2%}, a random one {most}{self.randomized:.2%}."
        )


def close_pairs(
    x: NDArray[np.float32], y: NDArray[np.int64], norm: str, distance: float
) -> NDArray[np.int64]:
    """Pairs [k, 2], i < j, of rows of x [n, d] with different labels and at most this distance."""
    p = _EXPONENT[norm]
    d = x.shape[1]
    first = np.unique(np.linspace(0, d, min(d, _GROUPS), endpoint=False).astype(np.int64))
    sizes = np.diff(np.append(first, d))
    coarse = np.add.reduceat(x.astype(np.float64), first, axis=1) / sizes ** (1.0 - 1.0 / p)
    reach = distance * (1 + 1e-6)
    pairs = KDTree(coarse).query_pairs(reach, p=p, output_type="ndarray").astype(np.int64)
    pairs = pairs[y[pairs[:, 0]] != y[pairs[:, 1]]]
    step = max(1, _BLOCK // d)
    near = [
        np.linalg.norm(x[part[:, 0]].astype(np.float64) - x[part[:, 1]], ord=p, axis=1) <= reach
        for part in (pairs[i : i + step] for i in range(0, len(pairs), step))
    ]
    kept = pairs[np.concatenate(near)] if near else pairs
    return np.sort(kept, axis=1)


def ceiling_from_conflicts(n: int, pairs: NDArray[np.int64], common_points: bool = True) -> Ceiling:
    """The ceiling of n inputs from their conflicts [k, 2].

    common_points: whether inputs that are in conflict pairwise have a common point, as in the maximum norm. If not,
    the random classifier's accuracy is an upper bound.
    """
    inputs, edges = np.unique(pairs, return_inverse=True)
    count, edges = len(inputs), edges.reshape(-1, 2)
    if not count:
        return Ceiling(n, 0, 0, 1.0, 1.0, True)
    neighbors: list[set[int]] = [set() for _ in range(count)]
    for a, b in edges.tolist():
        neighbors[a].add(b)
        neighbors[b].add(a)
    cliques = _maximal_cliques(neighbors) if common_points else None
    known = [sorted(clique) for clique in cliques] if cliques is not None else edges.tolist()
    rows = np.repeat(np.arange(len(known)), [len(clique) for clique in known])
    matrix = csr_array((np.ones(len(rows)), (rows, np.concatenate(known))), shape=(len(known), count))
    limits = LinearConstraint(matrix, ub=1.0)
    options = {"time_limit": _SECONDS}
    fractional, integral = (
        milp(-np.ones(count), constraints=limits, bounds=Bounds(0, 1), integrality=kind, options=options)
        for kind in (0, 1)
    )
    random = float(count if fractional.status else -fractional.fun)
    # The solver's bound holds also where it ran out of time.
    certain = min(random, float(count if integral.mip_dual_bound is None else -integral.mip_dual_bound))
    solved = cliques is not None and fractional.status == integral.status == 0
    return Ceiling(n, len(edges), count, 1 - (count - certain) / n, 1 - (count - random) / n, solved)


def _maximal_cliques(neighbors: list[set[int]]) -> list[set[int]] | None:
    """All maximal cliques (Bron and Kerbosch with pivots); None if there are too many."""
    found: list[set[int]] = []
    stack: list[tuple[set[int], set[int], set[int]]] = [(set(), set(range(len(neighbors))), set())]
    while stack:
        clique, open_, done = stack.pop()
        if not open_ and not done:
            found.append(clique)
            if len(found) > _MOST_CLIQUES:
                return None
            continue
        if not open_:
            continue
        pivot = max(open_ | done, key=lambda v: len(neighbors[v] & open_))
        for vertex in list(open_ - neighbors[pivot]):
            stack.append((clique | {vertex}, open_ & neighbors[vertex], done & neighbors[vertex]))
            open_ = open_ - {vertex}
            done = done | {vertex}
    return found
