"""Measure what a report shows beyond an evaluation: accuracy over ε, attacks compared, pictures.

The results are kept in the run folder, under report/, so that the page can be written again without new
attacks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from randens import attacks
from randens.attacks.dataset import attack_data
from randens.core.errors import InputError
from randens.core.progress import Progress, silent
from randens.core.runs import Run
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import estimate
from randens.evaluation.argument_checks import DataLike, as_image_data
from randens.evaluation.curves import sweep
from randens.evaluation.preparation import prepare
from randens.models import on_device
from randens.report.load import AttackLine, AttackTable, Gallery, Radii, Radius, measured_on
from randens.report.pictures import make_gallery
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore, as_store

__all__ = ["COMPARED", "FACTORS", "Measurements", "measure"]

FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Radii of the robustness curve, in units of the threat's."""

COMPARED = ("afgsm", "adaptive-pgd-l", "adaptive-pgd-s", "arc", "arc-r", "lattice", "saddle")
"""Attacks on the ensemble that are compared by default."""


@dataclass(frozen=True)
class Measurements:
    """The measurements that a page shows beyond an evaluation.

    Attributes
    ----------
    radii : Radii
        Robust accuracy over ε.
    attacks : AttackTable
        Attacks compared.
    gallery : Gallery or None
        Pictures; None for inputs that are not pictures.
    """

    radii: Radii
    attacks: AttackTable
    gallery: Gallery | None

    def save(self, run: Run) -> bool:
        """Save them in the run folder for the report; see `Run.keep`.

        Returns whether the report uses all of them: measurements on fewer inputs do not replace those on more.
        """
        parts = {"radii": self.radii, "attacks": self.attacks, "gallery": self.gallery}
        used = True
        for name, part in parts.items():
            if part is not None:
                document = part.model_dump()
                asked = ("ensemble", "probs", "data", "split", "n", "norm", "eps")
                question = {key: document.get(key) for key in asked}
                used &= run.keep(f"report/{name}", document, question)[1]
        return used


def measure(
    rec: RandomizedEnsemble,
    data: DataLike,
    threat: Threat,
    *,
    attack: Sequence[str] = ("saddle",),
    compared: Sequence[str] = COMPARED,
    factors: Sequence[float] = FACTORS,
    pool: WitnessPool | None = None,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> Measurements:
    """Attack `rec` with `attack` at every radius, and with each of `compared` alone at the threat's own radius.

    Parameters
    ----------
    rec, data, threat : RandomizedEnsemble, Data or pair or loader, Threat
        The ensemble of the page, inputs with labels, and the perturbation set.
    attack : sequence of str
        Names; the worst of all counts at every radius.
    compared : sequence of str
        Names; each works alone.
    factors : sequence of float
        The radii, in units of the threat's.
    pool : WitnessPool, optional
        Known witnesses of the same inputs at the threat's radius, for the pictures; without it they come from
        the witnesses found here.
    folder, seed, confidence, progress
        As for `randens.evaluate`. A report reads the curve from the store again, so that it agrees with every
        evaluation.

    Returns
    -------
    Measurements
        For `Measurements.save`.

    Examples
    --------
    >>> import torch, randens
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    >>> rec, data = randens.RandomizedEnsemble([net]), randens.data.load("digits", "test").subset(range(5))
    >>> found = measure(rec, data, randens.Threat("linf", 0.1), compared=["pgd"], factors=[0.5, 1.0])
    >>> [round(radius.eps, 2) for radius in found.radii.radii]
    [0.05, 0.1]
    """
    data = as_image_data(data, rec)
    store = as_store(folder)
    report = progress or silent
    sizes = sorted(set(factors))
    if not sizes or not all(0 < f < float("inf") for f in sizes):
        raise InputError(f"factors is {tuple(factors)}; give numbers > 0, in units of eps")
    if not compared:
        raise InputError(f"compared is {compared!r}; name at least one attack")
    lines = _compare(rec, data, threat, compared, seed, confidence, report, store)
    case = prepare(rec, data, [attacks.create(name, threat, seed=seed) for name in attack])
    radii, at_threat = [], pool
    with on_device(case.rec, None):
        for point, found, _ in sweep(
            case,
            [threat.scaled(factor).eps for factor in sizes],
            deterministic=True,
            confidence=confidence,
            store=store,
            progress=silent,
            known=pool,
        ):
            average, members = point.deterministic, list(point.members)
            radii.append(Radius(eps=point.eps, robust=point.ensemble, members=members, deterministic=average))
            report("accuracy over ε", len(radii), len(sizes))
            if point.eps == threat.eps or (point.eps < threat.eps and pool is None):
                at_threat = found
    curve = Radii(**measured_on(rec, data, threat), attacks=list(attack), confidence=confidence, radii=radii)
    pictures = None
    if len(data.shape) == 3 and at_threat is not None:
        pictures = make_gallery(rec, data, at_threat, threat)
    return Measurements(curve, lines, pictures)


def _compare(
    rec: RandomizedEnsemble,
    data: Data,
    threat: Threat,
    names: Sequence[str],
    seed: int,
    confidence: float,
    progress: Progress,
    store: WitnessStore | None,
) -> AttackTable:
    lines = []
    together = np.zeros(len(data))
    for place, name in enumerate(names):
        progress("comparing attacks", place, len(names))
        found = attack_data(attacks.create(name, threat, seed=seed), rec, (data.x, data.y), store=store)
        risks = found.risk.numpy()
        together = np.maximum(together, risks)
        lines.append(
            AttackLine(
                name=name,
                robust=estimate(1 - risks, confidence),
                forwards=found.cost.forwards,
                backwards=found.cost.backwards,
                seconds=found.seconds,
            )
        )
    progress("comparing attacks", len(names), len(names))
    return AttackTable(
        **measured_on(rec, data, threat),
        attacks=lines,
        together=estimate(1 - together, confidence),
    )
