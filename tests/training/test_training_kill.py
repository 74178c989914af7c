"""SIGKILL at random moments, then the same command again: the final bytes are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.training.small_runs import small

from randens.training import train

# Kills itself after a number of steps, or in the middle of a file operation: before the rename of a write.
_CHILD = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from randens.training import train
from tests.training.small_runs import small

folder, kind, moment = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen = 0

def die_at(wanted):
    global seen
    if kind == wanted:
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)

rename = os.replace
def replace(source, target):
    die_at("rename")
    rename(source, target)
os.replace = replace

recipe = small(method="barre", members=2, ema=0.9, checkpoint={"seconds": 0}, data={"crop_padding": 1})
train(recipe, folder, lambda task, done, total: die_at("step") if task == "run" else None)
"""


def _run(folder: Path, kind: str, moment: int) -> int:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", _CHILD, str(folder), kind, str(moment)]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, timeout=900, capture_output=True, check=False)
    return done.returncode


def test_killed_at_random_moments_a_run_ends_with_identical_bytes(tmp_path: Path) -> None:
    recipe = small(method="barre", members=2, ema=0.9, data={"crop_padding": 1}, checkpoint={"seconds": 60})
    train(recipe, tmp_path / "whole")
    rng = random.Random(2026)
    # The first rename is the manifest's; whatever is there then must not be in the way.
    moments = [("rename", 1), ("step", rng.randint(1, 12)), ("rename", rng.randint(3, 12))]
    for kind, moment in moments:
        assert _run(tmp_path / "killed", kind, moment) == -signal.SIGKILL, (kind, moment)
        assert not (tmp_path / "killed" / "ensemble").exists()
    assert _run(tmp_path / "killed", "none", 0) == 0
    for path in sorted((tmp_path / "whole" / "ensemble").iterdir()):
        assert (tmp_path / "killed" / "ensemble" / path.name).read_bytes() == path.read_bytes(), path.name
    left = [p for p in (tmp_path / "killed").rglob(".*") if p.suffix in (".tmp", ".old")]
    assert left == []
