"""Two processes give the loss curve of one; each rank takes its part, and one writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.two_processes import main, measured

from randens import data
from randens.core.distributed import Workers, _layout
from randens.core.errors import InputError
from randens.core.runs import Run
from randens.ensemble import load

_RUNS: dict[str, dict[str, Any]] = {
    # Odd batches, augmentation, moving average, a second member, α. Steps of l2 have no signs for rounding to flip.
    "smooth": {
        "method": "barre",
        "members": 2,
        "batch_size": 25,
        "log_every": 1,
        "ema": 0.9,
        "data": {"name": "digits", "crop_padding": 1},
        "threat": {"norm": "l2", "eps": 0.5},
    },
    # BatchNorm over both ranks' images. Networks this deep amplify rounding, so only the first steps are close.
    "batch-norm": {
        "epochs": 1,
        "batch_size": 25,
        "log_every": 1,
        "model": {"name": "resnet20", "width": 4, "depth": None},
        "optimizer": {"lr": 0.02},
        "threat": {"norm": "l2", "eps": 0.5},
    },
}


def _torchrun(folder: Path, runs: dict[str, dict[str, Any]]) -> None:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"),
        *("-m", "tests.training.two_processes", str(folder), json.dumps(runs)),
    ]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=root, timeout=900, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def _losses(folder: Path) -> list[float]:
    return [line["loss"][0] for line in Run.open(folder).metrics() if line["event"] == "step"]


def test_two_processes_give_the_loss_curve_of_one(tmp_path: Path) -> None:
    _torchrun(tmp_path / "two", _RUNS)
    main(tmp_path / "one", _RUNS)
    curves = {name: (_losses(tmp_path / "one" / name), _losses(tmp_path / "two" / name)) for name in _RUNS}
    one, two = curves["smooth"]
    assert len(one) == len(two) == 2 * 2 * 4
    assert len(set(np.round(one, 3))) > 10
    assert np.allclose(two, one, rtol=1e-3)
    one, two = curves["batch-norm"]
    assert len(one) == 4
    assert np.allclose(two[:3], one[:3], rtol=1e-5)
    alone, together = (load(tmp_path / count / "smooth" / "ensemble") for count in ("one", "two"))
    assert together.probs.tolist() == pytest.approx(alone.probs.tolist(), abs=1e-6)
    events = [line["event"] for line in Run.open(tmp_path / "two" / "smooth").metrics()]
    assert events.count("finished") == 1
    assert events.count("epoch") == 4
    # What two processes measured of their ensemble, one measures of it, too.
    shared = json.loads((tmp_path / "two" / "smooth" / "measured.json").read_text())
    held = data.load("digits", "validation").subset(slice(0, 60))
    assert measured(load(tmp_path / "two" / "smooth" / "ensemble"), held) == shared
    assert any(map(any, shared["worst"]))


def test_parts_cover_a_batch_without_overlap() -> None:
    class Rank(Workers):
        def __init__(self, rank: int, world: int) -> None:
            super().__init__(torch.device("cpu"))
            self.rank, self.world = rank, world

    for n in (7, 8, 256):
        rows = [list(range(n))[Rank(rank, 3).part(n)] for rank in range(3)]
        assert [row for part in rows for row in part] == list(range(n))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_one_process_needs_no_communication() -> None:
    processes = Workers(torch.device("cpu"))
    assert processes.writes
    assert processes.agreed(True)
    assert not processes.agreed(False)
    assert processes.total(torch.tensor([2.0])).tolist() == [2.0]
    processes.barrier()


def test_launchers_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    assert _layout() == (1, 1)
    monkeypatch.setenv("SLURM_NTASKS", "8")  # a batch script around the step: still one process
    assert _layout() == (1, 1)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    assert _layout() == (8, 4)
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "3")
    with pytest.raises(InputError, match="8 tasks do not divide evenly over 3 nodes"):
        _layout()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _layout() == (6, 2)
