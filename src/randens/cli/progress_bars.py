"""Progress bars on standard error, so that standard output holds only the result."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from randens.core.progress import Progress

_SECONDS_TO_FIRST_LINE = 2.0
_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    """Show a bar for every task with the time spent and left; in a log file, print lines instead."""
    # Imported here because help and small commands draw no bar.
    import rich.progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(sys.stderr)
        return
    drawn = rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeElapsedColumn(),
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
            # Finished tasks are removed: only running ones stay on the screen.
            drawn.remove_task(tasks.pop(task))

    with drawn:
        yield progress


def _lines(stream: TextIO) -> Progress:
    """Print a line after two seconds and then every ten seconds, about the task that will take longest."""
    began: dict[str, float] = {}
    ahead: dict[str, tuple[float, float]] = {}
    last = time.monotonic() - _SECONDS_BETWEEN_LINES + _SECONDS_TO_FIRST_LINE

    def progress(task: str, done: float, total: float) -> None:
        nonlocal last
        now = time.monotonic()
        spent = now - began.setdefault(task, now)
        if done >= total:
            began.pop(task)
            ahead.pop(task, None)
            if spent >= _SECONDS_BETWEEN_LINES:
                print(f"{task}: done in {spent:.0f} s", file=stream, flush=True)
            return
        if done > 0:
            ahead[task] = (spent * (total - done) / done, done / total)
        if ahead and now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            longest = max(ahead, key=lambda name: ahead[name][0])
            left, share = ahead[longest]
            print(f"{longest}: {share:.0%}, {left:.0f} s left", file=stream, flush=True)

    return progress
