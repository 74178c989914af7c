"""Witnesses: perturbations together with the members they fool. A pool of witnesses determines the risk.

For input j and perturbation δ the fooled set is u ∈ {0,1}^M with u_i = 1 iff f_i(x_j + δ) ≠ y_j.
A known set u of an input makes all subsets of u redundant, so a pool keeps the maximal sets only.
The risk is η(α) = mean_j max_u u·α (Proposition 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import InputError, expect, shown, whole
from randens.risk import RiskProfile
from randens.risk.sets import as_vector, maximal_rows

__all__ = ["WitnessPool", "as_rows"]


class WitnessPool:
    """Maximal fooled sets found so far for `n` inputs and `members` members.

    Rows are witnesses: `points[r]` is the input, `fooled[r]` the set u, `sources[r]` the name of the attack that found
    it and `x_adv[r]` the perturbed input (`x_adv` is None for a pool of sets only). Pools are immutable: `merge`,
    `take`, `concat`, `replace` and `without_inputs` return new ones.

    Examples
    --------
    >>> pool = WitnessPool(2, 2, [0, 0], [[True, False], [False, True]])
    >>> pool.risk([0.5, 0.5])
    0.25
    """

    def __init__(
        self,
        n: int,
        members: int,
        points: ArrayLike = (),
        fooled: ArrayLike | None = None,
        *,
        x_adv: NDArray[np.generic] | None = None,
        sources: Sequence[str] | str = "",
    ) -> None:
        whole("n", n, 0), whole("members", members)
        rows = as_rows("points", points, n)
        expect("x_adv", x_adv, np.ndarray | None)
        expect("sources", sources, Sequence)
        sets = np.zeros((0, members), dtype=bool) if fooled is None else np.asarray(fooled, dtype=bool)
        if sets.shape != (len(rows), members):
            raise InputError(f"fooled has shape {sets.shape}; it must be ({len(rows)}, {members})")
        if x_adv is not None and len(x_adv) != len(rows):
            raise InputError(f"x_adv has {len(x_adv)} rows; there are {len(rows)} witnesses")
        names = [sources] * len(rows) if isinstance(sources, str) else list(sources)
        if len(names) != len(rows):
            raise InputError(f"sources has {len(names)} names; there are {len(rows)} witnesses")
        keep = maximal_rows(rows, np.packbits(sets, axis=1))
        self.n, self.members = n, members
        self.points, self.fooled = rows[keep], sets[keep]
        self.x_adv = None if x_adv is None else x_adv[keep]
        self.sources = tuple(names[i] for i in keep)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"WitnessPool({len(self)} witnesses, n={self.n}, members={self.members})"

    def merge(self, *others: WitnessPool) -> WitnessPool:
        """Return the union with pools of the same inputs. Of equal sets the first one is kept."""
        for pool in others:
            expect("other", pool, WitnessPool)
            if (pool.n, pool.members) != (self.n, self.members):
                raise InputError(
                    f"cannot merge a pool of {pool.n} inputs and {pool.members} members into one of "
                    f"{self.n} inputs and {self.members} members"
                )
        return _stack([self, *others], self.n, [0] * (1 + len(others))) if any(map(len, others)) else self

    @staticmethod
    def concat(pools: Sequence[WitnessPool]) -> WitnessPool:
        """Pools of consecutive parts of a data set, as one pool of the whole."""
        if not pools:
            raise InputError("pools is empty; give at least one")
        counts = {p.members for p in pools}
        if len(counts) > 1:
            raise InputError(f"pools have different member counts {sorted(counts)}; they must agree")
        ends = np.cumsum([p.n for p in pools]).tolist()
        return _stack(pools, ends[-1], [0, *ends[:-1]])

    def take(self, inputs: ArrayLike, members: ArrayLike | None = None) -> WitnessPool:
        """The witnesses of some distinct inputs [k], renumbered in that order, or of some members only."""
        chosen = as_rows("inputs", inputs, self.n)
        place = np.full(self.n, -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        rows = np.flatnonzero(place[self.points] >= 0)
        columns = np.arange(self.members) if members is None else as_rows("members", members, self.members)
        return WitnessPool(
            len(chosen),
            len(columns),
            place[self.points[rows]],
            self.fooled[np.ix_(rows, columns)],
            x_adv=None if self.x_adv is None else self.x_adv[rows],
            sources=[self.sources[r] for r in rows],
        )

    def replace(self, **fields: Any) -> WitnessPool:
        """Return the pool with other values of some fields."""
        names = ("n", "members", "points", "fooled", "x_adv", "sources")
        return WitnessPool(**{name: getattr(self, name) for name in names} | fields)

    def without_inputs(self) -> WitnessPool:
        """The sets without perturbed inputs: enough for risks, bounds and sampling, in a few bytes each."""
        return self.replace(x_adv=None)

    def profile(self) -> RiskProfile:
        """η over the simplex as a `RiskProfile` (no member is fooled at an input without a witness)."""
        return RiskProfile.from_witnesses(self.points, self.fooled, self.n)

    def best(self, probs: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Per input: max_u u·α, and the row of the witness that reaches it (-1: none known)."""
        values = self.fooled @ as_vector("probs", probs, self.members)
        risks = np.zeros(self.n)
        rows = np.full(self.n, -1, dtype=np.int64)
        # Ascending by value, so that the last write per input is its best; reversed, so that ties keep the first.
        order = len(values) - 1 - np.argsort(values[::-1], kind="stable")
        risks[self.points[order]] = values[order]
        rows[self.points[order]] = order
        return risks, rows

    def worst(self, probs: ArrayLike, x: NDArray[Any]) -> NDArray[Any]:
        """For each input x [n, ...] its worst known perturbation, or the input where no member is fooled."""
        expect("x", x, np.ndarray)
        rows = self.best(probs)[1]
        found = np.flatnonzero(rows >= 0)
        if len(found) and self.x_adv is None:
            raise InputError("pool holds sets only; the perturbed inputs are needed")
        worst = np.array(x)
        worst[found] = self.x_adv[rows[found]] if self.x_adv is not None else x[found]
        return worst

    def risk(self, probs: ArrayLike) -> float:
        """η(α) = mean over inputs of max_u u·α: a lower bound on the true risk, by construction."""
        return float(self.best(probs)[0].mean()) if self.n else 0.0

    @property
    def foolable(self) -> NDArray[np.bool_]:
        """Bool [n, M]: which member is fooled by some witness of which input."""
        table = np.zeros((self.n, self.members), dtype=bool)
        np.logical_or.at(table, self.points, self.fooled)
        return table


def as_rows(name: str, value: ArrayLike, size: int) -> NDArray[np.int64]:
    """Whole numbers [k] from 0 to size − 1."""
    try:
        found = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        found = np.zeros((), dtype=object)
    if found.ndim != 1 or (
        found.size and (found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= size)
    ):
        raise InputError(f"{name} is {shown(value)}; give whole numbers [k] from 0 to {size - 1}")
    return found.astype(np.int64)


def _stack(pools: Sequence[WitnessPool], n: int, offsets: Sequence[int]) -> WitnessPool:
    """Pools with their inputs shifted by `offsets`, as one; with perturbed inputs only if all have them."""
    filled = [p for p in pools if len(p)] or list(pools[:1])
    located = all(p.x_adv is not None for p in filled)
    return WitnessPool(
        n,
        pools[0].members,
        np.concatenate([p.points + o for p, o in zip(pools, offsets, strict=True)]),
        np.concatenate([p.fooled for p in pools]),
        x_adv=np.concatenate([p.x_adv for p in filled]) if located else None,
        sources=[s for p in pools for s in p.sources],
    )
