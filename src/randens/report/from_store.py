"""Read a run's numbers from its witness store without passes, so that all sections of a report use the same
witnesses.

Documents are written at different times, and the store may have more witnesses since. So the evaluation and
the curve over ε are read again from the store: every witness within a radius counts there, whichever command
found it. Numbers that only the documents have, because the store was shortened or removed, are kept. If
members or data are missing, the documents are shown unchanged.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from randens.core.errors import RandensError
from randens.evaluation import Estimate, Evaluation
from randens.evaluation.intervals import estimate
from randens.evaluation.results import Points
from randens.evaluation.run_folder import Subject, open_subject
from randens.evaluation.worst_case import average_of
from randens.report.load import LoadedRun, Radii, Radius, StoredInterval, load_run, load_runs
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore, input_keys, member_key

__all__ = ["from_store", "read_run", "read_runs"]


def read_run(path: str | os.PathLike[str]) -> LoadedRun:
    """`load_run`, with numbers from the run's witness store."""
    return from_store(load_run(path))


def read_runs(paths: Sequence[str | os.PathLike[str]]) -> tuple[LoadedRun, ...]:
    """`load_runs`, with numbers from each run's witness store."""
    return tuple(from_store(one) for one in load_runs(paths))


def from_store(one: LoadedRun) -> LoadedRun:
    """Return the run with its evaluation and its curve over ε read from the store."""
    known = one.evaluation
    if known is None or not (one.run.path / "witnesses").is_dir():
        return one
    try:
        subject = open_subject(one.run.path, data=known.data)
        fitting = subject.evaluation()
        if fitting is None:
            return one
        evaluation = _evaluation(known, _Witnesses(subject, known.split, known.n, known.threat))
        radii = one.radii
        if radii is not None and radii.ensemble == known.ensemble and radii.data == known.data:
            radii = _radii(radii, known, subject)
    except RandensError:
        return one  # the data, or code that the members need, are missing
    return dataclasses.replace(one, evaluation=evaluation, radii=radii)


class _Witnesses:
    """Stored verdicts of the members, and of their average, on the first n inputs of a split, up to a radius."""

    def __init__(self, subject: Subject, split: str, n: int, threat: Threat) -> None:
        images = subject.load(split, n)
        store = subject.store()
        store.refresh(threat, images.x)
        keys = input_keys(images.x, images.y)
        members = list(subject.rec.members)
        average = average_of(subject.rec) if len(members) > 1 else members[0]
        self.n, self.members = len(images), len(members)
        self._of_members = self._recalled(store, [member_key(m) for m in members], keys, images.x, threat)
        self._of_average = self._recalled(store, [member_key(average)], keys, images.x, threat)

    @staticmethod
    def _recalled(
        store: WitnessStore, names: list[str], keys: NDArray[np.uint8], x: torch.Tensor, threat: Threat
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64], tuple[str, ...]]:
        kept = store.recall(names, keys, x, threat, inputs=False)
        return kept.points, kept.verdicts == 1, kept.distance, kept.sources

    def pool(self, eps: float) -> WitnessPool:
        """Return the witnesses within `eps`."""
        points, fooled, distance, sources = self._of_members
        near = np.flatnonzero(distance <= eps)
        return WitnessPool(
            self.n, self.members, points[near], fooled[near], sources=[sources[row] for row in near.tolist()]
        )

    def average_fooled(self, eps: float) -> NDArray[np.bool_]:
        """Bool [n]: inputs at which the average of all logits is fooled within `eps`."""
        points, fooled, distance, _ = self._of_average
        found = np.zeros(self.n, dtype=bool)
        found[points[fooled[:, 0] & (distance <= eps)]] = True
        return found


def _evaluation(known: Evaluation, witnesses: _Witnesses) -> Evaluation:
    old = known.points
    rows, members = np.nonzero(old.foolable)
    alone = np.zeros((len(rows), known.members), dtype=bool)
    alone[np.arange(len(rows)), members] = True
    pool = witnesses.pool(known.threat.eps)
    pool = pool.merge(WitnessPool(known.n, known.members, np.arange(known.n), old.worst, sources=old.sources))
    pool = pool.merge(WitnessPool(known.n, known.members, rows, alone))
    best = pool.best(known.probs)[1]
    found = best >= 0
    worst = np.zeros_like(old.worst)
    worst[found] = pool.fooled[best[found]]
    # If the store has no worse witness, the verdict and its source stay unchanged.
    same = worst @ known.probs <= old.worst @ known.probs + 1e-12
    worst[same] = old.worst[same]
    sources = tuple(
        old.sources[j] if same[j] else pool.sources[best[j]] if found[j] else "" for j in range(known.n)
    )
    average = old.deterministic_worst
    if average is not None:
        average = average | witnesses.average_fooled(known.threat.eps)
    points = Points(old.clean, worst, pool.foolable, sources, old.deterministic_clean, average)
    return dataclasses.replace(known, points=points, profile=pool.profile())


def _radii(radii: Radii, known: Evaluation, subject: Subject) -> Radii:
    if not np.allclose(radii.probs, known.probs) or radii.norm != known.threat.norm:
        return radii
    largest = max(radius.eps for radius in radii.radii)
    witnesses = _Witnesses(subject, radii.split, radii.n, known.threat.scaled(largest / known.threat.eps))

    def lower(one: StoredInterval, values: NDArray[np.floating[Any]]) -> StoredInterval:
        found: Estimate = estimate(values, radii.confidence)
        return StoredInterval.of(found) if found.value < one.value else one

    lines = []
    for radius in radii.radii:
        pool = witnesses.pool(radius.eps)
        lines.append(
            Radius(
                eps=radius.eps,
                robust=lower(radius.robust, 1 - pool.best(known.probs)[0]),
                members=[
                    lower(one, 1.0 - pool.foolable[:, index]) for index, one in enumerate(radius.members)
                ],
                deterministic=None
                if radius.deterministic is None
                else lower(radius.deterministic, 1.0 - witnesses.average_fooled(radius.eps)),
            )
        )
    return radii.model_copy(update={"radii": lines})
