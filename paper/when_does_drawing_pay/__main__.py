"""The command: see the package."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from paper.when_does_drawing_pay.plan import CELLS
from paper.when_does_drawing_pay.work import compute, result_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper.when_does_drawing_pay", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "page"), default="all")
    parser.add_argument("--folder", type=Path, default=Path("runs/when-does-drawing-pay"))
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no cell after so many minutes"
    )
    arguments = parser.parse_args()
    begun = time.monotonic()
    if arguments.what == "all":
        missing = [cell for cell in CELLS if not result_of(cell).is_file()]
        for number, cell in enumerate(missing):
            if time.monotonic() - begun > 60 * arguments.minutes:
                print(f"{len(missing) - number} cells are left for the next time")
                break
            compute(cell, arguments.folder)


if __name__ == "__main__":
    main()
