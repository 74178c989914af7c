"""A training run on a part of the digits, then an evaluation, in however many processes; for ``torchrun``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tests.training.small_runs import small

from randens import RandomizedEnsemble, attacks, data, evaluate
from randens.core.devices import workers
from randens.training import train

# Odd batches, augmentation, moving average, two members. Steps of l2 have no signs for rounding to flip.
SMOOTH: dict[str, Any] = {
    "members": 2,
    "batch_size": 25,
    "log_every": 1,
    "ema": 0.9,
    "data": {"name": "digits", "crop_padding": 1},
    "threat": {"norm": "l2", "eps": 0.5},
}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    images = data.load("digits", "train").subset(slice(0, 100))
    held = data.load("digits", "validation").subset(slice(0, 60))
    with workers("cpu") as processes:
        train(small(method="bounded", **SMOOTH), folder / "bounded", data=(images, held))
        rec = train(small(method="barre", **SMOOTH), folder / "barre", data=(images, held))
        found = measured(rec, held)
        if processes.is_main:
            (folder / "measured.json").write_text(json.dumps(found))


def measured(rec: RandomizedEnsemble, images: Any) -> dict[str, Any]:
    """An evaluation in batches that several processes share out."""
    assert rec.threat is not None
    result = evaluate(rec, images, attacks.create("saddle", rec.threat, batch_size=16))
    return {"robust": float(result.robust), "natural": float(result.natural)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
