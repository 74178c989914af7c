"""The entry point `randens`. Errors of randens become one line and exit code 2."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from randens._version import __version__
from randens.cli.interrupts import Terminated, farewell, signals_noted
from randens.core.errors import RandensError, RandensWarning, unknown

if TYPE_CHECKING:
    import typer


VERBS = {
    "quickstart": "Train, attack and explain an ensemble on digits in minutes.",
    "doctor": "Check the installation.",
    "data": "List, fetch, verify and locate data sets.",
    "train": "Train an ensemble by a recipe.",
    "evaluate": "Measure natural and robust accuracy of a run or of your own networks.",
    "advise": "Say what to deploy: a member, a drawn one, k of M averaged, or all.",
    "audit": "Check whether the numbers of a run can be trusted.",
    "certify": "Compute lower bounds on accuracy that hold against every attack.",
    "sample": "Find the best sampling probabilities of a run.",
    "explain": "Say what the members' risks allow.",
    "report": "Write a page about runs.",
    "export": "Write a run's ensemble as ONNX files.",
    "serve": "Answer predictions over HTTP.",
    "zoo": "List and load trained ensembles that come with randens.",
}
"""Every command with what it does, in the order in which a new user needs them."""

_ABOUT = "Attack, evaluate, certify, train and deploy randomized ensembles of classifiers."
_CODES = "Exit codes: 0 done, 1 a check failed, 2 bad input, 130 interrupted, 143 terminated."
_START = f"""{_ABOUT}

I have a model
  randens evaluate --model package.module:factory --run-code --data digits --eps 8/255
I have a randomised defence
  randens evaluate --model package.module:factory --run-code --draws 16 --data digits --eps 8/255
I want to train one
  randens quickstart
  randens train digits-mlp-barre --out runs/mine
  randens report runs/mine

All commands: randens --help. One command: randens evaluate --help. Check the installation: randens doctor.
"""

# Extras, and the packages that each installs beyond the plain installation.
_EXTRAS = {
    "torch": "torch sklearn lightning_fabric safetensors pydantic matplotlib PIL platformdirs",
    "serve": "anyio fastapi granian onnxruntime prometheus_client starlette",
    "deploy": "onnx onnxscript",
    "tensorboard": "tensorboard",
}
# Set by the script of --install-completion; other variables hold the words typed so far.
_COMPLETION = "_RANDENS_COMPLETE"
_TYPED = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")


def main() -> None:
    """The entry point: run the command line's arguments and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 done, 1 a check failed, 2 bad input, 130 interrupted (SIGINT), 143 terminated (SIGTERM).
    """
    chosen = list(arguments)
    if not os.environ.get(_COMPLETION) and (shown := _shown(chosen)) is not None:
        sys.stdout.write(shown)
        return 0
    # Imported late, because importing typer takes longer than all of the above.
    import typer

    with signals_noted() as signals, warnings.catch_warnings():
        warnings.showwarning = _one_line(warnings.showwarning)
        try:
            code = _run(chosen)
            # typer turns Ctrl-C into an exit code without a message.
            if code == 0 or not signals:
                return code
            number = signals[0]
        except (KeyboardInterrupt, typer.Abort, Terminated):
            number = signals[0] if signals else signal.SIGINT
        except Exception:
            # An error that the signal caused is not reported.
            if not signals:
                raise
            number = signals[0]
        _say(farewell(chosen[0], number))
        return 128 + number


def _shown(arguments: list[str]) -> str | None:
    """Print the entry points, the list of commands or the version, if no command is given."""
    if not arguments:
        return _START
    if arguments == ["--version"]:
        return f"{__version__}\n"
    if arguments == ["--help"]:
        width = max(map(len, VERBS))
        verbs = "\n".join(f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items())
        return f"""Usage: randens COMMAND [ARGUMENTS]...

{_ABOUT}

Commands, each with its own --help:
{verbs}

Options:
  --version             Show the version and exit.
  --install-completion  Install completion for this shell.
  --show-completion     Print the completion script of this shell.
  --help                Show this page and exit.

{_CODES}
"""
    return None


def _run(chosen: list[str]) -> int:
    import typer
    from typer.exceptions import TyperException

    try:
        command = typer.main.get_command(_app(chosen))
        result = command.main(chosen, prog_name="randens", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except RandensError as error:
        _say(str(error))
        return 2
    except TyperException as error:
        # A group without a subcommand has already shown its help.
        if message := error.format_message().strip():
            _say(message)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((extra for extra, names in _EXTRAS.items() if package in names.split()), None)
        if extra is None:
            raise
        _say(f"{package} is not installed and {chosen[0]!r} needs it; pip install 'randens[{extra}]'")
        return 2
    except typer.Exit as done:
        return done.exit_code


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Build the application with the requested command; the others have only their name and summary.

    Importing a command imports its dependencies, which takes time and may need packages that are not
    installed.
    """
    import importlib

    import typer

    app = typer.Typer(name="randens", help=_ABOUT, epilog=_CODES)
    app.callback(invoke_without_command=True)(_elsewhere)
    wanted = _wanted(arguments)
    if wanted is not None and wanted not in VERBS:
        unknown("command", wanted, VERBS)
    for verb, summary in VERBS.items():
        if verb != wanted:
            app.command(verb, help=summary)(_elsewhere)
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
    """Return the command in the arguments or in the words being completed; None for the root."""
    if os.environ.get(_COMPLETION):
        typed = next((os.environ[name] for name in _TYPED if os.environ.get(name)), "")
        return next((word for word in typed.split()[1:] if word in VERBS), None)
    return None if not arguments or arguments[0].startswith("-") else arguments[0]


def _elsewhere() -> None:
    """Placeholder of a command that was not requested."""


def _check_subcommand(verb: str, group: typer.Typer, rest: Sequence[str]) -> None:
    names = [
        command.name or command.callback.__name__.strip("_").replace("_", "-")
        for command in group.registered_commands
        if command.callback is not None
    ]
    if rest and not rest[0].startswith("-") and rest[0] not in names:
        unknown(f"command of {verb!r}", rest[0], names)


def _one_line(others: Callable[..., None]) -> Callable[..., None]:
    """Show a warning of randens as one line; `others` shows other warnings as usual."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, RandensWarning):
            _say(f"warning: {message}")
        else:
            others(message, category, *where, **more)

    return show


def _say(message: str) -> None:
    sys.stderr.write(f"randens: {' '.join(message.split())}\n")
