"""Progress reports of long-running functions, which the command line shows as bars."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[str, float, float], None]
"""Called as ``progress(task, done, total)``; a task is finished when ``done == total``."""


def silent(task: str, done: float, total: float) -> None:
    """The default: report nothing."""
