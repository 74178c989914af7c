"""`randens`: one verb each. Errors that randens raises on purpose become one line and exit code 2."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from randens import __version__
from randens.cli.interrupts import Terminated, farewell, signals_noted
from randens.core.errors import RandensError, unknown

__all__ = ["VERBS", "main", "run"]

VERBS = (
    "quickstart",
    "doctor",
    "data",
    "train",
    "attack",
    "evaluate",
    "curve",
    "advise",
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
"""In the order in which a new user needs them; names without a module in this folder are left out."""

# Packages that the plain installation leaves out, and the extras that bring them.
_EXTRAS = {
    **dict.fromkeys(
        (
            "torch",
            "sklearn",
            "lightning_fabric",
            "safetensors",
            "pydantic",
            "matplotlib",
            "PIL",
            "platformdirs",
        ),
        "torch",
    ),
    **dict.fromkeys(
        (
            "fastapi",
            "msgspec",
            "onnx",
            "onnxruntime",
            "onnxscript",
            "prometheus_client",
            "starlette",
            "uvicorn",
        ),
        "deploy",
    ),
    "tensorboard": "tensorboard",
}
# Set by the script that --install-completion leaves in the shell; the words typed so far are in the others.
_COMPLETION = "_RANDENS_COMPLETE"
_TYPED = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")


def main() -> None:
    """The entry point: run the command line's arguments and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 done, 1 a check failed, 2 bad input, 130 interrupted (SIGINT), 143 terminated (SIGTERM).
    """
    chosen = list(arguments) or ["--help"]
    with signals_noted() as signals:
        try:
            code = _run(chosen)
            # typer turns Ctrl-C into an exit code without a message.
            if code == 0 or not signals:
                return code
            number = signals[0]
        except (KeyboardInterrupt, typer.Abort, Terminated):
            number = signals[0] if signals else signal.SIGINT
        except Exception:
            # An error that the signal caused is not reported as one.
            if not signals:
                raise
            number = signals[0]
        _say(farewell(chosen[0], number))
        return 128 + number


def _run(chosen: list[str]) -> int:
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
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _say(f"{error.name} is not installed and {chosen[0]!r} needs it; pip install 'randens[{extra}]'")
        return 2
    except typer.Exit as done:
        return done.exit_code


def available() -> list[str]:
    """The verbs that exist."""
    return [verb for verb in VERBS if importlib.util.find_spec(f"randens.cli.{verb}") is not None]


def _app(arguments: Sequence[str]) -> typer.Typer:
    """The application with the one command that is asked for; the others are there by name and summary alone.

    Importing a command imports what it needs, which takes time and may need packages that are not installed.
    """
    app = typer.Typer(
        name="randens",
        help="Randomized ensembles of classifiers: attack them, prove what they can and cannot do, train them, "
        "ship them.",
        epilog="Exit codes: 0 done, 1 a check failed, 2 bad input, 130 interrupted, 143 terminated.",
    )
    app.callback(invoke_without_command=True)(_root)
    verbs, wanted = available(), _wanted(arguments)
    if wanted is not None and wanted not in verbs:
        unknown("command", wanted, verbs)
    for verb in verbs:
        if verb != wanted:
            app.command(verb, help=_summary(verb))(_elsewhere)
            continue
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


def _wanted(arguments: Sequence[str]) -> str | None:
    """The verb that the arguments ask for, or that the words being completed begin with; None for the root."""
    if os.environ.get(_COMPLETION):
        typed = next((os.environ[name] for name in _TYPED if os.environ.get(name)), "")
        return next((word for word in typed.split()[1:] if word in available()), None)
    return None if arguments[0].startswith("-") else arguments[0]


def _summary(verb: str) -> str:
    """The first paragraph of a command's own help, read from its source without importing it."""
    spec = importlib.util.find_spec(f"randens.cli.{verb}")
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == verb:
            return (ast.get_docstring(node) or "").partition("\n\n")[0]
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "app"
            and isinstance(node.value, ast.Call)
        ):
            return str(next(ast.literal_eval(k.value) for k in node.value.keywords if k.arg == "help"))
    return ""


def _elsewhere() -> None:
    """Stands for a command that was not asked for."""


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
