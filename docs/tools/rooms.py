"""Lines and files per room, and how much is repeated: python docs/tools/rooms.py [REVISION ...].

A revision is anything that git knows; without one, the files of the working tree are counted.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PACKAGE = "src/randens"
_RUN = 6  # so many equal lines in a row count as repeated


def sources(revision: str | None = None) -> dict[PurePosixPath, str]:
    """Every module of the package by its path below the package."""
    if revision is None:
        home = ROOT / PACKAGE
        return {
            PurePosixPath(path.relative_to(home).as_posix()): path.read_text(encoding="utf-8")
            for path in sorted(home.rglob("*.py"))
        }
    listed = _git("ls-tree", "-r", "--name-only", revision, PACKAGE).splitlines()
    return {
        PurePosixPath(path).relative_to(PACKAGE): _git("show", f"{revision}:{path}")
        for path in listed
        if path.endswith(".py")
    }


def lines(modules: Mapping[PurePosixPath, str]) -> dict[str, tuple[int, int]]:
    """(files, lines) of each room; modules outside of a room are counted under their own names."""
    files: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for path, text in modules.items():
        room = f"{path.parts[0]}/" if len(path.parts) > 1 else path.name
        files[room] += 1
        counted[room] += len(text.splitlines())
    return {room: (files[room], counted[room]) for room in sorted(counted)}


def code(text: str) -> int:
    """How many lines are neither blank nor a comment nor part of a docstring."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in _without_docstrings(text))


def repeated(texts: Iterable[str]) -> int:
    """How many runs of six lines of code occur more than once, apart from blank lines, brackets and imports."""
    seen: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        kept = [line.strip() for line in _without_docstrings(text)]
        kept = [line for line in kept if len(line) > 3 and not line.startswith(("import ", "from "))]
        seen.update(tuple(kept[i : i + _RUN]) for i in range(len(kept) - _RUN + 1))
    return sum(count - 1 for count in seen.values() if count > 1)


def _without_docstrings(text: str) -> list[str]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            last = node.end_lineno or node.lineno
            lines[node.lineno - 1 : last] = [""] * (last - node.lineno + 1)
    return lines


def table(revisions: Iterable[str | None]) -> str:
    """One column per revision: lines and files of each room, their sums, lines of code, repeated runs, shared names."""
    names = list(revisions)
    trees = [sources(name) for name in names]
    counts = [lines(tree) for tree in trees]
    rooms = sorted(set().union(*counts))
    rows = [["room", *(name or "now" for name in names)]]
    rows += [[f"`{room}`", *(_cell(count.get(room)) for count in counts)] for room in rooms]
    total = [(sum(f for f, _ in c.values()), sum(n for _, n in c.values())) for c in counts]
    rows.append(["all", *(_cell(one) for one in total)])
    rows.append(["of these code", *(f"{sum(map(code, tree.values())):,}" for tree in trees)])
    rows.append(["repeated runs of six lines of code", *(str(repeated(tree.values())) for tree in trees)])
    rows.append(["file names that occur twice", *(str(_shared_names(tree)) for tree in trees)])
    rows.insert(1, ["---", *["---:" for _ in names]])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _shared_names(tree: Mapping[PurePosixPath, str]) -> int:
    found = Counter(path.name for path in tree if not path.name.startswith("__"))
    return sum(count > 1 for count in found.values())


def _cell(count: tuple[int, int] | None) -> str:
    return "" if count is None else f"{count[1]:,} in {count[0]}"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout


if __name__ == "__main__":
    sys.stdout.write(table(sys.argv[1:] or [None]) + "\n")
