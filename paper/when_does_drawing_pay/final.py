"""The final comparison on test data: the ensemble and the single network that validation data chose, five seeds.

Equal FLOPs per prediction: the ensemble (`FINAL`, chosen on validation data) is drawn evenly, the single network is the
best on validation data under the saddle climber of all that `singles` names. No member of the ensemble was trained for
more epochs than the longest of these. Test images are attacked once, by the portfolio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import randens
from paper.when_does_drawing_pay.plan import FINAL, FINAL_SEEDS, Cell, Member, singles
from paper.when_does_drawing_pay.trained import ensemble_of, member_of, prepare, train_members
from paper.when_does_drawing_pay.work import compute, images_of, judged, result_of, write_result

__all__ = ["compare", "finals", "result_of_final"]

PORTFOLIO = "suite"
Say = Callable[[str], None]


def result_of_final(cell: Cell) -> Path:
    """Where the comparison of an ensemble is kept."""
    return result_of(cell, "test")


def finals() -> list[Cell]:
    """The ensemble of the final comparison on digits, with every seed."""
    return [replace(FINAL, seed=seed) for seed in FINAL_SEEDS]


def compare(wanted: Iterable[Cell], folder: Path, say: Say = print) -> None:
    """Every comparison that is not there yet."""
    cells = [cell for cell in wanted if not result_of_final(cell).is_file()]
    prepare(cells, folder, say)
    train_members([one for cell in cells for one in singles(cell) if one.data != "cifar10"], folder, say)
    for cell in cells:
        ensemble_of(cell, folder)  # what the engine trains
        write_result(result_of_final(cell), _compared(cell, singles(cell), folder, say))


def _compared(cell: Cell, alone: Sequence[Member], folder: Path, say: Say) -> dict[str, Any]:
    """The ensemble of `cell` and the best of the networks `alone`, chosen on validation data, on test data."""
    threat = randens.Threat(cell.member.norm, cell.member.eps)
    portfolio = randens.attacks.create(PORTFOLIO, threat)
    saddle = randens.attacks.create("saddle", threat)
    x, y = images_of(cell.member.data, "validation")
    networks = {member.name: member_of(folder / member.name) for member in alone}
    scores = {
        name: saddle(randens.RandomizedEnsemble([network]), x, y).robust_accuracy
        for name, network in networks.items()
    }
    best = max(scores, key=lambda name: scores[name])
    validated = compute(cell, folder, say=say)
    say(f"{cell.name} and {best}: judging on test data")
    x, y = images_of(cell.member.data, "test")
    rec, passes = ensemble_of(cell, folder)
    single = portfolio(randens.RandomizedEnsemble([networks[best]]), x, y)
    return {
        "cell": cell.name,
        "method": cell.label,
        "members": len(rec),
        "seed": cell.seed,
        "inputs": len(y),
        "attack": PORTFOLIO,
        "passes": passes,
        "flops": randens.models.flops(rec.members[0]),
        "single": best,
        "singles": scores,
        "drawn_validation": validated["pooled"]["drawn"],
        "single_robust": single.robust_accuracy,
        "single_fooled": "".join("01"[int(bit)] for bit in single.pool.foolable[:, 0]),
        **judged(rec, x, y, threat, (PORTFOLIO,), alone_by="saddle"),
    }
