"""The final comparison on test data: the ensemble and the single network that validation data chose, five seeds.

Equal FLOPs per prediction: the ensemble (`FINAL`, the best on validation data) is drawn evenly, the single network is
the best on validation data, under the saddle climber, of all that `singles` names. The longest were trained for more
epochs than any member. Test images are attacked once, by the portfolio. Ensemble and single network are kept apart, so
that another choice of single networks needs no new attack on the ensemble.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import randens
from paper.when_does_drawing_pay.plan import FINAL, FINAL_SEEDS, Cell, singles
from paper.when_does_drawing_pay.trained import member_of, prepare, train_members
from paper.when_does_drawing_pay.work import PORTFOLIO, compute, images_of, result_of, write_result

__all__ = ["compare", "compared", "finals", "result_of_single"]

Say = Callable[[str], None]


def result_of_single(cell: Cell) -> Path:
    """Where the single network that an ensemble is compared with is kept."""
    return result_of(cell, "single")


def compared(cell: Cell) -> dict[str, Any] | None:
    """The ensemble on test data with its single network; None where one of them is missing."""
    paths = (result_of(cell, "test"), result_of_single(cell))
    if not all(path.is_file() for path in paths):
        return None
    ensemble, single = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    return {**ensemble, **single}


def finals(cell: Cell = FINAL) -> list[Cell]:
    """An ensemble of the final comparison on digits, with every seed."""
    return [replace(cell, seed=seed) for seed in FINAL_SEEDS]


def compare(wanted: Iterable[Cell], folder: Path, say: Say = print) -> None:
    """Every comparison that is not there yet."""
    cells = [cell for cell in wanted if compared(cell) is None]
    prepare(cells, folder, say)
    train_members([one for cell in cells for one in singles(cell) if one.data != "cifar10"], folder, say)
    for cell in cells:
        compute(cell, folder, "test", say)
        if not result_of_single(cell).is_file():
            write_result(result_of_single(cell), _best(cell, folder, say))


def _best(cell: Cell, folder: Path, say: Say) -> dict[str, Any]:
    """The single network that validation data choose, on test data."""
    threat = randens.Threat(cell.member.norm, cell.member.eps)
    portfolio, saddle = (randens.attacks.create(name, threat) for name in (PORTFOLIO, "saddle"))
    x, y = images_of(cell.member.data, "validation")
    networks = {member.name: member_of(folder / member.name) for member in singles(cell)}
    scores = {
        name: saddle(randens.RandomizedEnsemble([network]), x, y).robust_accuracy
        for name, network in networks.items()
    }
    best = max(scores, key=lambda name: scores[name])
    say(f"{best}: judging on test data")
    x, y = images_of(cell.member.data, "test")
    single = portfolio(randens.RandomizedEnsemble([networks[best]]), x, y)
    return {
        "single": best,
        "singles": scores,
        "single_robust": single.robust_accuracy,
        "single_fooled": "".join("01"[int(bit)] for bit in single.pool.foolable[:, 0]),
    }
