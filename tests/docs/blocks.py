"""The code of the documentation: every fenced block and every command in the text, with its place."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import typer

from randens.cli.main import application

__all__ = ["LANGUAGES", "PAGES", "ROOT", "Block", "blocks", "check_arguments", "commands", "inline_commands"]

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
RUN = ("python", "bash", "sh")
LANGUAGES = (*RUN, "toml", "json", "text")
_MARK = re.compile(r"<!-- not run: (\S.*?) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first line of code. reason: why it is not run, from the marker above it."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def place(self) -> str:
        """Page and line, as editors take them."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    reason: str | None = None
    opened: tuple[int, str, str] | None = None
    code: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"(\s*)```+\s*(\S*)", line)
        if opened is None and fence:
            opened, code = (number + 1, fence[2], fence[1]), []
        elif opened is not None and fence and not fence[2]:
            first, language, indent = opened
            text = "\n".join(part.removeprefix(indent) for part in code) + "\n"
            found.append(Block(page, first, language, text, reason))
            opened = reason = None
        elif opened is not None:
            code.append(line)
        elif mark := _MARK.search(line):
            reason = mark[1]
        elif line.strip():
            reason = None
    assert opened is None, f"{page}: the block at line {opened} is not closed"
    return found


def commands(code: str) -> list[list[str]]:
    """The command lines of a shell block as words; continued lines joined, comments and prompts left out."""
    joined = re.sub(r"\\\n\s*", " ", code)
    lines = (re.sub(r"^\$ ", "", line) for line in joined.splitlines())
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def inline_commands(page: Path) -> list[list[str]]:
    """`randens …` in the text of a page, outside of blocks."""
    text = re.sub(r"^\s*```.*?^\s*```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [shlex.split(span) for span in re.findall(r"`(randens [^`]+)`", text)]


def check_arguments(words: list[str]) -> None:
    """Have the command line's own parser read the words after `randens`, without doing what they ask for."""
    if not words:
        return  # `randens` alone is answered by its help.
    group = typer.main.get_command(application())
    if words[0].startswith("-"):
        # Options of `randens` itself act while they are parsed, and one of them changes the shell's start-up file.
        known = {name for parameter in group.params for name in parameter.opts} | {"--help", "--version"}
        assert words[0] in known, words
        return
    waiting = [group]
    while waiting:
        command = waiting.pop()
        waiting.extend(getattr(command, "commands", {}).values())
        if not hasattr(command, "commands"):
            command.callback = _nothing
    group.main(list(words), prog_name="randens", standalone_mode=False)


def _nothing(**_: object) -> None:
    """Replaces a command."""
