"""The paper's tables and figures from run folders, in the paper's layout, our number and the paper's per cell.

    python -m paper.reproduce                                 digits: trains what is missing, minutes
    python -m paper.reproduce --scale cpu                     CIFAR-10 on two cores
    python -m paper.reproduce --scale paper --list            the commands of the independent runs, one per line
    python -m paper.reproduce --scale paper --only cifar10-resnet20 --train --device cuda

The same command continues an interrupted one. It writes reproduction.md, .tex, .json and the
figures next to the run folders.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from paper.reproduce.measure import ALPHA
from paper.reproduce.page import reproduce
from paper.reproduce.plan import SCALES, hours, plan
from randens.cli.choices import show
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
    parser.add_argument("--time", action="store_true", help="estimate the hours at this device's speed now")
    parser.add_argument("--runs", type=Path, help="where the run folders are; runs/SCALE by default")
    train = "train what is missing; at digits by default"
    parser.add_argument("--train", action=argparse.BooleanOptionalAction, help=train)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipes")
    parser.add_argument("--attack", default="arc-r", help="the attack behind robust accuracies")
    parser.add_argument(
        "--alpha", choices=ALPHA, help="the rule for α; OSP at the paper's scale, else careful"
    )
    parser.add_argument("--limit", type=int, help="use only this many of the first inputs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", default="markdown", choices=["markdown", "latex"])
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    asked = parser.parse_args(arguments)
    try:
        if asked.list or asked.time:
            print("\n".join(_listed(asked)))
            return 0
        with bars() as progress:
            result = reproduce(
                asked.scale,
                asked.runs,
                training=asked.train,
                only=asked.only,
                settings=asked.set,
                attack=asked.attack,
                alpha=asked.alpha,
                limit=asked.limit,
                device=asked.device,
                seed=asked.seed,
                progress=progress,
            )
    except RandensError as error:
        print(f"randens: {error}", file=sys.stderr)
        return 2
    show(result, asked.json, [result.latex() if asked.format == "latex" else result.markdown()])
    return 0


def _listed(asked: argparse.Namespace) -> Iterator[str]:
    """The commands of the runs, or the hours that they take."""
    folder = asked.runs or Path("runs") / asked.scale
    total = 0.0
    for run in plan(asked.scale, asked.only):
        if asked.time:
            training, measuring = hours(run, asked.device, asked.set)
            total += training + measuring
            yield f"{run.name}: {training:.1f} h to train, {measuring:.1f} h to measure"
        else:
            yield run.command(folder, asked.set)
    if asked.time:
        yield f"all: about {total:.0f} h on one device, Figure 4's run included; attacks may take half or twice theirs"


if __name__ == "__main__":
    raise SystemExit(main())
