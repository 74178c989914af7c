"""Trackers for training and evaluation: CSV files, TensorBoard, Weights & Biases, MLflow, notebooks.

A callback is any object with the three methods of `Callback`. A tracker's package is imported when the
tracker is created, so none of them is needed to use randens.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from randens.core.errors import FileError, InputError
from randens.core.progress import Progress, silent

__all__ = [
    "CSVTracker",
    "Callback",
    "MLflowTracker",
    "NotebookProgress",
    "TensorBoardTracker",
    "WandbTracker",
    "as_progress",
    "check_callbacks",
]

Values = Mapping[str, float]


@runtime_checkable
class Callback(Protocol):
    """The methods of a callback. `task` names what is running: ``"member-1"``, ``"training"``,
    ``"evaluation"``.

    Examples
    --------
    >>> class Printing:
    ...     def epoch(self, task, number, values): print(task, number, dict(values))
    ...     def batch(self, task, done, total, values): pass
    ...     def finished(self, task, values): print(task, "finished")
    >>> isinstance(Printing(), Callback)
    True
    """

    def epoch(self, task: str, number: int, values: Values) -> None:
        """Called after epoch `number` (from 1) of training with losses and accuracies."""

    def batch(self, task: str, done: float, total: float, values: Values) -> None:
        """Called after a batch of training, or some inputs of an evaluation, with the progress."""

    def finished(self, task: str, values: Values) -> None:
        """Called at the end with the final numbers."""


class CSVTracker:
    """Appends a line per value to a CSV file: task, event, number, name, value.

    Parameters
    ----------
    path : str or path
        The file; made with a heading if it does not exist.
    batches : bool
        Write the values of every batch, too.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.csv"
    >>> CSVTracker(path).epoch("member-1", 1, {"loss": 0.5})
    >>> path.read_text().splitlines()
    ['task,event,number,name,value', 'member-1,epoch,1,loss,0.5']
    """

    def __init__(self, path: str | os.PathLike[str], *, batches: bool = False) -> None:
        self.path = Path(path)
        self.batches = batches

    def epoch(self, task: str, number: int, values: Values) -> None:
        self._write(task, "epoch", number, values)

    def batch(self, task: str, done: float, total: float, values: Values) -> None:
        del total
        if self.batches:
            self._write(task, "batch", done, values)

    def finished(self, task: str, values: Values) -> None:
        self._write(task, "finished", 0, values)

    def _write(self, task: str, event: str, number: float, values: Values) -> None:
        fresh = not self.path.exists()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if fresh:
                    writer.writerow(["task", "event", "number", "name", "value"])
                writer.writerows([task, event, number, name, float(value)] for name, value in values.items())
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error.strerror or error}") from error


class _PerEpoch:
    """A tracker of epochs."""

    def batch(self, task: str, done: float, total: float, values: Values) -> None:
        """Does nothing: there are too many batches to plot."""


class TensorBoardTracker(_PerEpoch):
    """Scalars `task`/name in a TensorBoard folder, one step per epoch.

    Parameters
    ----------
    folder : str or path
        Where the event files go.

    Examples
    --------
    >>> import tempfile
    >>> tracker = TensorBoardTracker(tempfile.mkdtemp())
    >>> tracker.epoch("member-1", 1, {"loss": 0.5})
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError(
                "TensorBoardTracker needs tensorboard: pip install 'randens[tensorboard]'"
            ) from error
        self.writer: Any = SummaryWriter(os.fspath(folder))

    def epoch(self, task: str, number: int, values: Values) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{task}/{name}", value, number)

    def finished(self, task: str, values: Values) -> None:
        self.epoch(task, 0, values)
        # Later values open a new file.
        self.writer.close()


class WandbTracker(_PerEpoch):
    """Logs to a run of Weights & Biases.

    Parameters
    ----------
    run : wandb.Run
        As ``wandb.init(...)`` returns it, also with ``mode="offline"``.

    Examples
    --------
    >>> class Run:
    ...     summary = {}
    ...     def log(self, values): print(values)
    >>> WandbTracker(Run()).epoch("member-1", 1, {"loss": 0.5})
    {'member-1/loss': 0.5, 'member-1/epoch': 1}
    """

    def __init__(self, run: Any) -> None:
        if not hasattr(run, "log") or not hasattr(run, "summary"):
            raise InputError(f"run is a {type(run).__name__}; give the run that wandb.init(...) returns")
        self.run = run

    def epoch(self, task: str, number: int, values: Values) -> None:
        self.run.log({**_under(task, values), f"{task}/epoch": number})

    def finished(self, task: str, values: Values) -> None:
        self.run.summary.update(_under(task, values))


