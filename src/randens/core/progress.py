"""Progress reports of long-running functions: bars in a terminal or notebook, lines in a log file."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

Progress = Callable[[str, float, float], None]
"""Called as ``progress(task, done, total)``; a task is finished when ``done == total``."""

_SECONDS_BETWEEN_LINES = 10.0


def silent(task: str, done: float, total: float) -> None:
    """Report nothing."""


def within(progress: Progress, name: str) -> Progress:
    """Report the tasks of a part with the part's name before them."""
    return lambda task, done, total: progress(f"{name}: {task}", done, total)


@contextlib.contextmanager
def bars(given: Progress | None = None, *, log: bool = True) -> Iterator[Progress]:
    """Show a bar for every task on standard error, in the first process; where it is a file, lines if `log`.

    If a function to report to is given, that is all.
    """
    if given is not None:
        yield given
        return
    # Imported here because most functions are called without bars.
    from rich.console import Console
    from rich.progress import Progress as Display
    from rich.progress import TaskID

    console = Console(stderr=True)
    if not leads() or not (console.is_terminal or console.is_jupyter):
        yield _lines() if leads() and log else silent
        return
    tasks: dict[str, TaskID] = {}

    def progress(task: str, done: float, total: float) -> None:
        if task not in tasks:
            tasks[task] = display.add_task(task, total=total)
        display.update(tasks[task], completed=done, total=total)
        if done >= total:
            # Finished tasks are removed: only running ones stay on the screen.
            display.remove_task(tasks.pop(task))

    with Display(console=console, transient=True) as display:
        yield progress


def leads() -> bool:
    """Whether this is the process that prints, as far as the environment says; before any group exists."""
    env = os.environ
    rank = env.get("RANK") or env.get("SLURM_PROCID") or env.get("LOCAL_RANK") or "0"
    return rank == "0" == env.get("NODE_RANK", "0")


def _lines() -> Progress:
    """Print a line every ten seconds, about the task that is reported."""
    last = time.monotonic()

    def progress(task: str, done: float, total: float) -> None:
        nonlocal last
        now = time.monotonic()
        if 0 < done < total and now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            sys.stderr.write(f"{task}: {done / total:.0%}\n")

    return progress
