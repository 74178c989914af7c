"""`randens bench`: speed and strength against other libraries and limits; needs a clone of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import randens
from randens.cli.clone import clone_of
from randens.cli.output import Json
from randens.core.errors import InputError


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks to run; all by default.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the benchmarks.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes; under three minutes.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output",
            help="Where the JSON goes; benchmarks/results.json for a whole run, runs/bench.json otherwise.",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch; all cores by default.")] = None,
    ensemble: Annotated[
        Path | None, typer.Option(help="An ensemble folder to attack instead of the benchmark's own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure randens against other libraries and against limits; exit code 1 if a benchmark failed.

    Example: randens bench --quick
    """
    clone = clone_of(Path.cwd(), "benchmarks/runner.py")
    if clone is None:
        raise InputError(
            "the benchmarks live in randens's repository: run `make bench` or `randens bench` inside a clone of it"
        )
    arguments = list(names or [])
    arguments += [
        flag for flag, given in (("--list", listing), ("--quick", quick), ("--json", as_json)) if given
    ]
    # The benchmarks run in the clone, but paths are relative to the current folder.
    for option, path in (("--out", out), ("--ensemble", ensemble)):
        arguments += [] if path is None else [option, str(path.absolute())]
    arguments += [] if threads is None else ["--threads", str(threads)]
    command = [sys.executable, "-m", "benchmarks", *arguments]
    # The child process must import the same package as this process.
    home = str(Path(randens.__file__).resolve().parents[1])
    paths = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.run(command, cwd=clone, env={**os.environ, "PYTHONPATH": paths}, check=False)
    raise typer.Exit(child.returncode if child.returncode >= 0 else 1)
