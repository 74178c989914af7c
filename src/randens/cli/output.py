"""Print results to standard output: for people, or as JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Json", "console", "print_json"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def console() -> Console:
    """Standard output; numbers and paths are neither coloured nor wrapped."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document; NaN is refused, because it is not JSON."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))
