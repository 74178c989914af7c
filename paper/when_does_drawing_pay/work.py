"""Train what a cell needs and judge it: members and ensemble by the same attack, then by all pooled witnesses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import randens
from paper.when_does_drawing_pay.plan import MOVED, Cell, Shipped
from paper.when_does_drawing_pay.trained import ensemble_of, passes_of
from randens.attacks import Attack
from randens.core.files import write_atomic
from randens.evaluation import transferred
from randens.witness import WitnessPool

__all__ = ["PORTFOLIO", "RESULTS", "compute", "images_of", "judged", "result_of", "shipped", "write_result"]

RESULTS = Path(__file__).parent / "results"
PORTFOLIO = "suite"

Say = Callable[[str], None]
Ensemble = randens.RandomizedEnsemble


def result_of(cell: Cell | Shipped, split: str = "validation") -> Path:
    """Where the result of a cell is kept."""
    return RESULTS / f"{cell.name}{'' if split == 'validation' else f'-{split}'}.json"


def compute(cell: Cell, folder: Path, split: str = "validation", say: Say = print) -> dict[str, Any]:
    """The result of a cell: read if it is there, otherwise trained, judged and written."""
    kept = result_of(cell, split)
    if kept.is_file():
        result: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return result
    say(f"{cell.name}: training")
    rec, passes = ensemble_of(cell, folder)
    flops = cell.k * sum(map(randens.models.flops, rec.members)) // len(rec)
    if cell.k > 1:
        rec = rec.subsets(cell.k)
    say(f"{cell.name}: judging on {split} data")
    x, y = images_of(cell.member.data, split)
    threat = randens.Threat(cell.member.norm, cell.member.eps)
    names = ("saddle", *(name for name in cell.attacks if name != "saddle"))
    if split == "test":
        found = judged(rec, x, y, threat, (PORTFOLIO,), alone_by="saddle")
    else:
        found = judged(rec, x, y, threat, names)
    result = {
        "cell": cell.name,
        "method": cell.label,
        "members": len(rec),
        "width": cell.member.width,
        "epochs": cell.member.epochs,
        "eps": cell.member.eps,
        "seed": cell.seed,
        "split": split,
        "inputs": len(y),
        "passes": passes,
        "flops": flops,
        **found,
    }
    write_result(kept, result)
    return result


def write_result(path: Path, result: dict[str, Any]) -> None:
    """As JSON, whole or not at all."""
    write_atomic(path, (json.dumps(result, indent=1) + "\n").encode())


def shipped(cell: Shipped, say: Say = print) -> dict[str, Any]:
    """The same for members of the zoo: read if it is there, otherwise judged and written."""
    kept = result_of(cell)
    if kept.is_file():
        result: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return result
    say(f"{cell.name}: judging on validation data")
    entries = [randens.zoo.entry(name) for name in cell.entries]
    members = [member for item in entries for member in randens.load(item.run.ensemble).members]
    rec = Ensemble(members).subsets(cell.k) if cell.k > 1 else Ensemble(members)
    x, y = randens.data.load(cell.data, "validation")[500 : 500 + cell.images]
    result = {
        "cell": cell.name,
        "method": cell.label,
        "members": len(rec),
        "entries": list(cell.entries),
        "k": cell.k,
        "eps": cell.eps,
        "split": "validation",
        "inputs": len(y),
        "passes": sum(passes_of(item.run.path) for item in entries),
        "flops": cell.k * randens.models.flops(members[0]),
        "seed": 0,
        **judged(rec, x, y, randens.Threat("linf", cell.eps), ("saddle",)),
    }
    write_result(kept, result)
    return result


def images_of(name: str, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All images of digits; of CIFAR-10 the first 2,000 test images, or a thousand validation images."""
    digits = name in ("digits", MOVED)
    data = randens.data.load("digits" if digits else "cifar10", split)
    if digits:
        return data[: len(data)]
    return data[:2000] if split == "test" else data[500:1500]


def judged(
    rec: Ensemble,
    x: torch.Tensor,
    y: torch.Tensor,
    threat: randens.Threat,
    names: Sequence[str],
    alone_by: str | None = None,
) -> dict[str, Any]:
    """Robust accuracies by every attack of `names`, and by the pool of all witnesses.

    The attacks run on every member alone, on the ensemble drawn evenly, and on the deterministic ensemble. What is
    found on one of them is shown to all: the pooled numbers. Only these compare an ensemble with its members without
    favour, because an attack on several members at once has to find more than an attack on one. For the same reason
    the attack on the ensemble has one more restart than those on its members. alone_by: another, cheaper attack for the
    members alone, where only the ensemble is compared; the ensemble's attack then has no restart more.
    """
    alone = [Ensemble([member]) for member in rec.members]
    averaged = Ensemble([randens.DeterministicEnsemble(list(rec.members))])
    uniform = np.full(len(rec.members), 1 / len(rec.members))
    by_attack: dict[str, Any] = {}
    pools: list[WitnessPool] = []
    for name in names:
        attack = _attack(name, threat)
        by = attack if alone_by is None else _attack(alone_by, threat)
        single = [by(one, x, y) for one in alone]
        more = attack.restarts + (alone_by is None)
        joint = dataclasses.replace(attack, restarts=more)(rec, x, y)
        mean = attack(averaged, x, y)
        pools += [found.pool for found in (*single, joint, mean)]
        by_attack[name] = {
            "members": [found.robust_accuracy for found in single],
            "drawn": joint.robust_accuracy,
            "deterministic": mean.robust_accuracy,
        }
    seen = [transferred(pool, rec, (x, y)) for pool in pools]
    pool = seen[0].merge(*seen[1:])
    dec = [transferred(found, averaged, (x, y)) for found in pools]
    found = randens.conflict(rec, (x, y), threat)
    pairs = found.pairs[np.triu_indices(len(rec.members), 1)]
    with torch.no_grad():
        clean = rec.errors(x, y).numpy()
    return {
        "natural": (1 - clean.mean(axis=0)).tolist(),
        "attacks": by_attack,
        "pooled": {
            "members": (1 - pool.foolable.mean(axis=0)).tolist(),
            "drawn": 1 - pool.risk(uniform),
            "deterministic": 1 - dec[0].merge(*dec[1:]).risk([1.0]),
        },
        # Per input, for intervals: how many members the worst witness fools, and who is fooled by any.
        "fooled_at_once": np.rint(pool.best(uniform)[0] * len(rec.members)).astype(int).tolist(),
        "fooled_at_all": ["".join("01"[int(bit)] for bit in column) for column in pool.foolable.T],
        "reach": {"all": found.reach, "pairs": float(np.mean(pairs)) if len(pairs) else 1.0},
    }


def _attack(name: str, threat: randens.Threat) -> Attack:
    """An attack of the map; "arc-r-100" is ARC-R with 100 steps."""
    kind, _, steps = name.rpartition("-")
    if steps.isdigit():
        return randens.attacks.create(kind, threat, steps=int(steps))
    return randens.attacks.create(name, threat)
