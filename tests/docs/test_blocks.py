"""Every code block of README and docs runs, or says why not; what pages show is what is printed; commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.tools.pages import PAGES, ROOT, RUN, agrees, blocks, check_arguments, commands, run_python
from typer.exceptions import TyperException

from randens.cli.main import COMMANDS, run
from randens.core.errors import RandensError
from randens.training import load_recipe

NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_code_of_a_page_runs_in_order_and_prints_what_is_shown(page: Path, clone: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.reason is not None or block.language not in RUN:
            continue
        if block.language == "python":
            printed = run_python(block, names)
            assert block.shown is None or agrees(block.shown, printed), f"{block.place}:\n{printed}"
        else:
            for words in commands(block.code):
                if words[0] == "python":
                    subprocess.run([sys.executable, *words[1:]], cwd=clone, check=True, capture_output=True)
                else:
                    assert words[0] == "randens", f"{block.place}: mark the block as not run"
                    assert run(words[1:]) == 0, f"{block.place}: {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_what_is_not_run_compiles_and_its_commands_exist(page: Path, tmp_path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        assert block.language in (*RUN, "toml", "text"), f"{block.place}: the language is {block.language!r}"
        if block.language == "python":
            compile(block.code, block.place, "exec")
        elif block.language == "toml":
            (tmp_path / "recipe.toml").write_text(block.code, encoding="utf-8")
            load_recipe(tmp_path / "recipe.toml", [])
        elif block.language == "bash" and block.reason is not None:
            for words in commands(block.code):
                if "randens" in words[:-1] and words[0] in ("randens", "torchrun", "srun"):
                    check_arguments(words[words.index("randens") + 1 :])
                if words[0] == "make":
                    assert {w for w in words[1:] if "=" not in w} <= targets, block.place
    for span in re.findall(
        r"`(randens [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    ):
        words = span.split()
        if len(words) > 2 or words[1] not in COMMANDS:
            check_arguments(words[1:])


def test_a_wrong_option_is_noticed() -> None:
    check_arguments(["evaluate", "runs/x", "--attack", "pgd"])
    for wrong in (["evaluate", "runs/x", "--atack", "pgd"], ["data", "ftch"], ["evalute"], ["--instal"]):
        with pytest.raises((RandensError, TyperException, AssertionError)):
            check_arguments(wrong)


def test_blocks_are_found_with_lines_reasons_and_outputs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n```python\nprint(1)\n```\n\n```text\n2\n```\n"
        "<!-- not run: long -->\n```bash\nmake test\n```\nb\n```text\n```\n"
    )
    found = [(b.line, b.language, b.code, b.reason, b.shown) for b in blocks(page)]
    assert found == [
        (3, "python", "print(1)\n", None, "2\n"),
        (11, "bash", "make test\n", "long", None),
        (15, "text", "", None, None),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 1.5  b\n", "x\na 27 b", True),
        ("a\n…\nc\n", "a\nb\nc", True),
        ("c\na\n", "a\nc", False),
        ("a 1\n", "b 1", False),
    ],
)
def test_outputs_are_compared_but_for_numbers_and_widths(shown: str, printed: str, same: bool) -> None:
    assert agrees(shown, printed) is same
