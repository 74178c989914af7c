"""A finite set of probabilities that always contains an optimum: Theorems 1 and 2, and their extension.

η is linear on the cells of the hyperplanes (u − v)·α = 0, on which two sets u, v tie. So some vertex of this
arrangement on the simplex is optimal for every profile: 3 vectors for M = 2, the ten of Theorem 2 for M = 3,
101 for M = 4 and 8806 for M = 5.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError
from randens.risk.certificate import Sampling
from randens.risk.checks import as_risks, frozen
from randens.risk.profile import RiskProfile

__all__ = ["MAX_CANDIDATE_MEMBERS", "candidate_sampling", "candidates"]

MAX_CANDIDATE_MEMBERS = 5
"""For six members the set runs into the millions."""

_EQUAL = 1e-11
_BLOCK = 256


def candidates(M: int) -> tuple[tuple[Fraction, ...], ...]:
    """All vertices of the arrangement on the simplex, as exact fractions, for 1 ≤ M ≤ 5.

    They are sorted by the number of members used, then by the first members' probabilities.

    Parameters
    ----------
    M : int
        At most 5.

    Returns
    -------
    tuple
        Exact rationals.

    Examples
    --------
    >>> [tuple(map(str, c)) for c in candidates(2)]
    [('1', '0'), ('0', '1'), ('1/2', '1/2')]
    """
    return _fractions(_checked(M))


def candidate_sampling(profile: RiskProfile, *, clean_risks: ArrayLike | None = None) -> Sampling:
    """Return the best candidate (Theorem 2 for M = 3), which is optimal because some candidate always is.

    Of candidates with equal risk, the one with the lower clean risk is chosen (clean_risks [M], if given),
    then the one with fewer members.

    Parameters
    ----------
    profile, clean_risks
        As for `exact_sampling`.

    Returns
    -------
    Sampling
        Probabilities, risk, lower bound and certificate.

    Examples
    --------
    >>> profile = RiskProfile.from_configurations([[(1, 0), (0, 1)], [(1, 1)]], [0.6, 0.4])
    >>> candidate_sampling(profile).risk
    0.7
    """
    members = _checked(profile.members)
    clean = np.zeros(members) if clean_risks is None else as_risks("clean_risks", clean_risks, members)
    whole = _numerators(members)
    table = whole / whole.sum(axis=1, keepdims=True)
    risks = np.concatenate([_risks(profile, table[i : i + _BLOCK]) for i in range(0, len(table), _BLOCK)])
    best = np.flatnonzero(risks <= risks.min() + _EQUAL)
    cleanest = table[best] @ clean
    best = best[cleanest <= cleanest.min() + _EQUAL]
    chosen = best[int(np.argmin((whole[best] > 0).sum(axis=1)))]
    total = int(whole[chosen].sum())
    exact = tuple(Fraction(int(w), total) for w in whole[chosen])
    probs = np.array([float(p) for p in exact])
    risk = profile.risk(probs)
    return Sampling(
        probs=frozen(probs),
        risk=risk,
        lower_bound=risk,
        method="candidates",
        iterations=len(table),
        exact_probs=exact,
    )


def _risks(profile: RiskProfile, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """η at every row of `table` [c, M]."""
    sets = np.concatenate(profile.configurations)
    values = table @ sets.T.astype(np.float64)
    return np.asarray(np.maximum.reduceat(values, profile.starts[:-1], axis=1) @ profile.weights)


def _checked(members: int) -> int:
    if isinstance(members, bool) or not isinstance(members, int | np.integer) or members < 1:
        raise InputError(f"M must be a whole number from 1 to {MAX_CANDIDATE_MEMBERS}, got {members!r}")
    if members > MAX_CANDIDATE_MEMBERS:
        raise InputError(
            f"M is {members}; candidates are enumerated for at most {MAX_CANDIDATE_MEMBERS} members, "
            "method='exact' has no such limit"
        )
    return int(members)


@lru_cache(maxsize=MAX_CANDIDATE_MEMBERS)
def _fractions(members: int) -> tuple[tuple[Fraction, ...], ...]:
    return tuple(tuple(Fraction(value, sum(row)) for value in row) for row in _numerators(members).tolist())


@lru_cache(maxsize=MAX_CANDIDATE_MEMBERS)
def _numerators(members: int) -> NDArray[np.int64]:
    """Candidates as whole numbers without a common factor [c, M]; dividing a row by its sum gives it."""
    found = []
    for size in range(1, members + 1):
        inside = _interior_vertices(size)
        for support in combinations(range(members), size):
            block = np.zeros((len(inside), members), dtype=np.int64)
            block[:, support] = inside
            found.append(block)
    table = np.concatenate(found)
    used = (table > 0).sum(axis=1)
    share = table / table.sum(axis=1, keepdims=True)
    order = np.lexsort((*(-share.T[::-1]), used))
    return frozen(table[order])


def _interior_vertices(size: int) -> NDArray[np.int64]:
    """Vertices with all of `size` entries positive, as reduced whole numbers.

    Such a vertex is the null vector of size − 1 independent normals u − v, each with both signs (otherwise an
    entry would be 0). Renaming members maps vertices to vertices, so it is enough to start from one normal of
    each kind (so many ones, so many minus ones) and to rename afterwards.
    """
    if size == 1:
        return np.ones((1, 1), dtype=np.int64)
    normals = np.array(
        [d for d in product((-1, 0, 1), repeat=size) if d > tuple(-x for x in d) and min(d) < 0 < max(d)],
        dtype=np.int64,
    )
    kinds: dict[tuple[int, ...], list[int]] = {}
    for d in normals.tolist():
        kinds.setdefault(tuple(sorted((d.count(1), d.count(-1)))), d)
    chosen = list(combinations(range(len(normals)), size - 2))
    rest = np.array(chosen, dtype=np.int64).reshape(len(chosen), size - 2)
    found = []
    for first in kinds.values():
        rows = [
            np.broadcast_to(np.array(first), (len(rest), size)),
            *(normals[rest[:, j]] for j in range(size - 2)),
        ]
        vectors = _null_vectors(rows)
        vectors = vectors[(vectors > 0).all(axis=1) | (vectors < 0).all(axis=1)]
        vectors = np.abs(vectors)
        found.append(np.unique(vectors // np.gcd.reduce(vectors, axis=1)[:, None], axis=0))
    table = np.concatenate(found)
    renamed = [table[:, order] for order in permutations(range(size))]
    return np.unique(np.concatenate(renamed), axis=0)


def _null_vectors(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The vector orthogonal to `size − 1` rows, for a whole batch: the minors of the matrix they form.

    rows: size − 1 arrays [b, size]. Minors of the first r rows are built from those of the first r − 1 by
    expanding along row r; the entries stay below 5!, so integers are exact. Dependent rows give zeros.
    """
    size = rows[0].shape[1]
    minors: dict[tuple[int, ...], NDArray[np.int64]] = {(c,): rows[0][:, c] for c in range(size)}
    for depth, row in enumerate(rows[1:], start=2):
        minors = {
            columns: np.sum(
                [
                    (-1) ** (depth - 1 - j) * row[:, c] * minors[columns[:j] + columns[j + 1 :]]
                    for j, c in enumerate(columns)
                ],
                axis=0,
            )
            for columns in combinations(range(size), depth)
        }
    return np.stack(
        [(-1) ** c * minors[tuple(k for k in range(size) if k != c)] for c in range(size)], axis=1
    )
