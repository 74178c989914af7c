"""Members of IAT trained side by side: the bytes of the sequential run, stops, kills and errors."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small_runs import small

from randens import data
from randens.core.distributed import Workers
from randens.core.errors import InputError, ModelError
from randens.core.runs import Run
from randens.training import Diverged, Recipe, Stopped, load_recipe, side_by_side, train
from randens.training.engine import Engine
from randens.training.initial_members import Blueprint
from randens.training.side_by_side import jobs_for

ONE = Workers(torch.device("cpu"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _iat(**changes: Any) -> Recipe:
    return small(**{"method": "iat", "members": 2, "ema": 0.9, "data": {"crop_padding": 1}, **changes})


def _files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "ensemble").iterdir())}


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Metrics without times; the reach to earlier members is known only if these are finished."""
    left_out = ("seconds", "reach")
    return [{k: v for k, v in line.items() if k not in left_out} for line in Run.open(folder).metrics()]


class _Seen:
    def __init__(self) -> None:
        self.epochs: list[tuple[str, int]] = []
        self.ended: list[str] = []

    def epoch(self, task: str, number: int, values: Any) -> None:
        assert values["loss"] > 0
        self.epochs.append((task, number))

    def batch(self, task: str, done: float, total: float, values: Any) -> None:
        pass

    def finished(self, task: str, values: Any) -> None:
        assert set(values) == {"natural", "robust"}
        self.ended.append(task)


class _Thread(threading.Thread):
    """A thread with the interface of a process; starting one takes no seconds."""

    exitcode = 0

    def __init__(self, target: Callable[..., None], args: tuple[Any, Connection]) -> None:
        # A process has a handle of its own, which stays open when the other side closes its copy.
        self.line = Connection(os.dup(args[1].fileno()))
        super().__init__(target=target, args=(args[0], self.line), daemon=True)

    def run(self) -> None:
        super().run()
        self.line.close()

    def kill(self) -> None:
        pass


class _Threads:
    Process = _Thread


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: _Threads)
    monkeypatch.setattr(side_by_side, "_end_with_parent", lambda: None)


def test_members_side_by_side_are_those_of_the_sequential_run(tmp_path: Path) -> None:
    recipe, said = _iat(members=3), list[str]()
    train(recipe, tmp_path / "whole")
    # Begun one after the other and stopped in the second member; the rest side by side.
    steps = iter(range(1000))
    with pytest.raises(Stopped, match="member 2, epoch 1, step 3"):
        train(recipe, tmp_path / "parts", stop=lambda: next(steps) == 14 + 2)
    train(recipe, tmp_path / "parts", say=said.append, jobs=2)
    assert "continuing after member 2, epoch 1, step 3" in said
    assert "2 members are trained side by side: at most 2 processes with 1 threads each" in said
    assert multiprocessing.active_children() == []
    assert _files(tmp_path / "parts") == _files(tmp_path / "whole")
    assert _lines(tmp_path / "parts") == _lines(tmp_path / "whole")
    assert not (tmp_path / "parts" / "members").exists()


# Two runs of the command, each in a session of its own, as a terminal starts it: a signal can be sent to all its
# processes. One process imports torch; the runs are forks of it, and their processes forks of them: spawned ones, which
# the test above has, would import torch again. Printed: the id of a run, and later how it ended.
_STARTER = """
import multiprocessing, os, signal, sys
import torch
from randens.cli.main import main
from randens.training import side_by_side

# A first optimizer imports torch's compiler, seconds that every fork would spend again.
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
contexts, train_member = multiprocessing.get_context, side_by_side._train_member
multiprocessing.get_context = lambda method: contexts("fork")

def as_if_spawned(task, line):
    # A fork keeps the run's own handlers, with which an interrupt would pass unseen.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    train_member(task, line)

side_by_side._train_member = as_if_spawned
for line in sys.stdin:
    folder = line.strip()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(folder + ".said", os.O_WRONLY | os.O_CREAT), 2)
        os.close(0)
        sys.argv[1:] = [*sys.argv[1:], "--out", folder]
        main()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class _Begun:
    """A run of the command, by its session."""

    def __init__(self, starter: subprocess.Popen[str], folder: Path) -> None:
        assert starter.stdin is not None
        assert starter.stdout is not None
        starter.stdin.write(f"{folder}\n")
        starter.stdin.flush()
        self.lines, self.folder, self.pid = starter.stdout, folder, int(starter.stdout.readline())
        self.code: int | None = None

    def end(self) -> int:
        """How the run's own process ended, once it has."""
        if self.code is None:
            self.code = int(self.lines.readline())
        return self.code


@pytest.fixture(scope="module")
def starter() -> Iterator[subprocess.Popen[str]]:
    settings = ["method=iat", "members=2", "epochs=4000", "later_epochs=4000", "checkpoint.seconds=0.3"]
    command = [sys.executable, "-c", _STARTER, "train", "digits-mlp-barre", "--jobs", "2"]
    command += [f"--set={setting}" for setting in settings]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate()


@pytest.fixture
def begun(starter: subprocess.Popen[str], tmp_path: Path) -> Iterator[_Begun]:
    """The training of two members by the command, into `tmp_path`/run, as soon as both have a checkpoint."""
    run = _Begun(starter, tmp_path / "run")
    folders = [tmp_path / "run" / "members" / number / "checkpoints" for number in ("1", "2")]
    try:
        _until(lambda: all(list(folder.glob("[0-9]*")) for folder in folders))
        yield run
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.end()


