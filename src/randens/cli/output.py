"""Print results to standard output: for people, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from randens.core.files import plain

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def show(result: Any, as_json: bool, lines: Iterable[Any]) -> None:
    """Print a result: itself as JSON for programs, or tables and sentences for people."""
    if as_json:
        # NaN is refused, because it is not JSON.
        typer.echo(json.dumps(plain(result), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print_lines(lines)


def print_lines(lines: Iterable[Any]) -> None:
    """Print tables and sentences; numbers and paths are neither colored nor wrapped."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    for line in lines:
        console.print(line, markup=False)
