"""Run benchmarks one after the other, print their rows and put them into benchmarks/results.json.

python -m benchmarks                     every benchmark; about an hour
python -m benchmarks --quick             small sizes, for a look; written to no file unless --out names one
python -m benchmarks attacks sampling    some of them
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import harness
from benchmarks.harness import Settings

BENCHMARKS = ("attacks", "autoattack", "planted", "sampling", "training", "serving", "startup")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 if a benchmark failed; 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    parser.add_argument("--old", type=Path, help="a checkout of an earlier commit, for attacks' passes")
    parser.add_argument(
        "--out", type=Path, help="the file of results; benchmarks/results.json if not --quick"
    )
    chosen = parser.parse_args(arguments)
    for name in chosen.names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    if chosen.old is not None and not (chosen.old / ".venv" / "bin" / "python").exists():
        parser.error(f"--old is {chosen.old}, which has no .venv/bin/python")
    settings = Settings(chosen.quick, chosen.old)
    out = chosen.out or (None if chosen.quick else harness.RESULTS)
    failed = [name for name in chosen.names or BENCHMARKS if not _run(name, settings, out)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, settings: Settings, out: Path | None) -> bool:
    """Run one benchmark and say whether it ended well; the results of one that failed are not written."""
    module = importlib.import_module(f"benchmarks.{name}")
    print(f"\n{name}: {module.ABOUT}", flush=True)
    torch.set_num_threads(1)  # so that processor time is comparable, whatever else the machine does
    entry, begun = {"about": module.ABOUT, **harness.facts(settings)}, time.monotonic()
    rows = []
    try:
        for row in module.rows(settings):
            rows.append(row)
            print("  ".join(cell for cell in harness.cells(row) if cell), flush=True)
    except Exception:
        traceback.print_exc()
        return False
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    if out is not None and rows:
        harness.merge(out, name, entry, rows)
    return True


if __name__ == "__main__":
    raise SystemExit(main())
