"""Measure what a report shows beyond an evaluation: accuracy over ε, attacks compared, pictures."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from randens import attacks
from randens.core.errors import InputError
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.data import Data, as_data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import Curve, curve, estimate
from randens.report.load import AttackLine, AttackTable, Gallery, measured_on
from randens.report.pictures import make_gallery
from randens.threat import Threat
from randens.witness.store import WitnessStore

__all__ = ["COMPARED", "FACTORS", "Measurements", "measure"]

FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Radii of the robustness curve, in units of the threat's."""

COMPARED = ("afgsm", "adaptive-pgd-l", "adaptive-pgd-s", "arc", "arc-r", "lattice", "saddle")
"""Attacks on the ensemble that are compared by default."""


@dataclass(frozen=True)
class Measurements:
    """The measurements that a page shows beyond an evaluation.

    curve: robust accuracy over ε. attacks: attacks compared. gallery: pictures; None for other inputs.
    """

    curve: Curve
    attacks: AttackTable
    gallery: Gallery | None

    def save(self, run: Run) -> None:
        """Save them in the run folder for the report."""
        run.write("curve", self.curve.to_json())
        run.write("report/attacks", self.attacks.model_dump())
        if self.gallery is not None:
            run.write("report/gallery", self.gallery.model_dump())


def measure(
    rec: RandomizedEnsemble,
    data: Any,
    threat: Threat,
    *,
    attack: Sequence[str] = ("saddle",),
    compared: Sequence[str] = COMPARED,
    factors: Sequence[float] = FACTORS,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> Measurements:
    """Attack `rec` with `attack` at every radius, and with each of `compared` alone at the threat's own radius.

    factors: the radii, in units of the threat's. The other parameters are those of `randens.evaluate`.
    """
    inputs = as_data(data)
    sizes = sorted(set(factors))
    if not sizes or not all(0 < f < float("inf") for f in sizes):
        raise InputError(f"factors is {tuple(factors)}; give numbers > 0, in units of eps")
    if not compared:
        raise InputError(f"compared is {compared!r}; name at least one attack")
    report = progress or silent
    lines = _compare(rec, inputs, threat, compared, seed, confidence, report)
    chosen = [attacks.create(name, threat, seed=seed) for name in attack]
    options: dict[str, Any] = {"confidence": confidence, "folder": folder, "progress": report}
    within = curve(
        rec, inputs, chosen, eps=[f * threat.eps for f in sizes if f <= 1] or [threat.eps], **options
    )
    pictures = make_gallery(rec, inputs, within.pool, threat) if len(inputs.shape) == 3 else None
    found = curve(rec, inputs, chosen, eps=[f * threat.eps for f in sizes], **options)
    return Measurements(found, lines, pictures)


def _compare(
    rec: RandomizedEnsemble,
    data: Data,
    threat: Threat,
    names: Sequence[str],
    seed: int,
    confidence: float,
    progress: Progress,
) -> AttackTable:
    lines = []
    together = np.zeros(len(data))
    for place, name in enumerate(names):
        progress("comparing attacks", place, len(names))
        begun = time.perf_counter()
        found = attacks.create(name, threat, seed=seed).run(rec, (data.x, data.y))
        risks = found.risk.numpy()
        together = np.maximum(together, risks)
        lines.append(
            AttackLine(
                name=name,
                robust=estimate(1 - risks, confidence),
                forwards=found.cost.forwards,
                backwards=found.cost.backwards,
                seconds=time.perf_counter() - begun,
            )
        )
    progress("comparing attacks", len(names), len(names))
    return AttackTable(
        **measured_on(rec, data, threat),
        attacks=lines,
        together=estimate(1 - together, confidence),
    )
