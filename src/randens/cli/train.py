"""`randens train`: train an ensemble from a recipe; a run can be interrupted and continued."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from randens.cli.output import Json, show
from randens.cli.progress_bars import bars
from randens.core.errors import FileError
from randens.core.progress import silent


def train(
    recipe: Annotated[
        Path,
        typer.Argument(
            help="A recipe in TOML, or the name of one that comes with randens, e.g. digits-mlp-barre."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "--output", help="The run folder; runs/ and the recipe's name by default."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Another value for a field of the recipe, e.g. optimizer.lr=0.05; repeatable."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where to train: auto, cpu, cuda, cuda:N or mps; the recipe's device by default."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Continue although the recipe has changed.")] = False,
    as_json: Json = False,
) -> None:
    """Train an ensemble by RECIPE. The same command continues a run that was interrupted or killed.

    It first prints the member passes of the run. Ctrl-C saves a checkpoint
    and ends with exit code 130, SIGTERM with 143. The result is a run folder
    for the other commands.

    Example: randens train digits-convnet-barre --set epochs=5
    """
    from randens.training import Stopped, estimate, load_recipe
    from randens.training import train as run_training

    chosen = load_recipe(recipe, [*(settings or []), *([f"device={device}"] if device else [])])
    folder = out if out is not None else Path("runs") / recipe.stem
    leads = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))) == 0
    # Only the first process prints.
    say: Callable[[str], None] = partial(typer.echo, err=True) if leads else lambda _: None
    say(f"{recipe.stem} in {folder}: {estimate(chosen).sentence()}")
    with _stop_on_signal(say) as signals, bars() as progress:
        try:
            shown = progress if leads else silent
            run_training(chosen, folder, shown, say=say, stop=lambda: bool(signals), force=force)
        except Stopped as stopped:
            say(str(stopped))
            # The signal may have reached another process only.
            raise typer.Exit(128 + next(iter(signals), 0)) from None
    if leads:
        _report(folder, as_json)


def _report(folder: Path, as_json: bool) -> None:
    from randens.core.runs import Run

    show({"run": folder, **Run.open(folder).read("training")}, as_json, _lines(folder))


def _lines(folder: Path) -> Iterator[str]:
    from randens.core.documents import read_document
    from randens.training.run_files import Summary

    summary = read_document(folder / "training.json", Summary)
    found = summary.validation
    if found is None:
        raise FileError(f"{folder / 'training.json'} does not hold a summary; train again with --force")
    probs = ", ".join(f"{p:.3g}" for p in summary.probs)
    yield (
        f"{summary.method}, {summary.members} members, α = ({probs}): natural "
        f"{found.natural_accuracy:.1%}, under {found.attack} {found.robust_accuracy:.1%} "
        f"on {found.images} validation images."
    )
    yield f"The ensemble is in {folder}. Judge it on test data: randens evaluate {folder}"


@contextlib.contextmanager
def _stop_on_signal(say: Callable[[str], None]) -> Iterator[list[int]]:
    """Yield the list of received signals: stop after the step at the first; a second one ends at once."""
    signals: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if signals:
            before = wanted[signal.Signals(number)]
            if callable(before):
                before(number, frame)
            raise KeyboardInterrupt
        signals.append(number)
        say("stopping after this step; once more ends at once")

    wanted = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in wanted.items():
            signal.signal(number, handler)
