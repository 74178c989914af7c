"""Progress: bars in a terminal without being asked, lines in a log, nothing elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from randens.core import progress
from randens.core.progress import Progress, bars


def work(steps: int, progress: Progress | None = None) -> None:
    """Reports its steps."""
    with bars(progress, log=False) as report:
        for step in range(steps + 1):
            report("working", step, steps)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_bars_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for rank, shown in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        work(3)
        assert ("working" in stream.getvalue()) == shown
    seen: list[tuple[str, float, float]] = []
    work(1, lambda *report: seen.append(report))
    assert seen == [("working", 0, 1), ("working", 1, 1)]


def test_elsewhere_python_is_silent_and_commands_write_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    work(3)
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with bars() as report:
        work(4, report)
    assert "working: 50%" in stream.getvalue()
