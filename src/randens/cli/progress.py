"""Progress bars on standard error, so that standard output holds the result and nothing else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

import rich.progress
from rich.console import Console

from randens.progress import Progress

__all__ = ["bars"]

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    """A bar for every task, with the time left; in a log file, a line now and then instead."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(sys.stderr)
        return
    drawn = rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TextColumn("left"),
        rich.progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    tasks: dict[str, rich.progress.TaskID] = {}

    def progress(task: str, done: float, total: float) -> None:
        if task not in tasks:
            tasks[task] = drawn.add_task(task, total=total)
        drawn.update(tasks[task], completed=done, total=total)
        if done >= total:
            # Finished tasks make room: what stays on the screen is what is being waited for.
            drawn.remove_task(tasks.pop(task))

    with drawn:
        yield progress


def _lines(stream: TextIO) -> Progress:
    began: dict[str, float] = {}
    said: dict[str, float] = {}

    def progress(task: str, done: float, total: float) -> None:
        now = time.monotonic()
        start = began.setdefault(task, now)
        finished = done >= total
        if not finished and now - said.setdefault(task, now) < _SECONDS_BETWEEN_LINES:
            return
        said[task] = now
        if finished:
            began.pop(task)
            said.pop(task)
            if now - start >= 1:
                print(f"{task}: done in {now - start:.0f} s", file=stream, flush=True)
        elif total > 0:
            left = (now - start) * (total - done) / done if done else 0.0
            ahead = f", {left:.0f} s left" if done else ""
            print(f"{task}: {done / total:.0%}{ahead}", file=stream, flush=True)

    return progress
