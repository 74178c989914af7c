"""Members of one run trained side by side, each in a process of its own.

The stages of IAT do not depend on each other: every random number is seeded by its purpose and its place in
the run. So a process trains one stage by the same engine, in the folder ``members/N`` of the run, with
checkpoints of its own. When all members are finished, the run takes over their weights, metrics and cost, and
the folders are removed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from randens import data as datasets
from randens import models
from randens.callbacks import Callback
from randens.core.distributed import Workers, pick_device
from randens.core.errors import InputError, ModelError, RandensError, whole
from randens.core.locks import only_writer
from randens.core.runs import Run
from randens.data import ImageData
from randens.training.checkpoint import Checkpoint, Checkpoints
from randens.training.cost import plan
from randens.training.engine import Engine, Stopped
from randens.training.initial_members import Blueprint
from randens.training.methods import METHODS
from randens.training.recipe import Recipe
from randens.training.run_files import open_folder
from randens.training.state import Spent, Stage, pack, part

__all__ = ["LEAST_WORK", "SideBySide", "jobs_for"]

LEAST_WORK = 2e13
"""FLOP of a training from which the automatic choice starts processes: about ten minutes of one core. Starting
the processes takes some ten seconds, and ResNet-20s gain a few percent only."""

_POLLED_SECONDS = 0.1

_Arrays = tuple[Any, Any, tuple[str, ...], str, str]


def jobs_for(jobs: int | None, blueprint: Blueprint, images: int, processes: Workers) -> int:
    """Return how many members are trained at a time; None is the automatic choice.

    Automatic: on a CPU as many as there are members to train, and at most the threads that torch may use. One
    if the recipe's members depend on each other, or if the training is short (`LEAST_WORK`).
    """
    recipe = blueprint.recipe
    reason = _dependent(recipe, processes)
    if jobs is None:
        work = sum(stage.work for stage in plan(recipe)) * images * 2 * models.flops(blueprint())
        if reason is not None or processes.device.type != "cpu" or work < LEAST_WORK:
            return 1
        return max(1, min(recipe.members - len(recipe.given), torch.get_num_threads()))
    if whole("jobs", jobs) > 1 and reason is not None:
        raise InputError(f"jobs is {jobs}; {reason}, so it must be 1")
    return jobs


def _dependent(recipe: Recipe, processes: Workers) -> str | None:
    """Why the members of a recipe cannot be trained side by side; None if they can."""
    if not METHODS[recipe.method].independent:
        return f"only the members of method 'iat' do not depend on each other, not those of {recipe.method!r}"
    if recipe.start == "previous":
        return "with start = 'previous' every member depends on the one before it"
    if processes.world > 1:
        return f"{processes.world} processes share every batch already"
    return None


@dataclass(frozen=True)
class _Task:
    """What a process needs to train one member. Images are given only if they are not a named data set."""

    recipe: Recipe
    folder: Path
    number: int
    threads: int
    callbacks: bool
    images: tuple[_Arrays, _Arrays] | None


@dataclass(frozen=True)
class _Child:
    """A process that trains member `number`, seen from the run."""

    number: int
    process: SpawnProcess
    line: Connection


class SideBySide:
    """Trains the remaining members of a run, `jobs` at a time; its engine receives the finished members.

    data: training and validation data, if they are not a named data set.
    """

    def __init__(self, engine: Engine, jobs: int, data: tuple[ImageData, ImageData] | None) -> None:
        self.engine, self.jobs = engine, jobs
        self.images = None if data is None else (_arrays(data[0]), _arrays(data[1]))
        # The processes together use as many threads as this one would.
        self.threads = max(1, torch.get_num_threads() // jobs)
        self.folder = engine.run.path / "members"
        self.shares: dict[int, float] = {}

    @property
    def wanted(self) -> bool:
        """Whether there are several jobs, or members that were begun side by side."""
        begun = self.folder.is_dir() and _dependent(self.engine.recipe, self.engine.processes) is None
        return self.jobs > 1 or begun

    def train(self, stage: Stage | None) -> None:
        """Train all members that are not finished; `stage` is one that was begun without this."""
        engine, journal = self.engine, self.engine.journal
        numbers = range(len(engine.finished), engine.recipe.members)
        recipe = engine.recipe.model_copy(update={"tensorboard": False})
        for number in numbers:
            # A changed recipe was refused or accepted with the folder of the run.
            open_folder(recipe, self._of(number), say=lambda _: None, force=True)
        if stage is not None:
            begun = pack([], stage, Spent(), engine.batches, journal.choice)
            Checkpoints(self._of(stage.number) / "checkpoints").save(begun)
            journal.save(engine.finished, None)
        open_numbers = [number for number in numbers if self._finished(number) is None]
        self.shares = {number: float(number not in open_numbers) for number in numbers}
        if open_numbers:
            engine.say(
                f"{len(open_numbers)} members are trained side by side: at most {self.jobs} processes with "
                f"{self.threads} threads each"
            )
            told = bool(journal.callbacks)
            self._run_all(
                [_Task(recipe, self._of(n), n, self.threads, told, self.images) for n in open_numbers]
            )
        for number in numbers:
            self._take_over(number)
        shutil.rmtree(self.folder)

    def _of(self, number: int) -> Path:
        return self.folder / str(number + 1)

    def _finished(self, number: int) -> Checkpoint | None:
        """The checkpoint of a finished member; None if it is not finished."""
        checkpoint, _ = Checkpoints(self._of(number) / "checkpoints").load()
        return None if checkpoint is None or checkpoint.position["finished"] != 1 else checkpoint

    def _take_over(self, number: int) -> None:
        """Add a finished member with its metrics and its cost to the run, and save that."""
        journal = self.engine.journal
        checkpoint = self._finished(number)
        assert checkpoint is not None
        spent = Spent(**checkpoint.position["ledger"])
        for values in Run.open(self._of(number)).metrics():
            journal.run.log(**values)
        journal.spent.lines += spent.lines
        journal.spent.spend(spent.forwards, spent.backwards)
        self.engine.add_finished([part(checkpoint.tensors, "finished.0")])
        journal.save(self.engine.finished, None)

    def _run_all(self, tasks: Sequence[_Task]) -> None:
        """Run a process per task, `jobs` at a time, until all are done or the run is stopped."""
        waiting, running, ending = list(tasks), list[_Child](), False
        failure: BaseException | None = None
        try:
            while running or (waiting and not ending):
                while waiting and len(running) < self.jobs and not ending:
                    running.append(_start(waiting.pop(0)))
                ready = wait([child.line for child in running], _POLLED_SECONDS)
                for child in [child for child in running if child.line in ready]:
                    try:
                        kind, values = child.line.recv()
                    except (EOFError, ConnectionResetError):
                        kind, values = "lost", ()
                    if kind not in ("done", "stopped", "failed", "lost"):
                        self._tell(child.number, kind, values)
                        continue
                    running.remove(child)
                    child.process.join()
                    if failure is None and kind in ("failed", "lost"):
                        failure = values[0] if values else _lost(child)
                self.engine.journal.save_if_due(self.engine.finished, None)
                asked = self.engine.stop is not None and self.engine.stop()
                if not ending and (failure is not None or asked):
                    ending = True
                    for child in running:
                        with contextlib.suppress(OSError):
                            child.line.send("stop")
        finally:
            for child in running:
                child.process.kill()
                child.process.join()
        if failure is not None:
            raise failure
        if ending:
            self.engine.journal.save(self.engine.finished, None)
            raise Stopped(
                f"stopped while members were trained side by side; the state is saved in "
                f"{self.engine.run.path}, and the same command continues"
            )

    def _tell(self, number: int, kind: str, values: tuple[Any, ...]) -> None:
        """Pass on what a process reports: progress, a sentence, or the call of a callback."""
        journal = self.engine.journal
        if kind == "say":
            self.engine.say(values[0])
        elif kind == "progress":
            done, total = values
            self.shares[number] = done / total
            journal.progress(f"member {number + 1}", done, total)
            before = sum(journal.work[: min(self.shares)])
            parts = sum(journal.work[k] * share for k, share in self.shares.items())
            journal.progress("run", before + parts, sum(journal.work))
        else:
            for callback in journal.callbacks:
                getattr(callback, kind)(*values)


def _lost(child: _Child) -> ModelError:
    return ModelError(
        f"the process that trained member {child.number + 1} ended with exit code {child.process.exitcode} and "
        "without an error message; the same command continues. A Python script that trains side by side must "
        'keep its calls under if __name__ == "__main__":'
    )


def _start(task: _Task) -> _Child:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_train_member, args=(task, theirs))
    with _signals_blocked():
        process.start()
    theirs.close()
    return _Child(task.number, process, ours)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM for a process that is started here.

    A terminal sends Ctrl-C to every process. Only the run reacts to it, and asks the others to stop.
    """
    if not hasattr(signal, "pthread_sigmask"):  # pragma: no cover - not on this system
        yield
        return
    resource_tracker.ensure_running()  # when it starts, it unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _train_member(task: _Task, line: Connection) -> None:
    """Train one member in a process of its own, and report by `line`."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(task.threads)
    try:
        with only_writer(task.folder):
            _engine(task, line).run_member(task.number)
        line.send(("done", ()))
    except Stopped:
        line.send(("stopped", ()))
    except (RandensError, OSError, MemoryError) as error:
        line.send(("failed", (error,)))
    except Exception:
        line.send(("failed", (RuntimeError(f"member {task.number + 1}: {traceback.format_exc()}"),)))


def _engine(task: _Task, line: Connection) -> Engine:
    recipe = task.recipe
    if task.images is None:
        pair = (datasets.load(recipe.data.name, "train"), datasets.load(recipe.data.name, "validation"))
    else:
        pair = (_images(task.images[0]), _images(task.images[1]))

    def progress(name: str, done: float, total: float) -> None:
        if name == "member":
            line.send(("progress", (done, total)))

    callbacks: list[Callback] = [_Relay(line)] if task.callbacks else []
    return Engine(
        Blueprint.of(recipe, pair[0]),
        Run.open(task.folder),
        Workers(pick_device(recipe.device)),
        *pair,
        given=[],
        progress=progress,
        say=lambda text: line.send(("say", (text,))),
        stop=line.poll,
        callbacks=callbacks,
    )


class _Relay:
    """A callback that passes its calls to the run."""

    def __init__(self, line: Connection) -> None:
        self.line = line

    def epoch(self, task: str, number: int, values: Mapping[str, float]) -> None:
        self.line.send(("epoch", (task, number, dict(values))))

    def batch(self, task: str, done: float, total: float, values: Mapping[str, float]) -> None:
        self.line.send(("batch", (task, done, total, dict(values))))

    def finished(self, task: str, values: Mapping[str, float]) -> None:
        """Only the run finishes."""


def _end_with_parent() -> None:
    """End this process as soon as the run's process is gone: checkpoints are complete at every moment."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _arrays(data: ImageData) -> _Arrays:
    """Arrays, because torch would pass tensors in shared memory, which is small in containers."""
    return data.stored.numpy(), data.y.numpy(), data.classes, data.name, data.split


def _images(arrays: _Arrays) -> ImageData:
    stored, y, classes, name, split = arrays
    return ImageData(torch.from_numpy(stored), torch.from_numpy(y), classes, name, split)
