"""`randens`: one verb each. Errors that randens raises on purpose become one line and exit code 2."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from randens import __version__
from randens.errors import RandensError, unknown

__all__ = ["VERBS", "main", "run"]

VERBS = (
    "quickstart",
    "doctor",
    "data",
    "train",
    "attack",
    "evaluate",
    "audit",
    "certify",
    "sample",
    "explain",
    "report",
    "explore",
    "figure",
    "reproduce",
    "export",
    "serve",
    "zoo",
    "bench",
)
"""In the order of a first encounter; those without a module in this room are not there yet."""

_INTERRUPTED = 130


def main() -> None:
    """The entry point: run the command line's arguments and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0, 1 (a check failed), 2 (bad input), 130 (interrupted)."""
    chosen = list(arguments) or ["--help"]
    try:
        command = typer.main.get_command(_app(chosen))
        result = command.main(chosen, prog_name="randens", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except RandensError as error:
        _say(str(error))
        return 2
    except TyperException as error:
        # A group without a subcommand has shown its help already, and says nothing more.
        if message := error.format_message().strip():
            _say(message)
        return error.exit_code
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        return _INTERRUPTED


def available() -> list[str]:
    """The verbs that exist."""
    return [verb for verb in VERBS if importlib.util.find_spec(f"randens.cli.{verb}") is not None]


def _app(arguments: Sequence[str]) -> typer.Typer:
    """The application with the one command that is asked for, or with all of them for --help.

    Importing a command imports what it needs, and for most that includes torch, which takes seconds.
    """
    verbs = available()
    first = arguments[0]
    if not first.startswith("-"):
        if first not in verbs:
            unknown("command", first, verbs)
        verbs = [first]
    elif first == "--version":
        verbs = []
    app = typer.Typer(
        name="randens",
        add_completion=False,
        help="Randomized ensembles of classifiers: attack them, prove what they can and cannot do, train them, "
        "ship them.",
    )
    app.callback(invoke_without_command=True)(_root)
    for verb in verbs:
        module = importlib.import_module(f"randens.cli.{verb}")
        group = getattr(module, "app", None)
        if isinstance(group, typer.Typer):
            _check_subcommand(verb, group, arguments[1:])
            app.add_typer(group, name=verb)
        else:
            # A module of this room with a single command holds it under its own name.
            command: Callable[..., Any] = getattr(module, verb)
            app.command(verb)(command)
    return app


def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(__version__)


def _check_subcommand(verb: str, group: typer.Typer, rest: Sequence[str]) -> None:
    names = [
        command.name or command.callback.__name__.strip("_").replace("_", "-")
        for command in group.registered_commands
        if command.callback is not None
    ]
    if rest and not rest[0].startswith("-") and rest[0] not in names:
        unknown(f"command of {verb!r}", rest[0], names)


def _say(message: str) -> None:
    typer.echo("randens: " + " ".join(message.split()), err=True)
