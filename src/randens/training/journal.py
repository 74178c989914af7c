"""The records of a run during training: metrics, checkpoints, progress and cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from randens.callbacks import Callback
from randens.core.distributed import Workers
from randens.core.errors import ModelError
from randens.core.progress import Progress
from randens.core.runs import Run
from randens.evaluation.gradient_conflict import Conflict
from randens.training.checkpoint import Checkpoint, Checkpoints
from randens.training.run_files import rewind_metrics
from randens.training.state import Spent, Stage, pack
from randens.training.validation import Validated

__all__ = ["Diverged", "Journal"]

Found = TypeVar("Found", Validated, Conflict)


class Diverged(ModelError):
    """The loss or the weights are no longer finite; the last good checkpoint is kept."""


class Journal:
    """Writes the files of one run, from one of its processes, and calls its trackers.

    every: seconds between checkpoints. batches: per epoch. work: planned work of each stage, for progress.
    """

    def __init__(
        self,
        run: Run,
        processes: Workers,
        every: float,
        batches: int,
        work: Sequence[int],
        progress: Progress,
        callbacks: Sequence[Callback],
    ) -> None:
        self.run, self.processes, self.every, self.batches, self.work = run, processes, every, batches, work
        self.progress, self.callbacks = progress, callbacks
        self.checkpoints = Checkpoints(run.path / "checkpoints")
        self.spent = Spent()
        self._saved_at = time.monotonic()

    def spend(self, found: Found) -> Found:
        """Add the cost of a result to the total, and return the result."""
        self.spent.spend(found.cost.forwards, found.cost.backwards)
        return found

    def cost(self) -> dict[str, float]:
        """Member passes and seconds over all sessions of the run."""
        seconds = self.spent.seconds + time.monotonic() - self._saved_at
        return {"forwards": self.spent.forwards, "backwards": self.spent.backwards, "seconds": seconds}

    def save_if_due(self, finished: Sequence[nn.Module], stage: Stage | None) -> None:
        """Write a checkpoint if the last one is old enough."""
        if self.processes.writes and time.monotonic() - self._saved_at >= self.every:
            self.save(finished, stage)

    def save(self, finished: Sequence[nn.Module], stage: Stage | None) -> None:
        """Write a checkpoint; a state that contains NaN never replaces a good one."""
        if not self.processes.writes:
            return
        now = time.monotonic()
        self.spent.seconds += now - self._saved_at
        self._saved_at = now
        checkpoint = pack(finished, stage, self.spent, self.batches)
        for name, tensor in checkpoint.tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise self.diverged(stage, f"{name} is not finite")
        self.checkpoints.save(checkpoint)

    def rewind(self, checkpoint: Checkpoint | None) -> None:
        """Continue from a checkpoint or from the start: drop metrics that will be logged again."""
        if checkpoint is not None:
            self.spent = Spent(**checkpoint.position["ledger"])
        if self.processes.writes:
            rewind_metrics(self.run, self.spent.lines)

    def log(self, event: str, stage: Stage, **values: Any) -> None:
        """A line of metrics.jsonl; members and epochs are counted from 1."""
        if not self.processes.writes:
            return
        member, epoch = stage.before + 1, stage.epoch + 1
        self.run.log(event=event, member=member, epoch=epoch, **values)
        self.spent.lines += 1
        if event == "epoch":
            names = ("accuracy", "natural", "robust")
            scalars: dict[str, float] = {key: float(values[key]) for key in names if key in values}
            scalars["loss"] = float(np.mean(values["loss"]))
            for callback in self.callbacks:
                callback.epoch(f"member-{member}", epoch, scalars)

    def batch(self, stage: Stage, shown: Mapping[str, float]) -> None:
        """Call the trackers after a step."""
        for callback in self.callbacks:
            callback.batch(f"member-{stage.before + 1}", stage.step + 1, self.batches, shown)

    def tell(self, stage: Stage, epochs: int) -> None:
        """Progress of the epoch, the member and the run, in units of planned work."""
        steps, total = stage.epoch * self.batches + stage.step, epochs * self.batches
        self.progress("epoch", stage.step or self.batches, self.batches)
        self.progress("member", steps, total)
        done = sum(self.work[: stage.number]) + self.work[stage.number] * steps / total
        self.progress("run", done, sum(self.work))

    def diverged(self, stage: Stage | None, reason: str) -> Diverged:
        """The error for numbers that are no longer finite."""
        kept = "the last good state is kept" if self.checkpoints.files() else "no state was saved before that"
        where = stage.where if stage is not None else "the end of a member"
        return Diverged(
            f"training diverged at {where}: {reason}; {kept} in {self.checkpoints.folder}; lower the rate "
            "(--set optimizer.lr=… --force continues from there)"
        )
