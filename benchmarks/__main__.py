"""All ratios in one table: ``make bench`` or

python -m benchmarks                     every benchmark; about half an hour
python -m benchmarks --quick             small sizes; under 3 minutes
python -m benchmarks attacks sampling    some of them
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, runner
from benchmarks.harness import Settings
from randens.core.errors import InputError, RandensError

RESULTS = runner.ROOT / "benchmarks" / "results.json"
ELSEWHERE = runner.ROOT / "runs" / "bench.json"


def main(
    arguments: Sequence[str] | None = None, known: Sequence[runner.Benchmark] = runner.BENCHMARKS
) -> int:
    """Exit code 0; 1 if a benchmark failed; 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; all by default")
    parser.add_argument("--list", action="store_true", help="say which benchmarks there are")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--out",
        type=Path,
        help="where the JSON goes; benchmarks/results.json for a whole run, runs/bench.json otherwise",
    )
    parser.add_argument("--threads", type=int, default=machine.cores(), help="of torch; all cores by default")
    parser.add_argument("--ensemble", type=Path, help="an ensemble folder to attack")
    parser.add_argument("--images", type=int, help="images that attacks are measured on")
    asked = parser.parse_args(arguments)
    if asked.list:
        for benchmark in known:
            print(f"{benchmark.name:16} {benchmark.title}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if asked.threads < 1:
            raise InputError(f"--threads is {asked.threads}; it must be a whole number ≥ 1")
        return _run(asked, known)
    except RandensError as error:
        say(f"randens: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        say("randens: interrupted; the same command continues a whole run")
        return 130


def _run(asked: argparse.Namespace, known: Sequence[runner.Benchmark]) -> int:
    benchmarks = runner.chosen(asked.names, known)
    whole = len(benchmarks) == len(known)
    out = asked.out or (RESULTS if whole and not asked.quick else ELSEWHERE)
    if asked.ensemble is None and any(b.needs_members for b in benchmarks):
        # Imports torch, which takes seconds that a list of names should not cost.
        from benchmarks import members

        members.prepare(say)
    settings = Settings(asked.quick, asked.ensemble, asked.images)
    document = runner.run(benchmarks, out, settings, threads=asked.threads, everything=whole, say=say)
    print(
        json.dumps(document, indent=2, ensure_ascii=False) if asked.json else runner.summary(document, known)
    )
    say(f"written to {out}")
    return 1 if runner.failures(document, benchmarks) else 0


def say(line: str) -> None:
    """Progress goes to standard error, so that standard output holds the result and nothing else."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
