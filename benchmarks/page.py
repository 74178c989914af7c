"""benchmarks/README.md from the results that were measured: ``make bench-docs`` or

python -m benchmarks.page [RESULTS.json]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.__main__ import BENCHMARKS
from benchmarks.harness import HEAD, RESULTS, ROOT, Row, cells
from randens.core.files import read_json, write_atomic

PAGE = ROOT / "benchmarks" / "README.md"

_FRAME = """# Benchmarks

<!-- Made by `make bench-docs` from benchmarks/results.json: change benchmarks/page.py, not this file. -->

How fast and how strong randens is, against other libraries, textbook algorithms and known optima.

`make bench` measures it, in an environment of its own, and writes `benchmarks/results.json`; `make bench-docs` makes
this page from it. `make bench ARGS="attacks --quick"` takes a short look at one of the benchmarks.

Sides are timed in turns within one run, on the same inputs. Seconds are processor time on one thread, except for
serving and startup, which are by the clock on the wall. Passes are of one image through one member, forward + backward.
Times are of one machine; ratios and, more so, passes carry over to others.
"""


def page(document: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    entries = {name: document[name] for name in BENCHMARKS if name in document}
    if not entries:
        return f"{_FRAME}\nNothing has been measured yet.\n"
    lines = [*_runs(entries), ""]
    lines += [f"- **{name}**: {entry['about']}" for name, entry in entries.items()]
    lines += ["", f"| benchmark | {' | '.join(HEAD)} |", "|---|---|--:|--:|--:|---|"]
    for name, entry in entries.items():
        for row in entry["rows"]:
            shown = " | ".join(cell.replace("|", "\\|") for cell in cells(Row(**row)))
            lines.append(f"| {name} | {shown} |")
    return "\n".join([_FRAME, *lines, ""])


def _runs(entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One sentence for every machine and commit: what was measured there, when, and beside how much other work."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for name, entry in entries.items():
        groups.setdefault((entry["machine"], entry["commit"], entry["quick"]), []).append(name)
    lines = []
    for (machine, commit, quick), names in groups.items():
        measured = [entries[name] for name in names]
        loads = [entry["load"] for entry in measured]
        what = "**A quick run, with small sizes, whose figures say little:** " if quick else ""
        lines.append(
            f"{what}{', '.join(names)} at commit {commit}, {max(entry['date'] for entry in measured)}, load before "
            f"{min(loads):g} to {max(loads):g}; {machine}."
        )
    return lines


def main() -> int:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    write_atomic(PAGE, page(read_json(source)).encode())
    print(f"written to {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
