"""Ctrl-C and SIGTERM: every command ends with one line that says what was kept and how to continue."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_FINISHED_PARTS = "finished batches are kept in the run folder, and the same command goes on after them"
_KEPT = {
    "data": "complete data sets are kept, and the same command fetches the others",
    "evaluate": _FINISHED_PARTS,
    "quickstart": "what was trained is kept in the run folder; the same command begins a new one",
    "serve": "every request that was accepted has been answered, and the same command serves again",
    "train": "the last checkpoint is kept in the run folder, and the same command goes on from it",
}
_NOTHING = "nothing was written; the same command begins again"


class Terminated(BaseException):
    """SIGTERM was received. It is not an `Exception`, so that no handler of ordinary errors catches it."""


def farewell(verb: str, number: int) -> str:
    """Return the line for a command that a signal ended."""
    name = "terminated" if number == signal.SIGTERM else "interrupted"
    return f"{name}: {_KEPT.get(verb, _NOTHING)}"


@contextlib.contextmanager
def signals_noted() -> Iterator[list[int]]:
    """Yield the list of received signals in order; SIGINT raises KeyboardInterrupt, SIGTERM `Terminated`.

    Commands with their own way of stopping replace the handlers while they run. A second signal while a
    command cleans up raises again. The earlier handlers are restored at the end of the context.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        seen.append(number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    wanted = [signal.SIGTERM]
    # A shell starts background jobs with SIGINT ignored; it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        wanted.append(signal.SIGINT)
    before = {number: signal.signal(number, note) for number in wanted}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
