"""The paper's tables and figures from run folders, in the paper's layout, our number and the paper's per cell.

    python -m paper.reproduce --scale digits        trains what is missing, minutes
    python -m paper.reproduce --scale cpu           CIFAR-10 on two cores
    python -m paper.reproduce --scale paper         as published

The same command continues an interrupted one. It writes reproduction.md, reproduction.json and figures next to the
run folders.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paper.reproduce.runs import SCALES, Reproduction, reproduce
from randens.cli.output import show
from randens.core.errors import RandensError
from randens.core.files import write_atomic
from randens.core.progress import bars


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", default="digits", choices=list(SCALES))
    parser.add_argument("--runs", type=Path, help="where the run folders are; runs/SCALE by default")
    parser.add_argument(
        "--train", action=argparse.BooleanOptionalAction, help="train what is missing; at digits by default"
    )
    parser.add_argument("--attack", default="arc-r", help="the attack behind robust accuracies")
    parser.add_argument("--limit", type=int, help="use only this many of the first inputs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", default="terminal", choices=["terminal", "markdown", "latex"])
    parser.add_argument("--page", type=Path, help="also write the documentation's page to this file")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    asked = parser.parse_args(arguments)
    try:
        with bars() as progress:
            result = reproduce(
                asked.scale,
                asked.runs,
                training=asked.train,
                limit=asked.limit,
                attack=asked.attack,
                device=asked.device,
                seed=asked.seed,
                progress=progress,
            )
    except RandensError as error:
        print(f"randens: {error}", file=sys.stderr)
        return 2
    if asked.page is not None:
        write_atomic(asked.page, result.page().encode())
    show(result, asked.json, _lines(result, asked.format))
    return 0


def _lines(result: Reproduction, form: str) -> Iterator[Any]:
    if form in ("latex", "markdown"):
        yield result.latex() if form == "latex" else result.markdown()
        return
    yield from (table.terminal() for table in result.tables)
    yield from result.findings()
    yield from (f"missing: {run.name}: {run.command}" for run in result.missing)
    yield (
        f"Training took {result.budget['training_passes']:,} member passes, measuring "
        f"{result.budget['measuring_passes']:,}; this call {result.seconds:.0f} s. Written to {result.folder}."
    )


if __name__ == "__main__":
    raise SystemExit(main())
