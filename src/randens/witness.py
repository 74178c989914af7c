"""Witnesses: perturbations together with the members they fool. A pool of them is the risk function.

For input j and perturbation δ the fooled set is u ∈ {0,1}^M with u_i = 1 iff f_i(x_j + δ) ≠ y_j.
If u is known for an input, every subset of u is implied, so a pool keeps the maximal sets only, and
η(α) = mean_j max_u u·α (Proposition 1) is a look-up.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError

from randens.errors import FileError, InputError
from randens.files import write_atomic
from randens.risk import RiskProfile

__all__ = ["WitnessPool"]

_FORMAT = "randens-witnesses-1"


class WitnessPool:
    """Maximal fooled sets found so far for `n` inputs and `members` members.

    Rows are witnesses: `points[r]` is the input, `fooled[r]` the set u, `sources[r]` the name of the
    attack that found it and `x_adv[r]` the perturbed input (``None`` for a pool of sets only).
    Pools are values: `merge`, `select`, `concat` and `without_inputs` return new ones.
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
        keep = _maximal(rows, sets)
        self.n = n
        self.members = members
        self.points = rows[keep]
        self.fooled = sets[keep]
        self.x_adv = None if x_adv is None else x_adv[keep]
        self.sources = tuple(names[i] for i in keep)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"WitnessPool({len(self)} witnesses, n={self.n}, members={self.members})"

    def merge(self, *others: WitnessPool) -> WitnessPool:
        """Everything known about the same inputs; never less than before. First found wins ties."""
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
        rows = np.flatnonzero((self.points >= start) & (self.points < stop))
        return WitnessPool(
            stop - start,
            self.members,
            self.points[rows] - start,
            self.fooled[rows],
            x_adv=None if self.x_adv is None else self.x_adv[rows],
            sources=[self.sources[r] for r in rows],
        )

    def without_inputs(self) -> WitnessPool:
        """The sets only: all that risks, bounds and sampling need, at a few bytes per witness."""
        return WitnessPool(self.n, self.members, self.points, self.fooled, sources=self.sources)

    def profile(self) -> RiskProfile:
        """η over the simplex as a `RiskProfile` (inputs without a witness fool nobody)."""
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
        metadata["checksum"] = _checksum(metadata, tensors)
        write_atomic(path, safetensors.numpy.save(tensors, metadata))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> WitnessPool:
        """Read a pool written by `save`."""
        source = Path(path)
        try:
            with safetensors.safe_open(source, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise FileError(f"cannot read witnesses from {source}: {error}") from error
        if metadata.get("format") != _FORMAT:
            raise FileError(f"{source} is not a witness file of format {_FORMAT}")
        if metadata.pop("checksum", None) != _checksum(metadata, tensors):
            raise FileError(f"{source} does not match its checksum; it was altered or damaged")
        names = [
            metadata[f"source.{i}"] for i in range(len([k for k in metadata if k.startswith("source.")]))
        ]
        return WitnessPool(
            int(metadata["n"]),
            int(metadata["members"]),
            tensors["points"],
            tensors["fooled"].astype(bool),
            x_adv=tensors.get("x_adv"),
            sources=[names[i] for i in tensors["source"]],
        )


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, NDArray[np.generic]]) -> str:
    digest = hashlib.sha256(repr(sorted(metadata.items())).encode())
    for key in sorted(tensors):
        digest.update(f"{key} {tensors[key].shape} {tensors[key].dtype}\n".encode())
        digest.update(np.ascontiguousarray(tensors[key]).tobytes())
    return digest.hexdigest()


def _stack(pools: Sequence[WitnessPool], n: int, members: int, offsets: Sequence[int]) -> WitnessPool:
    inputs = [p.x_adv for p in pools if p.x_adv is not None]
    return WitnessPool(
        n,
        members,
        np.concatenate([p.points + o for p, o in zip(pools, offsets, strict=True)]),
        np.concatenate([p.fooled for p in pools]),
        # Perturbed inputs survive only if every part has them: half a proof is none.
        x_adv=np.concatenate(inputs) if len(inputs) == len(pools) else None,
        sources=[s for p in pools for s in p.sources],
    )


def _maximal(points: NDArray[np.int64], fooled: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows to keep, in their order: per input the first of each set that no other set contains."""
    if not len(points):
        return np.zeros(0, dtype=np.int64)
    packed = np.packbits(fooled, axis=1)
    # Larger sets first within an input, so that a set can only be contained in an earlier one.
    order = np.lexsort((np.arange(len(points)), -fooled.sum(axis=1), points))
    sorted_points, bits = points[order], packed[order]
    keep = np.asarray(bits.any(axis=1))  # the empty set says nothing
    start = np.flatnonzero(np.r_[True, sorted_points[1:] != sorted_points[:-1]])
    largest = int(np.diff(np.r_[start, len(order)]).max())
    for shift in range(1, largest):
        same = sorted_points[shift:] == sorted_points[:-shift]
        contained = ((bits[shift:] & bits[:-shift]) == bits[shift:]).all(axis=1)
        keep[shift:] &= ~(same & contained)
    return np.sort(order[keep])
