"""The entry point `randens`: whatever a command raises becomes one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from randens import __version__
from randens.core.errors import FileError, RandensError, RandensWarning, printable

if TYPE_CHECKING:
    import typer

COMMANDS = {
    "quickstart": "Train, attack and explain an ensemble on digits in minutes.",
    "doctor": "Check the installation.",
    "data": "List, fetch, verify and locate data sets.",
    "train": "Train an ensemble from a recipe.",
    "evaluate": "Measure natural and robust accuracy, or their curve.",
    "sample": "Find the best sampling probabilities.",
    "advise": "Recommend what to deploy: one member, sampling, averages.",
    "audit": "Check whether robust accuracies can be trusted.",
    "certify": "Bound accuracy against every attack.",
    "explain": "Print which ensemble risks the members' risks allow.",
    "report": "Write an HTML report about runs, or one figure.",
    "export": "Write an ensemble as ONNX files.",
    "serve": "Answer predictions over HTTP.",
    "zoo": "List and load trained ensembles that come with randens.",
}
"""Every command with what it does, in the order in which a new user needs them."""

_ABOUT = "Evaluate, attack, train and ship classifiers whose prediction is random."
_CODES = "Exit codes: 0 done, 1 a check failed or an unforeseen error, 2 bad input, 130 interrupted, 143 terminated."
_START = f"""{_ABOUT}

I have a model
  randens evaluate package.module:factory --data digits --eps 8/255
I have a randomized defense
  randens evaluate package.module:factory --attempts 1,2,10 --data digits --eps 8/255
I want to train one
  randens quickstart
  randens train digits-mlp-barre --out runs/mine
  randens report runs/mine

All commands: randens --help. One command: randens evaluate --help. Check the installation: randens doctor.
"""

# Extras, and the packages that each installs beyond the plain installation.
_EXTRAS = {
    "torch": "torch sklearn lightning_fabric safetensors pydantic matplotlib PIL platformdirs jinja2",
    "serve": "anyio fastapi granian onnxruntime prometheus_client starlette",
    "deploy": "onnx onnxscript",
    "tensorboard": "tensorboard",
}
_LONGEST_MESSAGE = 2000
_AGAIN = 5.0  # seconds until an exception that a signal raised is raised once more


class Terminated(BaseException):
    """SIGTERM was received. It is not an `Exception`, so that no handler of ordinary errors catches it."""


def main() -> None:
    """The entry point: run the command line's arguments and exit."""
    code = run(sys.argv[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to say about while Python ends
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code, 0 to 2, or 130 (SIGINT) and 143 (SIGTERM)."""
    words = list(arguments)
    for stream in (sys.stdout, sys.stderr):
        # A name from elsewhere may hold what the terminal cannot show; printing it must not fail.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    if not words and "_RANDENS_COMPLETE" not in os.environ:
        sys.stdout.write(_START)
        return 0
    with _signals() as received, warnings.catch_warnings():
        warnings.showwarning = _one_line(warnings.showwarning)
        try:
            code = _run(words)
            # typer turns Ctrl-C into an exit code without a message.
            if code == 0 or not received:
                return code
        except (KeyboardInterrupt, Terminated):
            pass
        except Exception as error:
            # An error that the signal caused is not reported.
            if not received:
                return _failed(error, words)
        number = received[0] if received else signal.SIGINT
        name = "terminated" if number == signal.SIGTERM else "interrupted"
        _print(f"{name}: finished parts are kept; give the same command again to go on")
        return 128 + number


def _run(words: list[str]) -> int:
    import typer  # slow to import, so only once signals are handled

    try:
        command = typer.main.get_command(application())
        result = command.main(words, prog_name="randens", standalone_mode=False)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort as aborted:
        # typer turns an EOFError into an interruption; it comes from a file that was cut off.
        if isinstance(aborted.__cause__, EOFError):
            raise FileError("a file ends too early; it is damaged") from aborted
        raise KeyboardInterrupt from aborted
    return result if isinstance(result, int) else 0


def _failed(error: Exception, words: list[str]) -> int:
    """One line about the error, and the exit code: 2 for bad input, 1 for what was not foreseen."""
    from typer.exceptions import TyperException

    if os.environ.get("RANDENS_DEBUG"):
        raise error
    if isinstance(error, BrokenPipeError):
        # The reader of standard output has gone; Python must not try to write there when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    code, message = 2, str(error)
    package = (getattr(error, "name", None) or "").partition(".")[0]
    extra = next((extra for extra, names in _EXTRAS.items() if package in names.split()), None)
    if isinstance(error, TyperException):
        code, message = error.exit_code, error.format_message().strip()
        context = getattr(error, "ctx", None)
        if context is not None and message == context.get_help().strip():  # a group without a subcommand
            sys.stderr.write(f"{message}\n")
            return code
        if context is not None:
            message = (
                f"{message.replace('Value error, ', '').rstrip('.')}; see `{context.command_path} --help`"
            )
    elif isinstance(error, ModuleNotFoundError) and extra is not None:
        message = f"{package} is not installed and {words[0]!r} needs it; pip install '.[{extra}]' in a clone"
    elif isinstance(error, OSError) and not isinstance(error, RandensError):
        where = f" ({error.filename})" if error.filename is not None else ""
        message = f"{error.strerror or type(error).__name__}{where}"
    elif isinstance(error, MemoryError):
        code, message = 1, "not enough memory; fewer inputs (--limit) or smaller models need less"
    elif not isinstance(error, RandensError):
        code, kind = 1, type(error).__name__
        message = f"unforeseen {kind}: {message}; set RANDENS_DEBUG=1 for the traceback"
    if message:
        _print(message)
    return code


def application() -> typer.Typer:
    """All commands. Their modules import what they need when they run, as it may be slow or not installed."""
    import typer

    # Plain help, because the drawn one shows flags as if they took a value.
    app = typer.Typer(name="randens", epilog=_CODES, no_args_is_help=True, rich_markup_mode=None)
    flag: Any = typer.Option(False, "--version", callback=_show_version, help="Show the version.")

    @app.callback(help=_ABOUT)
    def root(_: bool = flag) -> None:
        """The options of `randens` itself."""

    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"randens.cli.{name}")
        if isinstance(group := getattr(module, "app", None), typer.Typer):
            app.add_typer(group, name=name, short_help=summary)
        else:
            app.command(name, short_help=summary)(getattr(module, name))
    return app


def _show_version(wanted: bool) -> None:
    import typer

    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield the signals received so far; SIGINT raises KeyboardInterrupt, SIGTERM `Terminated`."""
    received: list[int] = []

    def handler(number: int, _: FrameType | None) -> None:
        received.append(number)
        # Callbacks of the garbage collector, and some libraries, swallow any exception.
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        raise Terminated if received[0] == signal.SIGTERM else KeyboardInterrupt

    handled = [signal.SIGTERM, signal.SIGALRM]
    # A shell starts background jobs with SIGINT ignored; it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handled.append(signal.SIGINT)
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield received
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _one_line(others: Callable[..., None]) -> Callable[..., None]:
    """Show a warning of randens as one line; `others` shows other warnings as usual."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, RandensWarning):
            _print(f"warning: {message}")
        else:
            others(message, category, *where, **more)

    return show


def _print(message: str) -> None:
    """One line on standard error, without control characters and of bounded length."""
    line = " ".join(message.split())
    if len(line) > _LONGEST_MESSAGE:
        line = f"{line[: _LONGEST_MESSAGE // 2]} … {line[-_LONGEST_MESSAGE // 2 :]}"
    sys.stderr.write(f"randens: {printable(line)}\n")
