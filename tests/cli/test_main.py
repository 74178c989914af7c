"""The frame of the command line: help, options, one-line errors, exit codes, signals."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from docs.tools.pages import check_arguments
from tests.cli.commands import Shell

import randens
from randens.cli import main
from randens.core.errors import FileError, InputError


def _run(*arguments: str, script: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    code = f"{script}\nfrom randens.cli.main import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(str(randens.__file__)).parents[1]), **environment},
        check=False,
    )


# ---- help ---------------------------------------------------------------------------------------------------------


def test_help_lists_every_command(shell: Shell) -> None:
    code, out, err = shell("--help")
    assert (code, err) == (0, "")
    for name, summary in main.COMMANDS.items():
        assert f" {name} " in out
        assert summary in out
    assert len(main.COMMANDS) == 14
    assert shell("--version") == (0, f"{randens.__version__}\n", "")


def test_randens_alone_shows_where_to_begin(shell: Shell) -> None:
    code, out, err = shell()
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line.startswith("  randens ")]
    assert len(lines) >= 4
    for line in lines:
        check_arguments(line.split()[1:])


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_an_example_and_few_options(shell: Shell, name: str) -> None:
    root = typer.main.get_command(main.application())
    command = getattr(root, "commands", {})[name]
    for sub, one in getattr(command, "commands", {"": command}).items():
        code, out, _ = shell(*f"{name} {sub}".split(), "--help")
        assert code == 0
        assert f"Example: randens {name}" in " ".join(out.split())
        options = [p for p in one.params if p.param_type_name == "option" and p.name != "help"]
        assert len(options) <= 12
        # Flags are shown as flags: they take no value.
        assert not re.search(r"--\S+ +(BOOLEAN|<bool>)", out)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("randens ev", ["evaluate"]),
        ("randens evaluate --att", ["--attack", "--attempts"]),
        ("randens sample runs/x --split v", ["validation"]),
        ("randens data f", ["fetch"]),
    ],
)
def test_tab(line: str, offered: list[str]) -> None:
    words = line.split(" ")
    done = _run(_RANDENS_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert done.stdout.split() == offered, done.stderr


# ---- one net at the door -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("first\n  second"), 2, "first second"),
        (FileError("cannot read x"), 2, "cannot read x"),
        (OSError(errno.ENOSPC, "No space left on device", "there"), 2, "No space left on device (there)"),
        (PermissionError(errno.EACCES, "Permission denied", "there"), 2, "Permission denied (there)"),
        (ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript"), 2, "[deploy]"),
        (MemoryError(), 1, "not enough memory"),
        (ZeroDivisionError("division by zero"), 1, "set RANDENS_DEBUG=1 for the traceback"),
        (RecursionError("too deep"), 1, "unforeseen RecursionError: too deep"),
        (UnicodeEncodeError("utf-8", "\udc80", 0, 1, "surrogates"), 1, "unforeseen UnicodeEncodeError"),
        (ValueError("x" * 100_000), 1, "…"),
    ],
)
def test_every_error_is_one_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, message: str
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("randens.risk.explain", failing)
    found, out, err = shell("explain", "0.5")
    assert (found, out) == (code, "")
    assert err.startswith("randens: ")
    assert message in err
    assert err.count("\n") == 1
    assert len(err) < 3000
    monkeypatch.setenv("RANDENS_DEBUG", "1")
    with pytest.raises(type(error)):
        main.run(["explain", "0.5"])


LONG, DIGITS = "n" * 5000, "9" * 5000
HOSTILE = [
    *(("evaluate", name) for name in (LONG, "\udc80\x1b[31m", "", "/dev/zero", "fifo")),
    *(("evaluate", "run", "--data", name) for name in (LONG, "file.npz", "folder")),
    *(("evaluate", "run", "--limit", n) for n in (DIGITS, "0", "1.5")),
    *(("evaluate", "run", "--eps", n) for n in ("1e999999999", "-1", "nan", "1/0", "0:1", f"0:1:{DIGITS}")),
    *(("evaluate", "run", "--attack", n) for n in (LONG, "pgd:steps", f"pgd:steps={DIGITS}")),
    *(("explain", n) for n in (DIGITS, "1e999999999", "a", "42")),
    *(("train", name) for name in ("fifo", "folder", "file.npz", "/dev/zero")),
    *((name, "fifo") for name in ("sample", "advise", "audit", "certify", "report", "export", "serve")),
    ("report", "run", "--figure", LONG),
    ("data", "fetch", LONG),
    ("evalute", "x"),
]


@pytest.mark.parametrize(
    "arguments", HOSTILE, ids=lambda words: " ".join(words)[:40].encode("ascii", "replace").decode()
)
def test_bad_arguments_are_one_sentence(
    shell: Shell, run_folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(run_folder.parent)
    os.mkfifo("fifo")
    Path("folder").mkdir()
    Path("file.npz").write_bytes(b"\xff\xfe")
    code, _, err = shell(*arguments)
    (line,) = err.strip().splitlines()
    assert code == 2, line
    assert line.startswith("randens: ")
    assert all(c.isprintable() for c in line)
    assert len(line) < 3000


def test_a_full_disk_is_one_sentence(run_folder: Path) -> None:
    script = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, -1))"
    for arguments in (
        ("evaluate", str(run_folder), "--limit", "2", "--attack", "fgsm"),
        ("zoo", "load", "cifar10-resnet20-at", "--output", str(run_folder / "copy")),
        ("quickstart", "--runs", str(run_folder / "runs")),
        ("train", "digits-mlp-at", "--out", str(run_folder / "trained")),
    ):
        done = _run(*arguments, script=script)
        assert "Traceback" not in done.stderr
        assert "randens: " in done.stderr.splitlines()[-1]
        assert done.returncode == 2, done.stderr
    assert not (run_folder / "copy").exists()


# ---- signals -------------------------------------------------------------------------------------------------------


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT as in a terminal: a shell starts jobs in the background, and with them the tests, with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _nothing() -> None:
    """A command that ends without an error of its own."""


def _breaks() -> None:
    raise RuntimeError("a worker is gone")


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("then", [_nothing, _breaks])
def test_a_signal_has_its_exit_code_and_one_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, number: int, code: int, word: str, then: Callable[[], None]
) -> None:
    def command(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), number)
        except BaseException:
            then()
            raise

    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr("randens.risk.explain", command)
    assert shell("explain", "0.5") == (
        code,
        "",
        f"randens: {word}: finished parts are kept; give the same command again to go on\n",
    )
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_is_swallowed_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_AGAIN", 0.01)
    with pytest.raises(main.Terminated), main._signals():  # noqa: PT012 - later
        with contextlib.suppress(main.Terminated):  # as callbacks do
            signal.raise_signal(signal.SIGTERM)
        time.sleep(5)
