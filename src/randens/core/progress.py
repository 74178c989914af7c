"""Progress reports of long-running functions, which the command line shows as bars."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "renamed", "silent", "within"]

Progress = Callable[[str, float, float], None]
"""Called as ``progress(task, done, total)``; a task is finished when ``done == total``."""


def silent(task: str, done: float, total: float) -> None:
    """The default: report nothing."""


def renamed(progress: Progress, name: str) -> Progress:
    """Report the tasks of a part under one name."""
    return lambda _, done, total: progress(name, done, total)


def within(progress: Progress, name: str) -> Progress:
    """Report the tasks of a part with the part's name before them."""
    return lambda task, done, total: progress(f"{name}: {task}", done, total)
