"""Running commands inside the test's own process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from randens.cli.main import run

__all__ = ["Shell", "shell"]


class Shell:
    """Runs `randens` with some arguments and returns (exit code, standard output, standard error)."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self.capture = capture

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.capture.readouterr()
        code = run([str(a) for a in arguments])
        caught = self.capture.readouterr()
        return code, caught.out, caught.err

    def json(self, *arguments: object) -> Any:
        """Standard output as JSON; the command must succeed and print nothing else there."""
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def refused(self, *arguments: object) -> str:
        """The one line on standard error of a command that must fail with exit code 2 and print nothing."""
        code, out, err = self(*arguments)
        assert code == 2, (code, out, err)
        assert out == ""
        (line,) = err.strip().splitlines()
        assert line.startswith("randens: ")
        return line.removeprefix("randens: ")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)
