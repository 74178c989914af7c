"""`randens quickstart`: train, attack and explain a randomized ensemble in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from randens.cli.choices import Device
from randens.cli.output import Json, console, print_json
from randens.cli.progress_bars import bars

if TYPE_CHECKING:
    from randens.quickstart import Quickstart

__all__ = ["quickstart"]


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
    if as_json:
        print_json(result.to_json())
    else:
        _print(result)


def _print(result: Quickstart) -> None:
    from randens.evaluation import result_tables

    out = console()
    ensemble = result.ensemble
    threat = f"{ensemble.threat.norm}, ε = {ensemble.threat.eps:g}"
    rows = [*result_tables.rows(result.at, "AT"), *result_tables.rows(ensemble, "ensemble", "chosen")]
    out.print(
        result_tables.terminal(
            rows, f"{ensemble.data}, {ensemble.n} test images, {threat}", ensemble.confidence
        )
    )
    out.print()
    for line in result_tables.statements(ensemble):
        out.print(line)
    out.print(f"The probabilities are {result.sampling.claim}.")
    out.print()
    out.print(result.verdict.sentence, style="bold")
    advice = result.advice
    options = [result_tables.Row(option.name, option.accuracy, option.flops) for option in advice.options]
    out.print()
    out.print(
        result_tables.terminal(options, f"What to deploy, by {advice.n} validation images", advice.confidence)
    )
    for line in advice.sentences:
        out.print(line)
    out.print()
    folder = result.run.path
    out.print(f"The report is {result.report}: open it in a browser.")
    out.print(f"Everything is in {folder} ({result.seconds:.0f} s). What to try next:")
    out.print(f"  randens evaluate {folder} --attack suite     a stronger portfolio of attacks")
    out.print(f"  randens sample {folder}                      other ways to choose the probabilities")
    risks = " ".join(f"{risk:.3f}" for risk in ensemble.member_risks.tolist())
    out.print(f"  randens explain {risks}           what these members' risks allow")
