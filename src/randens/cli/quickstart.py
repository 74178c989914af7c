"""`randens quickstart`: train, attack and explain a randomized ensemble in minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from randens.cli.choices import Device, Json, show
from randens.core.progress import bars

if TYPE_CHECKING:
    from randens.quickstart import Quickstart


def quickstart(
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    seed: Annotated[int, typer.Option(help="Seed of all random choices.", min=0)] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train AT and an ensemble on digits, choose the probabilities, attack both, and print the comparison.

    AT is one network, trained with as many passes as the whole ensemble. It
    takes a few minutes, downloads nothing, and leaves a run folder with a
    report, runs/quickstart-1 the first time, for the other commands.

    Example: randens quickstart
    """
    from randens.quickstart import quickstart as run_quickstart

    with bars() as progress:
        result = run_quickstart(runs, seed=seed, device=device, progress=progress)
    show(result, as_json, _lines(result))


def _lines(result: Quickstart) -> Iterator[Any]:
    from randens.evaluation.tables import attack_name, radius_text, table_of

    ensemble, about, folder = result.ensemble, result.ensemble.about, result.run.path
    attacks = ", ".join(map(attack_name, about.attacks))
    title = f"digits, {about.n} test images, ε = {radius_text(about.threat)}, attacked with {attacks}"
    yield table_of([*result.at.rows("AT"), *ensemble.rows("ensemble")], ensemble.confidence).rich(title)
    yield from ("", result.verdict, "")
    yield f"The report is {result.report} ({result.seconds:.0f} s in all). What to try next:"
    yield f"  randens advise {folder}       what to deploy, and why"
    yield f"  randens audit {folder}        whether these numbers can be trusted"
    yield f"  randens export {folder}       ONNX files for `randens serve`"
