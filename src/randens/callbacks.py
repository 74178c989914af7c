"""Callbacks of training, and one for TensorBoard. docs/how-to/train.md has one for other trackers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from randens.core.errors import InputError

__all__ = ["Callback", "TensorBoardTracker"]

Values = Mapping[str, float]


@runtime_checkable
class Callback(Protocol):
    """What is called; `task` names what is running: "member-1", "training".

    Examples
    --------
    >>> class Printing:
    ...     def epoch(self, task, number, values): print(task, number, dict(values))
    ...     def batch(self, task, done, total, values): pass
    ...     def finished(self, task, values): print(task, "finished")
    """

    def epoch(self, task: str, number: int, values: Values) -> None:
        """Called after epoch `number` (from 1) of training with losses and accuracies."""

    def batch(self, task: str, done: float, total: float, values: Values) -> None:
        """Called after a batch with the progress of the epoch."""

    def finished(self, task: str, values: Values) -> None:
        """Called at the end with the final numbers."""


class TensorBoardTracker:
    """Scalars `task`/name in a TensorBoard folder, one step per epoch."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("tensorboard is missing: pip install '.[tensorboard]' in a clone") from error
        self.writer: Any = SummaryWriter(os.fspath(folder))

    def epoch(self, task: str, number: int, values: Values) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{task}/{name}", value, number)

    def batch(self, task: str, done: float, total: float, values: Values) -> None:
        pass  # there are too many to plot

    def finished(self, task: str, values: Values) -> None:
        self.epoch(task, 0, values)
        self.writer.close()  # later values open a new file


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuse what is no list of callbacks before any work is done."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise InputError(f"callbacks is a {type(callbacks).__name__}; give a list of callbacks")
    for each in callbacks:
        if isinstance(each, type) or not isinstance(each, Callback):
            raise InputError(f"callbacks holds {each!r}; each needs epoch, batch and finished")
