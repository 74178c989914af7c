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

# One process imports torch; each run is a fork of it, which kills itself after a number of steps or in the middle of a
# file operation, before the rename of a write. Printed: how each ended.
_CHILD = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from randens.training import train
from tests.training.small_runs import small

folder, kind, moment = sys.argv[1], "none", 0
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
# A first optimizer imports torch's compiler, seconds that every fork would spend again.
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
for text in sys.argv[2:]:
    kind, number = text.split(":")
    moment = int(number)
    child = os.fork()
    if child == 0:
        train(recipe, folder, lambda task, done, total: die_at("step") if task == "run" else None)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.path.exists(folder + "/ensemble"), flush=True)
"""


def _runs(folder: Path, moments: list[str]) -> list[str]:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", _CHILD, str(folder), *moments]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, timeout=900, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_killed_at_random_moments_a_run_ends_with_identical_bytes(tmp_path: Path) -> None:
    recipe = small(method="barre", members=2, ema=0.9, data={"crop_padding": 1}, checkpoint={"seconds": 60})
    train(recipe, tmp_path / "whole")
    rng = random.Random(2026)
    # The first rename is the manifest's; whatever is there then must not be in the way.
    moments = ["rename:1", f"step:{rng.randint(1, 12)}", f"rename:{rng.randint(3, 12)}", "none:0"]
    ended = _runs(tmp_path / "killed", moments)
    assert ended == [f"{-signal.SIGKILL} False"] * 3 + ["0 True"]
    for path in sorted((tmp_path / "whole" / "ensemble").iterdir()):
        assert (tmp_path / "killed" / "ensemble" / path.name).read_bytes() == path.read_bytes(), path.name
    left = [p for p in (tmp_path / "killed").rglob(".*") if p.suffix in (".tmp", ".old")]
    assert left == []
