"""`randens train`: train an ensemble from a recipe; a run can be interrupted and continued."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from randens.cli.choices import Json, show
from randens.core.errors import InputError, printable
from randens.core.progress import bars

if TYPE_CHECKING:
    from randens.training.train import Summary


def train(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe in TOML, or the name of one that comes with randens; without it these are listed.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "--output", help="The run folder; runs/ and the recipe's name by default."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder of images to train on, one folder per class, in train/ and validation/."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value for a recipe's field, e.g. optimizer.lr=0.05; repeatable."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    devices: Annotated[
        str | None, typer.Option(help="Processes on this machine, one per GPU; auto is one for every GPU.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Machines; each runs the same command.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or auto.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Continue although the recipe has changed.")] = False,
    as_json: Json = False,
) -> None:
    """Train an ensemble by RECIPE. The same command continues a run that was interrupted or killed.

    It first prints the member passes of the run. Ctrl-C saves a checkpoint
    and ends with exit code 130, SIGTERM with 143. The result is a run folder
    for the other commands. Device, devices, nodes and precision are the
    recipe's by default, and may change when a run is continued.

    Example: randens train digits-convnet-barre --set epochs=5
    """
    from randens.core.progress import leads
    from randens.core.runs import Run
    from randens.training import Stopped, load_recipe, shipped_recipes
    from randens.training import train as run_training
    from randens.training.train import Summary

    if recipe is None:
        names = sorted(shipped_recipes())
        show({"recipes": names}, as_json, ["Recipes in randens:", *(f"  {name}" for name in names)])
        return
    given = {"device": device, "devices": devices, "nodes": nodes, "precision": precision}
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    if data is not None:
        if not data.is_dir():
            raise InputError(f"--data is {str(data)!r}; it must be a folder of images")
        options.append(f"data.name={json.dumps(str(data.resolve()))}")
    chosen = load_recipe(recipe, [*(settings or []), *options])
    folder = out if out is not None else Path("runs") / recipe.stem
    is_main = leads()

    def say(text: str) -> None:
        if is_main:  # the only process that prints
            typer.echo(printable(text), err=True)

    say(f"{recipe.stem} in {folder}")
    with _stop_on_signal(say) as signals, bars() as progress:
        try:
            run_training(chosen, folder, progress, say=say, stop=lambda: bool(signals), force=force)
        except Stopped as stopped:
            say(str(stopped))
            # The signal may have reached another process only.
            raise typer.Exit(128 + next(iter(signals), 0)) from None
    if is_main:
        document = Run.open(folder).read("training")
        summary = Summary.parse(document, folder / "training.json")
        show({"run": folder, **document}, as_json, _lines(folder, summary))


def _lines(folder: Path, summary: Summary) -> Iterator[str]:
    found, probs = summary.validation, ", ".join(f"{p:.3g}" for p in summary.probs)
    yield (
        f"{summary.method}, {summary.members} members, α = ({probs}): natural {found.natural_accuracy:.1%}, under "
        f"{found.attack} {found.robust_accuracy:.1%} on {found.images} validation images."
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
