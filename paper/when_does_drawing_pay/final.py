"""The final comparison on test data: the ensemble and the single network that validation data chose, five seeds.

Equal FLOPs per prediction: the ensemble is drawn evenly, the single network is the best of all networks of its size
that AT trained here with this seed, for as long as its members and for twice as long. Both choices are made on
validation data under the saddle climber; test images are attacked once, by the portfolio.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import randens
from paper.when_does_drawing_pay.plan import BASE, CELLS, FINAL_SEEDS, SEEDS, Cell, singles
from paper.when_does_drawing_pay.trained import ensemble_of, member_of, prepare, train_members
from paper.when_does_drawing_pay.work import compute, judged, result_of, write_result

__all__ = ["compare", "finalist", "result_of_final"]

PORTFOLIO = "suite"
Say = Callable[[str], None]


def finalist() -> Cell | None:
    """The ensemble of the base's networks that validation data like best, drawn evenly; its seed is 0."""
    scores: dict[Hashable, list[float]] = defaultdict(list)
    for cell in CELLS:
        base = replace(cell.member, epochs=BASE, seed=0) == Cell().member and cell.member.epochs == BASE
        if base and cell.k == 1 and not cell.attacks and result_of(cell).is_file():
            found = json.loads(result_of(cell).read_text(encoding="utf-8"))
            scores[replace(cell, seed=0)].append(found["pooled"]["drawn"])
    complete = {cell: float(np.mean(values)) for cell, values in scores.items() if len(values) == len(SEEDS)}
    best = max(complete, key=lambda cell: complete[cell], default=None)
    assert best is None or isinstance(best, Cell)
    return best


def result_of_final(seed: int) -> Path:
    """Where the comparison of a seed is kept."""
    return result_of(Cell()).with_name(f"digits-final-s{seed}.json")


def compare(cell: Cell, folder: Path, say: Say = print) -> None:
    """Every seed's comparison that is not there yet."""
    cells = [replace(cell, seed=seed) for seed in FINAL_SEEDS if not result_of_final(seed).is_file()]
    prepare(cells, folder, say)
    for one in cells:
        alone = singles(one.seed)
        train_members(alone, folder, say)
        threat = randens.Threat(one.member.norm, one.member.eps)
        saddle = randens.attacks.create("saddle", threat)
        x, y = _all("validation")
        networks = {member.name: member_of(folder / member.name) for member in alone}
        scores = {
            name: saddle(randens.RandomizedEnsemble([network]), x, y).robust_accuracy
            for name, network in networks.items()
        }
        best = max(scores, key=lambda name: scores[name])
        validated = compute(one, folder, say=say)
        say(f"{one.name} and {best}: judging on test data")
        x, y = _all("test")
        rec, _ = ensemble_of(one, folder)
        single = randens.attacks.create(PORTFOLIO, threat)(randens.RandomizedEnsemble([networks[best]]), x, y)
        result: dict[str, Any] = {
            "cell": one.name,
            "method": one.label,
            "members": len(rec),
            "seed": one.seed,
            "inputs": len(y),
            "attack": PORTFOLIO,
            "single": best,
            "single_validation": scores[best],
            "singles": len(scores),
            "drawn_validation": validated["pooled"]["drawn"],
            "single_robust": single.robust_accuracy,
            "single_fooled": "".join("01"[int(bit)] for bit in single.pool.foolable[:, 0]),
            **judged(rec, x, y, threat, (PORTFOLIO,), alone_by="saddle"),
        }
        write_result(result_of_final(one.seed), result)


def _all(split: str) -> tuple[Any, Any]:
    data = randens.data.load("digits", split)
    return data[: len(data)]
