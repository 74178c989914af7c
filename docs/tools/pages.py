"""The code of the documentation: fenced blocks, what they print, and what the page says that they print.

``python docs/tools/pages.py PAGE...`` runs pages and writes what their Python printed into the block ``text`` that
follows, in a folder with ``runs/quickstart-1`` of `randens quickstart`. Lines "…" of such a block stand for any others.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from randens.cli.main import application, run

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
RUN = ("python", "bash")
_MARK = re.compile(r"<!-- not run: (\S.*?) -->")
_NUMBER = re.compile(r"[+\-−]?\d[\d.,]*(e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first line of code. reason: why it is not run. shown: the output below it."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None
    shown: str | None = None

    @property
    def place(self) -> str:
        """Page and line, as editors take them."""
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page in order, those of output at the blocks before them."""
    found: list[Block] = []
    reason: str | None = None
    text = page.read_text(encoding="utf-8")
    for part in re.finditer(r"^```(\w*)\n(.*?)^```$|^(\S[^\n]*)$", text, re.MULTILINE | re.DOTALL):
        if part[3] is not None:
            mark = _MARK.search(part[3])
            reason = mark[1] if mark else None
        elif (
            part[1] == "text"
            and found
            and found[-1].shown is None
            and not _between(text, found[-1], part.start())
        ):
            found[-1] = Block(**{**vars(found[-1]), "shown": part[2]})
        else:
            found.append(Block(page, text[: part.start()].count("\n") + 2, part[1], part[2], reason))
            reason = None
    return found


def _between(text: str, block: Block, end: int) -> str:
    """The prose between a block and what follows it."""
    lines = text[:end].splitlines()[block.line - 1 + block.code.count("\n") + 1 :]
    return "".join(lines).strip()


def commands(code: str) -> list[list[str]]:
    """The command lines of a shell block as words; continued lines joined, comments left out."""
    joined = re.sub(r"\\\n\s*", " ", code)
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def check_arguments(words: list[str]) -> None:
    """Have the command line's own parser read the words after `randens`, without doing what they ask for."""
    group = typer.main.get_command(application())
    if words[0].startswith("-"):
        assert words[0] in {name for p in group.params for name in p.opts} | {"--help", "--version"}, words
        return
    waiting = [group]
    while waiting:
        command = waiting.pop()
        waiting.extend(getattr(command, "commands", {}).values())
        if not hasattr(command, "commands"):
            command.callback = lambda **_: None
    group.main(list(words), prog_name="randens", standalone_mode=False)


def run_python(block: Block, names: dict[str, Any]) -> str:
    """Run a block of Python in `names`; what it prints. Lines of a traceback are those of the page."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + block.code, str(block.page), "exec"), names)  # noqa: S102
    return printed.getvalue()


def agrees(shown: str, printed: str) -> bool:
    """Whether the lines shown were printed in this order, whatever the numbers and the widths of columns."""
    lines = iter([_loose(line) for line in printed.splitlines()])
    return all(_loose(line) in lines for line in shown.splitlines() if line.strip() != "…")


def _loose(line: str) -> str:
    return re.sub(r"[\s─-]+", " ", _NUMBER.sub("#", line)).strip()


def written(page: Path) -> Iterator[tuple[str, str]]:
    """What a page shows and what it should show instead; a last line "…" keeps as many lines as there are above it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "bash" and block.reason is None:
            for words in commands(block.code):
                run(words[1:])
        elif block.language == "python" and block.reason is None:
            printed = run_python(block, names)
            if block.shown is not None:
                lines = [line.rstrip() for line in printed.splitlines()]
                if block.shown.strip().endswith("…"):
                    lines = [*lines[: block.shown.count("\n") - 1], "…"]
                yield block.shown, "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        content = path.read_text(encoding="utf-8")
        for old, new in written(path):
            content = content.replace(f"```text\n{old}```", f"```text\n{new}```", 1)
        path.write_text(content, encoding="utf-8")
