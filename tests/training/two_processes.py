"""Training runs on a part of the digits, for ``torchrun``: one after the other, in however many processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tests.training.small_runs import small

from randens import RandomizedEnsemble, attacks, data, evaluate, optimize_sampling
from randens.core.distributed import workers
from randens.training import train

# The run whose ensemble is attacked in the same processes, too.
MEASURED = "smooth"


def main(folder: Path, runs: dict[str, dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    images = data.load("digits", "train").subset(slice(0, 100))
    held = data.load("digits", "validation").subset(slice(0, 60))
    with workers("cpu") as processes:
        for name, settings in runs.items():
            rec = train(small(**settings), folder / name, data=(images, held))
            if name == MEASURED:
                results = measured(rec, held)
                if processes.writes:
                    (folder / name / "measured.json").write_text(json.dumps(results))


def measured(rec: RandomizedEnsemble, images: data.Data) -> dict[str, Any]:
    """An evaluation and a choice of α, in batches that several processes share out: all verdicts and counts."""
    assert rec.threat is not None
    attack = attacks.create("saddle", rec.threat, batch_size=16)
    evaluation = evaluate(rec, images, attack)
    sampling = optimize_sampling(rec, images, attack)
    return {
        "worst": evaluation.points.worst.tolist(),
        "foolable": evaluation.points.foolable.tolist(),
        "forwards": evaluation.cost.forwards,
        "probs": sampling.probs.tolist(),
        "lower_bound": sampling.lower_bound,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
