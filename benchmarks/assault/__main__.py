"""Attack the software itself, bounded in time and count, on loopback only, and print the findings.

python -m benchmarks.assault                  everything; about ten minutes
python -m benchmarks.assault --quick          fewer of each; about two minutes
python -m benchmarks.assault server readers   some of it
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.assault import processes, readers, server, stopping
from benchmarks.assault.finding import Finding

PARTS = ("server", "slow", "crowd", "stop", "readers", "lock", "signals", "interface")


def run(part: str, folder: Path, quick: bool) -> Iterator[Finding]:
    """The findings of one part."""
    folder.mkdir(exist_ok=True)
    if part == "server":
        yield from server.freezing(folder, senders=8 if quick else 32, size=server.LIMITS.body)
    elif part == "slow":
        yield from server.occupying(folder, senders=50 if quick else 200, good=20 if quick else 100)
    elif part == "crowd":
        yield from server.crowding(folder, senders=600, good=5 if quick else 20)
    elif part == "stop":
        yield from stopping.stops(folder, clients=4 if quick else 16)
    elif part == "readers":
        yield from readers.findings(folder, count=200 if quick else 1000)
    elif part == "lock":
        yield from processes.writers(folder)
    elif part == "signals":
        yield from processes.signals(folder, moments=7 if quick else 28)
    else:
        yield from stopping.interface(folder, examples=100 if quick else 1000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if every bound holds, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.assault",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="fewer of each")
    asked = parser.parse_args(arguments)
    wrong = [part for part in asked.parts if part not in PARTS]
    if wrong:
        parser.error(f"unknown part {wrong[0]!r}; valid: {', '.join(PARTS)}")
    load = os.getloadavg()[0]
    print(f"Load average at the start: {load:.1f} on {os.cpu_count()} cores.\n")
    print("| part | attack | figure | bound | holds | note |\n|---|---|---|---|---|---|")
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        for part in asked.parts or PARTS:
            for finding in run(part, Path(place) / part, asked.quick):
                print(finding.row, flush=True)
                failed += not finding.holds
    print(f"\n{failed} bounds do not hold." if failed else "\nEvery bound holds.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
