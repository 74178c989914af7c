"""Witnesses: perturbations together with the members they fool. A pool of witnesses determines the risk.

For input j and perturbation δ the fooled set is u ∈ {0,1}^M with u_i = 1 iff f_i(x_j + δ) ≠ y_j.
A known set u of an input makes all subsets of u redundant, so a pool keeps the maximal sets only.
The risk is η(α) = mean_j max_u u·α (Proposition 1).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError

from randens.core.errors import FileError, InputError
from randens.core.files import tensor_checksum, write_atomic
from randens.risk import RiskProfile
from randens.risk.sets import maximal_rows
from randens.witness.stored_files import pool_document

__all__ = ["WitnessPool"]

_FORMAT = "randens-witnesses-2"


class WitnessPool:
    """Maximal fooled sets found so far for `n` inputs and `members` members.

    Rows are witnesses: `points[r]` is the input, `fooled[r]` the set u, `sources[r]` the name of the
    attack that found it and `x_adv[r]` the perturbed input, where `located[r]` is true (``None`` for a pool of sets
    only). `checked[r]` says that the set was confirmed by the ensemble's own call on x_adv.
    Pools are immutable: `merge`, `select`, `take`, `concat` and `without_inputs` return new ones.

    Parameters
    ----------
    n : int
        Number of inputs.
    members : int
        M.
    points : array
        Input of each witness, [r].
    fooled : array
        Set of each witness, bool [r, M].
    x_adv : array, optional
        Perturbed inputs [r, ...].
    sources : sequence of str
        The attack that found each witness.
    located, checked
        Bookkeeping of a witness store.

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
        located: ArrayLike | bool = True,
        checked: ArrayLike | bool = False,
    ) -> None:
        rows = np.asarray(points, dtype=np.int64).reshape(-1)
        sets = np.zeros((0, members), dtype=bool) if fooled is None else np.asarray(fooled, dtype=bool)
        if n < 0 or members < 1:
            raise InputError(f"n is {n} and members is {members}; n must be ≥ 0 and members ≥ 1")
        if sets.shape != (len(rows), members):
            raise InputError(f"fooled has shape {sets.shape}; it must be ({len(rows)}, {members})")
        if len(rows) and (rows.min() < 0 or rows.max() >= n):
            raise InputError(f"points range over [{rows.min()}, {rows.max()}]; they must be in [0, {n - 1}]")
        if x_adv is not None and len(x_adv) != len(rows):
            raise InputError(f"x_adv has {len(x_adv)} rows; there are {len(rows)} witnesses")
        names = [sources] * len(rows) if isinstance(sources, str) else list(sources)
        if len(names) != len(rows):
            raise InputError(f"sources has {len(names)} names; there are {len(rows)} witnesses")
        has = np.broadcast_to(np.asarray(located, dtype=bool), rows.shape) & (x_adv is not None)
        sure = np.broadcast_to(np.asarray(checked, dtype=bool), rows.shape)
        # Of equal sets the first one is kept, and one with its perturbed input is preferred.
        first = np.arange(len(rows)) + len(rows) * ~has
        keep = maximal_rows(rows, np.packbits(sets, axis=1), first)
        self.n = n
        self.members = members
        self.points = rows[keep]
        self.fooled = sets[keep]
        self.x_adv = None if x_adv is None else x_adv[keep]
        self.sources = tuple(names[i] for i in keep)
        self.located = has[keep]
        self.checked = sure[keep]

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"WitnessPool({len(self)} witnesses, n={self.n}, members={self.members})"

    def merge(self, *others: WitnessPool) -> WitnessPool:
        """Return the union with a pool of the same inputs. Of equal sets the first one is kept."""
        pools = (self, *others)
        for pool in pools:
            if (pool.n, pool.members) != (self.n, self.members):
                raise InputError(
                    f"cannot merge a pool of {pool.n} inputs and {pool.members} members into one of "
                    f"{self.n} inputs and {self.members} members"
                )
        return _stack(pools, self.n, self.members, offsets=[0] * len(pools))

    @staticmethod
    def concat(pools: Sequence[WitnessPool]) -> WitnessPool:
        """Pools of consecutive parts of a data set, as one pool of the whole."""
        if not pools:
            raise InputError("pools is empty; give at least one")
        counts = {p.members for p in pools}
        if len(counts) > 1:
            raise InputError(f"pools have different member counts {sorted(counts)}; they must agree")
        offsets = np.concatenate([[0], np.cumsum([p.n for p in pools])])
        return _stack(pools, int(offsets[-1]), pools[0].members, [int(o) for o in offsets[:-1]])

    def select(self, start: int, stop: int) -> WitnessPool:
        """The witnesses of inputs start..stop-1, renumbered from 0."""
        return self.take(np.arange(start, stop))

    def take(self, inputs: ArrayLike, members: ArrayLike | None = None) -> WitnessPool:
        """The witnesses of some distinct inputs [k], renumbered in that order, or of some members only."""
        chosen = np.asarray(inputs, dtype=np.int64)
        place = np.full(max(self.n, int(chosen.max(initial=-1)) + 1), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        rows = np.flatnonzero(place[self.points] >= 0)
        columns = np.arange(self.members) if members is None else np.asarray(members, dtype=np.int64)
        return self.replace(
            n=len(chosen),
            members=len(columns),
            points=place[self.points[rows]],
            fooled=self.fooled[np.ix_(rows, columns)],
            **self._of(rows),
        )

    def rows(self, rows: NDArray[np.int64]) -> WitnessPool:
        """Return some of the witnesses, of the same inputs."""
        return self.replace(points=self.points[rows], fooled=self.fooled[rows], **self._of(rows))

    def replace(self, **fields: Any) -> WitnessPool:
        """Return the pool with other values of some fields."""
        names = ("n", "members", "points", "fooled", "x_adv", "sources", "located", "checked")
        return WitnessPool(**{name: getattr(self, name) for name in names} | fields)

    def _of(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """The fields of some witnesses that do not depend on the numbering of inputs and members."""
        return {
            "x_adv": None if self.x_adv is None else self.x_adv[rows],
            "sources": [self.sources[r] for r in rows],
            "located": self.located[rows],
            "checked": self.checked[rows],
        }

    def without_inputs(self) -> WitnessPool:
        """The sets without perturbed inputs: enough for risks, bounds and sampling, in a few bytes each."""
        return self.replace(x_adv=None)

    def profile(self) -> RiskProfile:
        """η over the simplex as a `RiskProfile` (no member is fooled at an input without a witness)."""
        return RiskProfile.from_witnesses(self.points, self.fooled, self.n)

    def best(self, probs: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Per input: max_u u·α, and the row of the witness that reaches it (-1: none known)."""
        alpha = np.asarray(probs, dtype=np.float64)
        values = self.fooled @ alpha
        risks = np.zeros(self.n)
        rows = np.full(self.n, -1, dtype=np.int64)
        # Ascending by value, so that the last write per input is its best; stable, so ties keep the first.
        order = np.argsort(values[::-1], kind="stable")
        order = len(values) - 1 - order
        risks[self.points[order]] = values[order]
        rows[self.points[order]] = order
        return risks, rows

    def risk(self, probs: ArrayLike) -> float:
        """η(α) = mean over inputs of max_u u·α: a lower bound on the true risk, by construction."""
        return float(self.best(probs)[0].mean()) if self.n else 0.0

    @property
    def foolable(self) -> NDArray[np.bool_]:
        """Bool [n, M]: which member is fooled by some witness of which input."""
        table = np.zeros((self.n, self.members), dtype=bool)
        np.logical_or.at(table, self.points, self.fooled)
        return table

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the pool as one safetensors file, atomically."""
        names = sorted(set(self.sources))
        tensors: dict[str, NDArray[np.generic]] = {
            "points": self.points,
            "fooled": self.fooled.astype(np.uint8),
            "source": np.array([names.index(s) for s in self.sources], dtype=np.int64),
        }
        if self.x_adv is not None:
            tensors["x_adv"] = np.ascontiguousarray(self.x_adv)
        metadata = {"format": _FORMAT, "n": str(self.n), "members": str(self.members)}
        metadata.update({f"source.{i}": name for i, name in enumerate(names)})
        if self.x_adv is not None and not self.located.all():
            tensors["located"] = self.located.astype(np.uint8)
        metadata["checksum"] = tensor_checksum(tensors, metadata)
        write_atomic(path, safetensors.numpy.save(tensors, metadata))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> WitnessPool:
        """Read a pool written by `save`."""
        source = Path(path)
        tensors, metadata = read_tensors(source, "witnesses")
        if metadata.get("format") != _FORMAT:
            raise FileError(f"{source} is not a witness file of format {_FORMAT}")
        stated = metadata.pop("checksum", None)
        if stated != tensor_checksum(tensors, metadata):
            raise FileError(f"{source} does not match its checksum; it was altered or damaged")
        about = pool_document(tensors, metadata, source)
        return WitnessPool(
            about.n,
            about.members,
            tensors["points"],
            tensors["fooled"].astype(bool),
            x_adv=tensors.get("x_adv"),
            sources=[about.sources[i] for i in tensors["source"]],
            located=tensors.get("located", np.ones(1)).astype(bool),
        )


def read_tensors(path: Path, what: str) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
    """Return arrays and metadata of a safetensors file, which holds numbers and names and no code."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot read {what} from {path}: {error}") from error


def _stack(pools: Sequence[WitnessPool], n: int, members: int, offsets: Sequence[int]) -> WitnessPool:
    shapes = [p.x_adv for p in pools if p.x_adv is not None]
    return WitnessPool(
        n,
        members,
        np.concatenate([p.points + o for p, o in zip(pools, offsets, strict=True)]),
        np.concatenate([p.fooled for p in pools]),
        # A set without a perturbed input does not replace sets with one.
        x_adv=np.concatenate([_inputs_like(p, shapes[0]) for p in pools]) if shapes else None,
        sources=[s for p in pools for s in p.sources],
        located=np.concatenate([p.located for p in pools]),
        checked=np.concatenate([p.checked for p in pools]),
    )


def _inputs_like(pool: WitnessPool, other: NDArray[np.generic]) -> NDArray[np.generic]:
    empty: NDArray[np.generic] = np.zeros((len(pool), *other.shape[1:]), dtype=other.dtype)
    return empty if pool.x_adv is None else pool.x_adv
