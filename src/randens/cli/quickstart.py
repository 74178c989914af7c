"""`randens quickstart`: train, attack and explain a randomized ensemble in minutes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from randens.cli.choices import Device
from randens.cli.output import Json, show
from randens.cli.progress_bars import bars

if TYPE_CHECKING:
    from randens.quickstart import Quickstart


def quickstart(
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    seed: Annotated[int, typer.Option(help="Seed of all random choices; not negative.", min=0)] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train AT and an ensemble on digits, choose the probabilities, attack both, and print the comparison.

    AT is one network, trained with as many passes as the whole ensemble. The
    8×8 digits come with scikit-learn, which is installed with randens, so
    nothing is downloaded. It takes about three minutes on a laptop and leaves a
    run folder, runs/quickstart-1 the first time, with a report to open in a
    browser. The other commands take that folder.

    Example: randens quickstart
    """
    from randens.quickstart import quickstart as run_quickstart

    with bars() as progress:
        result = run_quickstart(runs, seed=seed, device=device, progress=progress)
    show(result, as_json, _lines(result))


def _lines(result: Quickstart) -> Iterator[Any]:
    from randens.evaluation import result_tables

    ensemble, advice, folder = result.ensemble, result.advice, result.run.path
    threat = f"{ensemble.threat.norm}, ε = {ensemble.threat.eps:g}"
    rows = [*result_tables.rows(result.at, "AT"), *result_tables.rows(ensemble, "ensemble", "chosen")]
    title = f"{ensemble.data}, {ensemble.n} test images, {threat}"
    yield from (result_tables.terminal(rows, title, ensemble.confidence), "")
    yield from result_tables.statements(ensemble)
    yield f"The probabilities are {result.sampling.claim}."
    yield from ("", Text(result.verdict.sentence, style="bold"), "")
    title = f"What to deploy, by {advice.n} validation images"
    yield result_tables.terminal(advice.options, title, advice.confidence)
    yield from (*advice.sentences, "")
    yield f"The report is {result.report}: open it in a browser."
    yield f"Everything is in {folder} ({result.seconds:.0f} s). What to try next:"
    yield f"  randens evaluate {folder} --attack suite     a stronger portfolio of attacks"
    yield f"  randens sample {folder}                      other ways to choose the probabilities"
    risks = " ".join(f"{risk:.3f}" for risk in ensemble.member_risks.tolist())
    yield f"  randens explain {risks}           what these members' risks allow"
