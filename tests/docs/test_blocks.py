"""Every code block of README and docs runs unchanged, or says why not; every command's arguments exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import (
    LANGUAGES,
    PAGES,
    ROOT,
    RUN,
    Block,
    blocks,
    check_arguments,
    commands,
    inline_commands,
)
from typer.exceptions import TyperException

from randens.cli.main import COMMANDS, run
from randens.core.errors import RandensError
from randens.training import load_recipe

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
PROGRAMS = ("randens", "python")
LAUNCHERS = ("torchrun", "srun")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_code_of_a_page_runs_in_order(
    page: Path, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.reason is not None or block.language not in RUN:
            continue
        capsys.readouterr()
        if block.language == "python":
            _python(block, names, capsys)
        else:
            for words in commands(block.code):
                _command(block, words, clone)


def _python(block: Block, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    # The line numbers of a traceback are those of the page.
    exec(compile("\n" * (block.line - 1) + block.code, str(block.page), "exec"), names)  # noqa: S102
    promised = re.findall(r"^print\(.*?\)\s+# (\S.*)$", block.code, re.MULTILINE)
    printed = capsys.readouterr().out.splitlines()
    if promised and len(promised) == block.code.count("print("):
        assert printed == promised, block.place


def _command(block: Block, words: list[str], clone: Path) -> None:
    program, *rest = words
    assert program in PROGRAMS, f"{block.place}: mark the block as not run, or leave out {program}"
    if program == "randens":
        assert run(rest) == 0, f"{block.place}: {' '.join(words)}"
    else:
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, *rest],
            cwd=clone,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block.place}: {done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_what_is_not_run_is_marked_and_its_commands_exist(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: the language is {block.language!r}"
        if block.language == "python":
            compile(block.code, block.place, "exec")
        elif block.language in ("bash", "sh"):
            for words in commands(block.code):
                if block.reason is not None and words[0] in ("randens", *LAUNCHERS):
                    check_arguments(words[words.index("randens") + 1 :])
                if words[0] == "make":
                    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
                    assert set(words[1:]) <= set(targets), block.place
        elif block.language == "toml":
            (tmp_path / "recipe.toml").write_text(block.code, encoding="utf-8")
            load_recipe(tmp_path / "recipe.toml", [])
    for words in inline_commands(page):
        if len(words) == 2 and words[1] in COMMANDS:
            continue
        check_arguments(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_code_hides_in_indented_blocks(page: Path) -> None:
    text = re.sub(r"^\s*```.*?^\s*```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    hidden = re.findall(r"\n\n( {4}(?:randens|python|pip|make|import|from|\$) .*)", text)
    assert not hidden, page


def test_there_is_something_to_run() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    ran = [block for block in found if block.language in RUN and block.reason is None]
    assert len(ran) > len(found) / 2


def test_a_wrong_option_is_noticed() -> None:
    check_arguments(["evaluate", "runs/x", "--attack", "pgd"])
    check_arguments(["data", "fetch", "mnist", "--from", "here"])
    for wrong in (
        ["evaluate", "runs/x", "--atack", "pgd"],
        ["certify"],
        ["data", "ftch"],
        ["evalute"],
        ["--instal-completion"],
    ):
        with pytest.raises((RandensError, TyperException, AssertionError)):
            check_arguments(wrong)


def test_checking_arguments_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    check_arguments(["--install-completion"])
    check_arguments(["report", "x", "--output", str(tmp_path / "page.html")])
    assert list(tmp_path.iterdir()) == []


def test_blocks_are_found_with_their_lines_and_reasons(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n```python\nx = 1\n```\n<!-- not run: too long -->\n\n```sh\nmake test\n```\ntext\n```text\n```\n"
    )
    found = blocks(page)
    assert [(b.line, b.language, b.code, b.reason) for b in found] == [
        (3, "python", "x = 1\n", None),
        (8, "sh", "make test\n", "too long"),
        (12, "text", "\n", None),
    ]
    assert commands("$ randens data list  # what\nrandens serve x \\\n    --port 1\n") == [
        ["randens", "data", "list"],
        ["randens", "serve", "x", "--port", "1"],
    ]
