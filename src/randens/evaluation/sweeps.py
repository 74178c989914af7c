"""Attacking a whole data set at given probabilities, and what that adds to the witnesses known so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randens.attacks import Attack, Cost, Found
from randens.ensemble import RandomizedEnsemble
from randens.errors import InputError
from randens.evaluation.inputs import Labelled
from randens.progress import Progress, silent
from randens.witness import WitnessPool

__all__ = ["Knowledge", "as_attacks", "attack_in_batches", "clean_pool"]

_ROUNDING = 1e-12


@dataclass
class Knowledge:
    """Everything known about some inputs: the pool, which only grows, and what it has cost.

    `flags` holds, per attack, the shares of inputs with unusable gradients, as the attack reported them.
    `folder` is where finished batches are kept, numbered by `attacked`, so that an interruption costs little.
    """

    rec: RandomizedEnsemble
    data: Labelled
    pool: WitnessPool
    progress: Progress = silent
    cost: Cost = field(default_factory=Cost)
    flags: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    folder: Path | None = None
    attacked: int = 0

    def open_rows(self, probs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Inputs at which no single known perturbation fools every member that can be drawn."""
        values, _ = self.pool.best(probs)
        return np.flatnonzero(values < probs.sum() - _ROUNDING)

    def attack(self, attack: Attack, probs: NDArray[np.float64], task: str) -> None:
        """Attack the open inputs at `probs` and pool what is found.

        Members that are never drawn take no part in the attack (their number decides step sizes, and their
        gradients cost passes); its witnesses are then shown to them as well.
        """
        rows = self.open_rows(probs)
        if not len(rows):
            self.progress(task, 1, 1)
            return
        drawn = np.flatnonzero(probs)
        part = RandomizedEnsemble([self.rec.members[i] for i in drawn.tolist()], probs[drawn])
        chosen = torch.from_numpy(rows)
        found = self.run(attack, part, chosen, task)
        if len(drawn) == len(probs):
            self.flags[attack.name] = found.flags
            self.learn(rows, found.pool)
        else:
            self._show(rows[found.pool.points], found.pool, drawn)

    def run(self, attack: Attack, target: RandomizedEnsemble, rows: Tensor, task: str) -> Found:
        """Attack `target` on some inputs, count the cost, and keep finished batches in `folder` if there is one."""
        place = None if self.folder is None else self.folder / f"{self.attacked:03d}"
        self.attacked += 1
        found = attack_in_batches(
            attack, target, self.data.x[rows], self.data.y[rows], task, self.progress, place
        )
        self.cost = self.cost + found.cost
        return found

    def learn(self, rows: NDArray[np.int64], pool: WitnessPool) -> None:
        """Merge a pool whose input j is `rows[j]` here."""
        self._add(rows[pool.points], pool.fooled, pool.x_adv, pool.sources)

    def show(self, rows: NDArray[np.int64], x_adv: Tensor, source: str) -> NDArray[np.bool_]:
        """Judge all members on perturbed inputs x_adv [k, ...] of `rows`, pool the sets, and return them [k, M]."""
        fooled: NDArray[np.bool_] = self._errors(rows, x_adv)
        self._add(rows, fooled, x_adv.cpu().contiguous().numpy(), [source] * len(rows))
        return fooled

    def _show(self, points: NDArray[np.int64], pool: WitnessPool, drawn: NDArray[np.int64]) -> None:
        if pool.x_adv is None:
            raise InputError(f"the attack that found {pool.sources[:1]} returned no perturbed inputs")
        fooled = self._errors(points, torch.from_numpy(pool.x_adv))
        fooled[:, drawn] |= pool.fooled
        self._add(points, fooled, pool.x_adv, pool.sources)

    def _errors(self, rows: NDArray[np.int64], x_adv: Tensor) -> NDArray[np.bool_]:
        device = self.rec.device
        labels = self.data.y[torch.from_numpy(rows)].to(device)
        self.cost = self.cost + Cost(forwards=len(rows) * len(self.rec))
        errors: NDArray[np.bool_] = self.rec.errors(x_adv.to(device), labels).cpu().numpy()
        return errors

    def _add(
        self,
        points: NDArray[np.int64],
        fooled: NDArray[np.bool_],
        x_adv: NDArray[np.generic] | None,
        sources: Sequence[str],
    ) -> None:
        new = WitnessPool(len(self.data), len(self.rec), points, fooled, x_adv=x_adv, sources=sources)
        self.pool = self.pool.merge(new)


def clean_pool(data: Labelled, errors: NDArray[np.bool_]) -> WitnessPool:
    """The witnesses that need no attack: members wrong on the inputs as they are."""
    return WitnessPool(
        len(data),
        errors.shape[1],
        np.arange(len(data)),
        errors,
        x_adv=data.x.contiguous().numpy(),
        sources="clean",
    )


def as_attacks(attack: Attack | Sequence[Attack]) -> tuple[Attack, ...]:
    """One attack or several, all against the same threat."""
    chosen = (attack,) if isinstance(attack, Attack) else tuple(attack)
    if not chosen or not all(isinstance(a, Attack) for a in chosen):
        raise InputError(
            f"attack is {attack!r}; give one made by randens.attacks.create, or a list of them, not empty"
        )
    threats = {a.threat for a in chosen}
    if len(threats) > 1:
        raise InputError(
            f"the attacks have different threats {sorted(map(str, threats))}; they must share one"
        )
    return chosen


def attack_in_batches(
    attack: Attack,
    rec: RandomizedEnsemble,
    x: Tensor,
    y: Tensor,
    task: str,
    progress: Progress,
    folder: Path | None = None,
) -> Found:
    """`attack(rec, x, y)`, reporting after every batch how far it is; several processes share the batches out.

    With `folder`, finished batches are kept there, and an interrupted call is continued by the same call.
    """
    progress(task, 0, len(x))
    survey = attack.survey(
        rec, (x, y), folder=folder, inputs=True, progress=lambda _, done, total: progress(task, done, total)
    )
    assert survey.x_adv is not None
    return Found(
        survey.x_adv,
        survey.errors,
        survey.risk,
        survey.clean_errors,
        survey.pool,
        survey.cost,
        survey.sources,
        survey.flags,
    )
