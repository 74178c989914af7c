"""The records of a search on its batch: the best point of every input, every maximal fooled set, the cost.

The ledger runs no member. It starts from known witnesses, and says which inputs' risks can still increase.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from randens.attacks.found import Cost
from randens.core.devices import widest
from randens.witness import WitnessPool

__all__ = ["Ledger"]


class Ledger:
    """n inputs x [n, ...] of M members with probabilities α: `best_x`, `best_errors`, `foolable`, `cost`, the pool.

    `rows` arguments index the batch; `points` are perturbed inputs of those rows. `resistance` [n, M] counts the
    searches that aimed at one member alone and did not fool it; `remote` [n, M] is where the linear model at the input
    says that no search will, by far; `safe` [n, M] is where a proof says that none can.
    """

    def __init__(self, x: Tensor, probs: Tensor, source: str = "", *, drop_finished: bool = True) -> None:
        self.x, self.probs, self.device = x, widest(probs, x.device), x.device
        self.n, self.members = len(x), len(probs)
        self.source, self.drop_finished = source, drop_finished
        self.cost = Cost()
        self.best_value = self.probs.new_full((self.n,), -1.0)
        self.best_x = x.clone()
        self.best_errors = torch.zeros(self.n, self.members, dtype=torch.bool, device=self.device)
        self.best_source = [""] * self.n
        self.foolable = torch.zeros(self.n, self.members, dtype=torch.bool, device=self.device)
        self._sets = torch.zeros(self.n, 2, self.members, dtype=torch.bool, device=self.device)
        self._set_count = torch.zeros(self.n, dtype=torch.int64, device=self.device)
        self.resistance = torch.zeros(self.n, self.members, dtype=torch.int64, device=self.device)
        self.safe = torch.zeros(self.n, self.members, dtype=torch.bool, device=self.device)
        self.remote = torch.zeros_like(self.safe)
        self._left_out = torch.zeros(self.n, dtype=torch.bool, device=self.device)
        self._refused = torch.zeros(self.n, 0, self.members, dtype=torch.bool, device=self.device)
        self._kept: list[tuple[Tensor, Tensor, Tensor, str]] = []
        self._kept_rows = self._new_from = 0
        self._best_kept = torch.full((self.n,), -1, dtype=torch.int64)
        self._best_checked = torch.zeros(self.n, dtype=torch.bool)

    def begin_from(self, clean: Tensor, pool: WitnessPool | None, safe: Tensor | None = None) -> None:
        """Start from the verdicts [n, M] on the inputs themselves, witnesses known before, and members proved safe."""
        if safe is not None:
            self.safe |= safe.to(self.device)
        with self.credited("clean"):
            self._record(torch.arange(self.n, device=self.device), self.x, clean)
        self._best_checked[:] = True
        if pool is not None:
            self._start_from(pool)
        self._new_from = self._kept_rows

    @contextlib.contextmanager
    def credited(self, source: str) -> Iterator[None]:
        """Credit the witnesses found in this context to `source` (an attack of a portfolio)."""
        before, self.source = self.source, source
        try:
            yield
        finally:
            self.source = before

    @contextlib.contextmanager
    def leaving_out(self, rows: Tensor | None) -> Iterator[None]:
        """Count the inputs `rows` (bool [n]) as finished in this context."""
        before = self._left_out
        self._left_out = before if rows is None else before | rows
        try:
            yield
        finally:
            self._left_out = before

    @property
    def finished(self) -> Tensor:
        """Bool [n]: one known perturbation fools every member that can be drawn, but for those proved safe."""
        return (self.best_errors | self.safe | (self.probs == 0)).all(dim=1)

    @property
    def unfinished(self) -> Tensor:
        """Rows whose risk can still increase, but for those left out."""
        return self.going.nonzero().flatten()

    @property
    def going(self) -> Tensor:
        """Bool [n]: the inputs that are `unfinished`."""
        if not self.drop_finished:
            return torch.ones(self.n, dtype=torch.bool, device=self.device)
        return ~(self.finished | self._left_out)

    def weigh(self, values: Tensor) -> Tensor:
        """Σ_i α_i values_i, [k]: of sets of members [k, M] the risk u·α.

        It ranks points while an attack runs; what is reported is summed in float64 on the CPU.
        """
        return values.to(self.probs.dtype) @ self.probs

    def refuse(self, rows: Tensor, sets: Tensor) -> None:
        """Record sets of members [k, M] that an attack tried and failed to fool on inputs `rows` [k]."""
        if len(rows):
            slot = self._refused.new_zeros(self.n, 1, self.members)
            slot[rows, 0] = sets
            self._refused = torch.cat([self._refused, slot], dim=1)

    def refused(self, rows: Tensor, sets: Tensor) -> Tensor:
        """Bool [k, S]: which of `sets` [S, M] contain one that was refused for its input."""
        known = self._refused[rows].unsqueeze(1)
        contains = (sets.unsqueeze(1) | ~known).all(dim=3) & known.any(dim=3)
        return contains.any(dim=2)

    def _dominated(self, rows: Tensor, sets: Tensor) -> Tensor:
        """Bool [k]: is the set empty, or contained in one already pooled for its input?"""
        # Slots that are not in use hold the empty set: it contains an empty one, and no other.
        return (self._sets[rows] >= sets.unsqueeze(1)).all(dim=2).any(dim=1)

    def _record(self, rows: Tensor, points: Tensor, errors: Tensor) -> None:
        """Record the points of inputs `rows` [k], in which an input may occur several times."""
        ordered, order = rows.sort(stable=True)
        repeat = torch.arange(len(rows), device=self.device) - torch.searchsorted(ordered, ordered)
        if not bool(repeat.any()):
            self._record_once(rows, points, errors)
            return
        for number in range(int(repeat.max()) + 1):
            part = order[repeat == number]
            self._record_once(rows[part], points[part], errors[part])

    def _record_once(self, rows: Tensor, points: Tensor, errors: Tensor) -> None:
        """`_record` where every input occurs once."""
        values = self.weigh(errors)
        better = (values > self.best_value[rows]).nonzero().flatten()
        if len(better):
            chosen = rows[better]
            self.best_value[chosen] = values[better]
            self.best_x[chosen] = points[better]
            self.best_errors[chosen] = errors[better]
            self._best_checked[chosen.cpu()] = False
            for row in chosen.tolist():
                self.best_source[row] = self.source
        new = (~self._dominated(rows, errors)).nonzero().flatten()
        if len(new):
            chosen = rows[new]
            self.foolable[chosen] |= errors[new]
            full = int(self._set_count[chosen].max()) + 1
            if full > self._sets.shape[1]:
                grown = self._sets.new_zeros(self.n, 2 * full, self.members)
                grown[:, : self._sets.shape[1]] = self._sets
                self._sets = grown
            self._sets[chosen, self._set_count[chosen]] = errors[new]
            self._set_count[chosen] += 1
            self._kept.append((chosen.cpu(), errors[new].cpu(), points[new].detach().cpu(), self.source))
            # A better point is never contained in a set pooled before, so the best one is always among the new.
            place = torch.full((self.n,), -1, dtype=torch.int64)
            place[chosen.cpu()] = self._kept_rows + torch.arange(len(new))
            self._kept_rows += len(new)
            best = rows[better].cpu()
            self._best_kept[best] = place[best]

    def _start_from(self, pool: WitnessPool) -> None:
        """Record the known witnesses, one witness of every input at a time."""
        if pool.x_adv is None:
            return
        left = np.flatnonzero(pool.located)
        while len(left):
            _, first = np.unique(pool.points[left], return_index=True)
            now = left[np.sort(first)]
            rows = torch.from_numpy(pool.points[now]).to(self.device)
            points = torch.from_numpy(pool.x_adv[now]).to(self.x)
            names = np.array([pool.sources[r] for r in now])
            for name in dict.fromkeys(names.tolist()):
                mine = np.flatnonzero(names == name)
                sets = torch.from_numpy(pool.fooled[now[mine]]).to(self.device)
                before = self._best_kept.clone()
                with self.credited(name):
                    self._record(rows[mine], points[mine], sets)
                better = (self._best_kept != before)[pool.points[now[mine]]]
                # As NumPy, because a tensor with one truth value would be taken for a row number.
                sure = better.numpy() & pool.checked[now[mine]]
                self._best_checked[pool.points[now[mine]][sure]] = True
            left = np.setdiff1d(left, now)

    def pool(self, *, new: bool = False) -> WitnessPool:
        """All witnesses so far, with the perturbed inputs; `new`: without those known at the start."""
        if not self._kept:
            empty = np.zeros((0, *self.x.shape[1:]), dtype=np.float32)
            return WitnessPool(self.n, self.members, x_adv=empty)
        points = torch.cat([k[0] for k in self._kept]).numpy()
        fooled = torch.cat([k[1] for k in self._kept]).numpy()
        x_adv = torch.cat([k[2].contiguous() for k in self._kept]).numpy()
        sources = [k[3] for k in self._kept for _ in range(len(k[0]))]
        checked = np.zeros(len(points), dtype=bool)
        sure = (self._best_checked & (self._best_kept >= 0)).nonzero().flatten()
        best = self._best_kept[sure].numpy()
        fooled[best], checked[best] = self.best_errors.cpu()[sure].numpy(), True
        first = self._new_from if new else 0
        return WitnessPool(
            self.n,
            self.members,
            points[first:],
            fooled[first:],
            x_adv=x_adv[first:],
            sources=sources[first:],
            checked=checked[first:],
        )
