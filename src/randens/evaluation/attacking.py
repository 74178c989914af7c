"""One attack after another on the same data, each for itself and then together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from randens.attacks import Attack, Survey
from randens.attacks.picture import save_grid
from randens.data import ImageData
from randens.ensemble import RandomizedEnsemble
from randens.errors import InputError
from randens.progress import Progress
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = ["Attacked", "attack_all", "draw_worst"]

_PICTURES = 8


@dataclass(frozen=True)
class Attacked:
    """What one attack (or all together: the pointwise worst case) made of an ensemble.

    Accuracies are exact expectations; `member_risks` are those of each member under any witness of this row.
    """

    name: str
    inputs: int
    natural: float
    robust: float
    member_risks: tuple[float, ...]
    forwards: int
    backwards: int
    sources: dict[str, int]
    warnings: tuple[str, ...]
    survey: Survey | None

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "attack": self.name,
            "inputs": self.inputs,
            "natural": self.natural,
            "robust": self.robust,
            "member_risks": list(self.member_risks),
            "forwards": self.forwards,
            "backwards": self.backwards,
            "found_by": self.sources,
            "warnings": list(self.warnings),
            "folder": None if self.survey is None or self.survey.folder is None else str(self.survey.folder),
        }


def attack_all(
    rec: RandomizedEnsemble,
    data: ImageData,
    attacks: Sequence[Attack],
    folder_of: Callable[[Attack], Path],
    progress: Progress,
) -> list[Attacked]:
    """Survey `data` with every attack; with several, a last row holds the pointwise worst case of all."""
    probs = rec.probs.cpu().numpy()
    rows: list[Attacked] = []
    pool: WitnessPool | None = None
    for attack in attacks:
        found = attack.survey(rec, data, folder=folder_of(attack), progress=progress)
        pool = found.pool if pool is None else pool.merge(found.pool)
        natural = 1.0 - float((found.clean_errors.double() @ rec.probs.cpu()).mean())
        rows.append(_row(attack.name, found.pool, probs, natural, found))
    if pool is not None and len(rows) > 1:
        rows.append(_row("all together", pool, probs, rows[0].natural, None, rows))
    return rows


def draw_worst(
    path: str | os.PathLike[str], data: ImageData, result: Attacked, rec: RandomizedEnsemble, threat: Threat
) -> Path:
    """A grid of the inputs of the first batch on which the attack did most harm."""
    survey = result.survey
    if survey is None:
        raise InputError("pictures show one attack at a time; give a single --attack")
    x_adv, y = next(survey.perturbed())
    x = data[torch.arange(len(x_adv))][0]
    harm = survey.risk[: len(x)] - survey.clean_errors[: len(x)].double() @ rec.probs.cpu()
    chosen = harm.argsort(descending=True, stable=True)[:_PICTURES]
    names = rec.classes or data.classes
    titles = [
        f"{names[int(y[j])]}: fools "
        + (" ".join(str(i) for i in survey.errors[j].nonzero().flatten().tolist()) or "none")
        for j in chosen.tolist()
    ]
    return save_grid(path, x[chosen], x_adv[chosen], titles, threat)


def _row(
    name: str,
    pool: WitnessPool,
    probs: Any,
    natural: float,
    survey: Survey | None,
    parts: Sequence[Attacked] = (),
) -> Attacked:
    risks, best = pool.best(probs)
    counted: dict[str, int] = {}
    for row in best.tolist():
        source = pool.sources[row] if row >= 0 else "nobody"
        counted[source] = counted.get(source, 0) + 1
    return Attacked(
        name,
        pool.n,
        natural,
        1.0 - float(risks.mean()),
        tuple(float(r) for r in pool.foolable.mean(axis=0)),
        survey.cost.forwards if survey is not None else sum(p.forwards for p in parts),
        survey.cost.backwards if survey is not None else sum(p.backwards for p in parts),
        counted,
        _warnings(name, survey) if survey is not None else (),
        survey,
    )


def _warnings(name: str, survey: Survey) -> tuple[str, ...]:
    texts = {"zero_gradient": "a gradient that is exactly zero", "nan_gradient": "NaN gradients"}
    return tuple(
        f"{name}: member {index} has {text} on {share:.1%} of the inputs; a weak attack is not a strong defence"
        for key, text in texts.items()
        for index, share in enumerate(survey.flags[key])
        if share > 0.01
    )
