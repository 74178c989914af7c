"""SIGINT and SIGTERM end every command with one line and their exit code."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.cli.commands import Shell

from randens.cli import main
from randens.cli.interrupts import farewell, signals_noted


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT as in a terminal: a shell starts jobs in the background, and with them the tests, with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def after_signal(number: int, then: Callable[[], None]) -> Callable[..., None]:
    """A command that is hit by a signal, and what it does about it."""

    def command(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), number)
        except BaseException:
            then()
            raise

    return command


def nothing() -> None:
    """A command that ends without an error of its own."""


def breaks() -> None:
    raise RuntimeError("a worker is gone")


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("then", [nothing, breaks])
def test_a_signal_has_its_exit_code_and_one_line(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: int,
    word: str,
    then: Callable[[], None],
) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr("randens.risk.explain", after_signal(number, then))
    found, out, err = shell("explain", "0.5")
    assert (found, out) == (code, "")
    assert err == f"randens: {word}: nothing was written; the same command begins again\n"
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_command_says_what_was_kept_and_how_to_go_on(verb: str) -> None:
    line = farewell(verb, signal.SIGTERM)
    assert any(word in line for word in ("kept", "answered", "nothing was written"))
    assert "the same command" in line


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_noted() as seen:
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert seen == []
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handlers_alone() -> None:
    found: list[object] = []
    before = signal.getsignal(signal.SIGTERM)

    def other() -> None:
        with signals_noted() as seen:
            found.append(signal.getsignal(signal.SIGTERM))
            found.append(seen)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [before, []]
