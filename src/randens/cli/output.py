"""Print results to standard output: for people, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.core.files import plain

if TYPE_CHECKING:
    from rich.console import Console


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def console() -> Console:
    """Standard output; numbers and paths are neither coloured nor wrapped."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, emoji=False)


def show(result: Any, as_json: bool, lines: Iterable[Any]) -> None:
    """Print a result: itself as JSON for programs, or tables and sentences for people."""
    if as_json:
        print_json(plain(result))
        return
    out = console()
    for line in lines:
        out.print(line, markup=False)


def print_json(value: Any) -> None:
    """Print one JSON document; NaN is refused, because it is not JSON."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))
