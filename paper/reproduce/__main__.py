"""The paper's tables and figures from run folders, in the paper's layout, our number and the paper's per cell.

    python -m paper.reproduce                                 digits: trains what is missing, minutes
    python -m paper.reproduce --scale cpu                     CIFAR-10 on two cores
    python -m paper.reproduce --scale paper --list            the commands of the independent runs, one per line
    python -m paper.reproduce --scale paper --only cifar10-resnet20 --train --device cuda

The same command continues an interrupted one. It writes reproduction.md, measurements.json, from which --page makes the
page again, and the figures next to the run folders.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from paper.reproduce.measure import ALPHA, Settings
from paper.reproduce.page import Measurements, page, reproduce
from paper.reproduce.plan import SCALES, hours, plan
from randens.core.errors import RandensError
from randens.core.progress import bars


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", default="digits", choices=list(SCALES))
    parser.add_argument("--only", action="append", default=[], help="runs whose names begin so")
    parser.add_argument("--list", action="store_true", help="print the commands that train, one per line")
    parser.add_argument("--time", action="store_true", help="estimate the minutes at this device's speed now")
    again = "print the page of this measurements.json, differences over all that are named; nothing is run"
    parser.add_argument("--page", type=Path, nargs="+", help=again)
    parser.add_argument("--runs", type=Path, help="where the run folders are; runs/SCALE by default")
    train = "train what is missing; at digits by default"
    parser.add_argument("--train", action=argparse.BooleanOptionalAction, help=train)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipes")
    parser.add_argument("--attack", default="arc-r", help="the attack behind robust accuracies")
    rules = "the rule for α; OSP at the paper's scale, else careful"
    parser.add_argument("--alpha", choices=ALPHA, help=rules)
    parser.add_argument("--limit", type=int, help="use only this many of the first inputs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    scale, folder = SCALES[asked.scale], asked.runs or Path("runs") / asked.scale
    if asked.scale == "digits":
        # Networks this small gain nothing from several threads, and lose much where others use the cores.
        torch.set_num_threads(1)
    try:
        if asked.list or asked.time:
            print("\n".join(_listed(asked, folder)))
        elif asked.page:
            first, *more = map(Measurements.load, asked.page)
            print(page(first, more=more), end="")
        else:
            settings = Settings(asked.attack, asked.alpha or scale.alpha, asked.limit, asked.seed)
            training = asked.scale == "digits" if asked.train is None else asked.train
            options = {"only": asked.only, "changes": asked.set, "device": asked.device}
            with bars() as progress:
                reproduce(asked.scale, folder, settings, training=training, progress=progress, **options)
            print((folder / "reproduction.md").read_text(encoding="utf-8"), end="")
    except RandensError as error:
        print(f"randens: {error}", file=sys.stderr)
        return 2
    return 0


def _listed(asked: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The commands of the runs, or the minutes that they take."""
    total = 0.0
    for run in plan(asked.scale, asked.only):
        if asked.time:
            training, measuring = (60 * part for part in hours(run, asked.device, asked.set))
            total += training + measuring
            yield f"{run.name}: {training:,.1f} minutes to train, {measuring:,.1f} to measure"
        else:
            yield run.command(folder, asked.set)
    if asked.time:
        yield f"all: {total:,.0f} minutes if the machine stays as busy as now; attacks may take half or twice theirs"


if __name__ == "__main__":
    raise SystemExit(main())