def test_ctrl_c_stops_every_process_after_its_step(begun: _Begun, tmp_path: Path) -> None:
    os.killpg(begun.pid, signal.SIGINT)
    assert begun.end() == 130
    said = (tmp_path / "run.said").read_text(encoding="utf-8")
    assert "stopped while members were trained side by side; the state is saved in" in said
    assert "Traceback" not in said
    assert all(_free(tmp_path / "run" / "members" / f".{number}.lock") for number in (1, 2))


def test_no_process_outlives_a_run_that_is_killed(begun: _Begun, tmp_path: Path) -> None:
    locks = [tmp_path / "run" / "members" / f".{number}.lock" for number in (1, 2)]
    assert not any(_free(lock) for lock in locks)
    os.kill(begun.pid, signal.SIGKILL)
    assert begun.end() == -signal.SIGKILL
    _until(lambda: all(_free(lock) for lock in locks))


def _free(lock: Path) -> bool:
    """Whether the process that wrote in a folder has ended: the kernel then releases the folder's lock."""
    fcntl = pytest.importorskip("fcntl")
    if not lock.exists():
        return True
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _until(happened: Callable[[], bool]) -> None:
    for _ in range(1200):
        if happened():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in two minutes")


@pytest.mark.usefixtures("threads")
def test_a_stopped_run_continues_its_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, seen, said, shares = _iat(), _Seen(), list[str](), list[float]()
    pair = (data.load("digits", "train").subset(slice(0, 600)), data.load("digits", "validation"))
    train(recipe, tmp_path / "whole", data=pair)

    def progress(task: str, done: float, total: float) -> None:
        if task == "run":
            shares.append(done / total)

    def two_steps(task: Any, line: Connection) -> Engine:
        """An engine that makes two steps and then waits until it is asked to stop."""
        engine, steps = real(task, line), iter(range(1000))
        engine.stop = lambda: next(steps) == 1 and line.poll(60)
        return engine

    real = side_by_side._engine
    for jobs in (2, 1):
        with monkeypatch.context() as patched:
            patched.setattr(side_by_side, "_engine", two_steps)
            with pytest.raises(Stopped, match="the same command continues"):
                train(recipe, tmp_path / "parts", progress, stop=lambda: True, data=pair, jobs=jobs)
    # What was begun side by side continues so, one member at a time.
    train(recipe, tmp_path / "parts", progress, say=said.append, data=pair, callbacks=[seen])
    assert "continuing after member 1, epoch 2, step 1" in said
    assert "continuing after member 2, epoch 1, step 2" in said
    assert _files(tmp_path / "parts") == _files(tmp_path / "whole")
    assert _lines(tmp_path / "parts") == _lines(tmp_path / "whole")
    costs = [Run.open(tmp_path / name).read("training")["cost"] for name in ("parts", "whole")]
    # The sequential run also measures the joint reach of both members: one gradient per member, image and epoch.
    assert costs[1]["forwards"] - costs[0]["forwards"] == recipe.epochs * 2 * 60
    assert ("member-2", 2) in seen.epochs
    assert seen.ended == ["training"]
    assert shares[-1] == 1.0


@pytest.mark.usefixtures("threads")
def test_given_members_are_not_trained_again(tmp_path: Path) -> None:
    train(small(seed=3), tmp_path / "first")
    recipe = _iat(members=3, ema=0.0, data={}, first=str(tmp_path / "first"))
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "side", jobs=2)
    assert _files(tmp_path / "side") == _files(tmp_path / "whole")


@pytest.mark.usefixtures("threads")
def test_a_member_that_diverges_ends_the_run_with_its_error(tmp_path: Path) -> None:
    recipe = _iat(optimizer={"lr": 1e30}, schedule={"name": "constant"})
    with pytest.raises(
        Diverged, match=r"training diverged at member [12], epoch 1, step \d+: .* lower the rate"
    ):
        train(recipe, tmp_path / "run", jobs=2)
    assert not (tmp_path / "run" / "ensemble").exists()


@pytest.mark.usefixtures("threads")
def test_other_errors_and_lost_processes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Engine, number: int) -> None:
        raise KeyError(f"broken {number}")

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "run_member", broken)
        with pytest.raises(RuntimeError, match=r"member [12]: Traceback[\s\S]*KeyError: 'broken [01]'"):
            train(_iat(), tmp_path / "run", jobs=2)
    monkeypatch.setattr(side_by_side, "_train_member", lambda _, line: line.close())
    with pytest.raises(ModelError, match=r"the process that trained member [12] ended with exit code 0"):
        train(_iat(), tmp_path / "run", jobs=2)


@pytest.mark.parametrize(
    ("changes", "jobs", "message"),
    [
        ({"method": "barre"}, 2, "jobs is 2; only the members of method 'iat' .* not those of 'barre'"),
        ({"start": "previous"}, 2, "jobs is 2; with start = 'previous' every member depends"),
        ({}, 0, "jobs is 0; it must be a whole number ≥ 1"),
    ],
)
def test_jobs_that_cannot_be_used_are_refused(
    tmp_path: Path, changes: dict[str, Any], jobs: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(_iat(**changes), tmp_path / "run", jobs=jobs)
    assert not (tmp_path / "run").exists()


def test_the_automatic_choice_is_by_members_threads_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    short = Blueprint(_iat(members=3), 10, (1, 8, 8))
    assert jobs_for(None, short, 1257, ONE) == 1
    chosen = load_recipe("cpu/cifar10-resnet20-iat")
    for members, method, jobs in ((3, "iat", 3), (6, "iat", 4), (1, "iat", 1), (3, "barre", 1)):
        recipe = chosen.with_settings([f"members={members}", f"method={method}"])
        assert jobs_for(None, Blueprint(recipe, 10, (3, 32, 32)), 45000, ONE) == jobs
    assert jobs_for(None, Blueprint(chosen, 10, (3, 32, 32)), 45000, Workers(torch.device("cuda"))) == 1
