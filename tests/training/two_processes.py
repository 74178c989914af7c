"""Training runs on a part of the digits, for ``torchrun``: one after the other, in however many processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tests.training.small_runs import small

from randens import data
from randens.training import train
from randens.training.distributed import workers


def main(folder: Path, runs: dict[str, dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    images = data.load("digits", "train").subset(slice(0, 100))
    held = data.load("digits", "validation").subset(slice(0, 60))
    with workers("cpu"):
        for name, settings in runs.items():
            train(small(**settings), folder / name, data=(images, held))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
