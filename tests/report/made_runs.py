"""Run folders made for the tests: some of chosen numbers, one of members that were really trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tests.evaluation.trained import ensemble

from randens.attacks import Cost
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import About, Evaluation
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = ["THREAT", "chosen_evaluation", "chosen_run", "trained_ensemble"]

THREAT = Threat("linf", 0.1)


def chosen_evaluation(
    members: int,
    *,
    n: int = 200,
    share: float = 0.35,
    probs: ArrayLike | None = None,
    seed: int = 0,
    data: str = "digits",
    threat: Threat = THREAT,
) -> Evaluation:
    """An evaluation of random verdicts, without any network: consistent, and as large as one likes."""
    rng = np.random.default_rng(seed)
    fooled, clean = rng.random((3 * n, members)) < share, rng.random((n, members)) < 0.03
    points = np.r_[np.repeat(np.arange(n), 3), np.arange(n)]
    pool = WitnessPool(n, members, points, np.r_[fooled, clean], sources="saddle")
    alpha = np.full(members, 1 / members) if probs is None else np.asarray(probs, dtype=np.float64)
    rows = pool.best(alpha)[1]
    worst: NDArray[np.bool_] = np.where(rows[:, None] >= 0, pool.fooled[rows], False)
    attack = {"name": "saddle", "orders": 1}
    return Evaluation(
        about=About("0" * 64, tuple(alpha.tolist()), data, "test", n, threat.to_dict(), (attack,)),
        clean=clean,
        pool=pool,
        average=(clean.sum(axis=1) * 2 > members, worst.sum(axis=1) * 2 > members) if members > 1 else None,
        classes=10,
        flops=(1000,) * members,
        cost=Cost(12_345, 6_789),
        chosen_on={"probs": "validation"},
        also={} if members == 1 else {"uniform": np.full(members, 1 / members)},
    )


def chosen_run(path: Path, evaluation: Evaluation | None, *, method: str = "barre", epochs: int = 0) -> Path:
    """A run folder with that evaluation and, if wanted, a training log."""
    run = Run.create(path, recipe={"method": method, "model": {"name": "convnet"}}, seed=7)
    if evaluation is not None:
        evaluation.save(run.path / "evaluation.json")
    for epoch in range(epochs):
        accuracies = {
            "accuracy": 0.3 + 0.05 * epoch,
            "natural": 0.5 + 0.04 * epoch,
            "robust": 0.2 + 0.03 * epoch,
        }
        run.log(
            event="epoch", member=1 + epoch // 4, epoch=1 + epoch % 4, loss=[2.0 - 0.1 * epoch], **accuracies
        )
    return path


def trained_ensemble(classes: Sequence[str] | None = None) -> RandomizedEnsemble:
    """Three small networks, trained on digits."""
    members = list(ensemble("mlp", "mlp", "mlp").members)
    return RandomizedEnsemble(members, classes=classes, threat=THREAT)
