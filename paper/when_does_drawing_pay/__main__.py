"""The command: see the package."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from paper.when_does_drawing_pay.figures import write_figures
from paper.when_does_drawing_pay.final import compare, finals
from paper.when_does_drawing_pay.page import write_page
from paper.when_does_drawing_pay.plan import CELLS, CIFAR, FINALS, SMALL_FINALS, STRIDED, ZOO
from paper.when_does_drawing_pay.trained import prepare
from paper.when_does_drawing_pay.work import compute, result_of, shipped


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper.when_does_drawing_pay", description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=("all", "digits", "final", "cifar10", "zoo", "page"), default="all"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/when-does-drawing-pay"))
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no cell after so many minutes"
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where the page and figures/ go")
    arguments = parser.parse_args()
    begun = time.monotonic()
    if arguments.what in ("all", "zoo"):
        for ensemble in ZOO:
            shipped(ensemble)
    if arguments.what in ("all", "digits", "cifar10"):
        wanted = {"all": (*CELLS, *CIFAR), "digits": CELLS, "cifar10": CIFAR}[arguments.what]
        missing = [cell for cell in wanted if not result_of(cell).is_file()]
        for number, cell in enumerate(missing):
            if time.monotonic() - begun > 60 * arguments.minutes:
                print(f"{len(missing) - number} cells are left for the next time")
                break
            alike = [other for other in missing if replace(other, seed=0) == replace(cell, seed=0)]
            prepare(alike, arguments.folder)
            compute(cell, arguments.folder)
    if arguments.what in ("all", "cifar10"):
        compare([*SMALL_FINALS, STRIDED], arguments.folder)
    if arguments.what in ("all", "final"):
        for cell in FINALS:
            compare(finals(cell), arguments.folder)
    names = write_figures(arguments.docs / "figures")
    write_page(arguments.docs / "when-does-drawing-pay.md", {k: f"figures/{v}" for k, v in names.items()})


if __name__ == "__main__":
    main()
