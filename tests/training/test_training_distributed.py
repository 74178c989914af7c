"""Two processes, however they are started, give the ensemble of one; each rank takes its part, and one writes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.training.two_processes import main, measured

from randens import data
from randens.core.devices import Workers, launched
from randens.core.errors import InputError
from randens.core.progress import leads
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble, load
from randens.training import load_recipe, train

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
SLURM = ("PROCID", "NTASKS", "NNODES", "NTASKS_PER_NODE", "STEP_NUM_TASKS", "STEP_NUM_NODES")
SETTINGS = [
    *("members=2", "epochs=1", "later_epochs=1", "batch_size=251", "model.width=16", "device=cpu"),
    *("threat.norm=l2", "threat.eps=0.5", "validation.size=40", "sampling.method=uniform"),
]


def _environment(**changes: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    kept = {k: v for k, v in os.environ.items() if k not in LAUNCHERS and not k.startswith("SLURM")}
    return {**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **changes}


def _run(*commands: tuple[list[str], dict[str, str]]) -> None:
    """Processes side by side; all must succeed."""
    started = [
        subprocess.Popen([sys.executable, *words], env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for words, env in commands
    ]
    for process in started:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors[-2000:]


def _same(one: RandomizedEnsemble, two: RandomizedEnsemble) -> None:
    assert two.probs.tolist() == pytest.approx(one.probs.tolist(), abs=1e-6)
    for key, value in one.state_dict().items():
        assert torch.allclose(two.state_dict()[key], value, rtol=1e-3, atol=1e-4), key


def test_torchrun_trains_and_evaluates_as_one_process_does(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    _run(([*words, "-m", "tests.training.two_processes", str(tmp_path / "two")], _environment()))
    main(tmp_path / "one")
    for method in ("barre", "bounded"):
        _same(*(load(tmp_path / count / method / "ensemble") for count in ("one", "two")))
    events = [line["event"] for line in Run.open(tmp_path / "two" / "barre").metrics()]
    assert (events.count("finished"), events.count("epoch")) == (1, 4)
    shared = json.loads((tmp_path / "two" / "measured.json").read_text())
    held = data.load("digits", "validation").subset(slice(0, 60))
    assert measured(load(tmp_path / "two" / "barre" / "ensemble"), held) == shared


@pytest.mark.parametrize("launcher", ["devices", "rank", pytest.param("srun", marks=pytest.mark.slow)])
def test_the_command_in_two_processes_makes_the_ensemble_of_one(tmp_path: Path, launcher: str) -> None:
    words = ["-m", "randens", "train", "digits-mlp-barre", "--out", str(tmp_path / "two")]
    for setting in SETTINGS:
        words += ["--set", setting]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    if launcher == "devices":
        _run(([*words, "--devices", "2"], _environment()))
    elif launcher == "rank":
        ranks = [{**address, "RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
        _run(*((words, _environment(**rank)) for rank in ranks))
    else:
        # As `srun -n 2` sets them in an allocation for eight tasks made by salloc.
        step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_NTASKS": "8"}
        job = {**step, "SLURM_JOB_NAME": "interactive", "SLURM_NODEID": "0", **address}
        ranks = [{**job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
        _run(*((words, _environment(**rank)) for rank in ranks))
    train(load_recipe("digits-mlp-barre", SETTINGS), tmp_path / "one")
    _same(load(tmp_path / "one" / "ensemble"), load(tmp_path / "two" / "ensemble"))


@pytest.mark.parametrize("n", [7, 8, 256])
def test_parts_cover_a_batch_without_overlap(n: int) -> None:
    parts = [list(range(n))[Workers(torch.device("cpu"), rank, 3).part(n)] for rank in range(3)]
    assert [row for part in parts for row in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_launchers_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHERS, *(f"SLURM_{name}" for name in SLURM)):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def after(**changes: str) -> tuple[int, int]:
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        return launched(CPU)

    assert after(MASTER_ADDR="127.0.0.1", MASTER_PORT="1") == (1, 1)
    assert after(SLURM_NTASKS="8") == (1, 1)  # a batch script around the step: still one process
    assert leads()
    assert after(SLURM_STEP_NUM_TASKS="8", SLURM_STEP_NUM_NODES="2", SLURM_PROCID="3") == (8, 4)
    assert not leads()
    with pytest.raises(InputError, match="8 processes do not divide evenly"):
        after(LOCAL_WORLD_SIZE="3")
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.delenv("LOCAL_RANK")
    assert (after(RANK="5", WORLD_SIZE="6"), os.environ["LOCAL_RANK"]) == ((6, 6), "5")
    assert after(LOCAL_WORLD_SIZE="2") == (6, 2)