class MLflowTracker(_PerEpoch):
    """Logs to the active run of MLflow.

    Parameters
    ----------
    mlflow : module or client
        Anything with ``log_metrics(values, step=...)``: the module ``mlflow`` itself.

    Examples
    --------
    >>> class Module:
    ...     def log_metrics(self, values, step=0): print(values, step)
    >>> MLflowTracker(Module()).epoch("member-1", 1, {"loss": 0.5})
    {'member-1/loss': 0.5} 1
    """

    def __init__(self, mlflow: Any) -> None:
        if not hasattr(mlflow, "log_metrics"):
            raise InputError(f"mlflow is a {type(mlflow).__name__}; give the module mlflow")
        self.mlflow = mlflow

    def epoch(self, task: str, number: int, values: Values) -> None:
        self.mlflow.log_metrics(_under(task, values), step=number)

    def finished(self, task: str, values: Values) -> None:
        self.mlflow.log_metrics(_under(task, values), step=0)


class NotebookProgress:
    """One line in a notebook that is rewritten as tasks go on; usable as `progress=` and as a callback.

    Parameters
    ----------
    show : callable, optional
        What displays the text of a line; IPython's display, updated in place, by default.

    Examples
    --------
    >>> seen = []
    >>> progress = NotebookProgress(seen.append)
    >>> progress("saddle on the ensemble", 64, 256)
    >>> seen
    ['saddle on the ensemble: 25 %']
    """

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._show = show or _in_place()
        self._shown = ""

    def __call__(self, task: str, done: float, total: float) -> None:
        line = f"{task}: {100 * done / max(total, 1):.0f} %"
        if line != self._shown:
            self._shown = line
            self._show(line)

    def epoch(self, task: str, number: int, values: Values) -> None:
        self.finished(f"{task}, epoch {number}", values)

    def batch(self, task: str, done: float, total: float, values: Values) -> None:
        del values
        self(task, done, total)

    def finished(self, task: str, values: Values) -> None:
        said = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._show(f"{task}: {said}")


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuse what is no list of callbacks before any work is done.

    Parameters
    ----------
    callbacks : sequence of Callback
        As `evaluate` and `train` take them.

    Examples
    --------
    >>> check_callbacks([NotebookProgress(print)])
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise InputError(f"callbacks is a {type(callbacks).__name__}; give a list of callbacks")
    for callback in callbacks:
        if isinstance(callback, type) or not isinstance(callback, Callback):
            said = callback.__name__ if isinstance(callback, type) else f"a {type(callback).__name__}"
            raise InputError(f"callbacks holds {said}; each must be an object with epoch, batch and finished")


def as_progress(callbacks: Sequence[Callback], progress: Progress | None = None) -> Progress:
    """A progress function that tells callbacks, too.

    Parameters
    ----------
    callbacks : sequence of Callback
        Whose `batch` is called.
    progress : callable, optional
        Called first.

    Returns
    -------
    callable
        ``progress(task, done, total)``.

    Examples
    --------
    >>> seen = []
    >>> as_progress([NotebookProgress(seen.append)])("task", 1, 2)
    >>> seen
    ['task: 50 %']
    """
    tell = progress or silent
    check_callbacks(callbacks)
    if not callbacks:
        return tell

    def both(task: str, done: float, total: float) -> None:
        tell(task, done, total)
        for callback in callbacks:
            callback.batch(task, done, total, {})

    return both


def _under(task: str, values: Values) -> dict[str, float]:
    return {f"{task}/{name}": float(value) for name, value in values.items()}


def _in_place() -> Callable[[str], None]:
    try:
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return lambda line: print(line, flush=True)  # noqa: T201
    handle = display("", display_id=True)

    def update(line: str) -> None:
        if handle is not None:
            handle.update(line)

    return update
