"""Every block of the page on other libraries runs alone and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop.test_foreign_attacks import PACKAGES, package

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
_NEEDS = {
    "foolbox": "foolbox",
    "torchattacks": "torchattacks",
    "art": "from art.",
    "autoattack": "autoattack",
}


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_block_runs_alone_and_prints_what_it_says(number: int) -> None:
    block = BLOCKS[number]
    for name in PACKAGES:
        if _NEEDS[name] in block:
            package(name)
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONUTF8": "1"}
    finished = subprocess.run(
        [sys.executable, "-c", block],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    promised = re.findall(r"^print\(.*?\)\s+# (\S.*)$", block, re.MULTILINE)
    assert len(promised) == block.count("print(")
    assert finished.stdout.splitlines() == promised


def test_the_page_has_its_blocks_and_names_the_tested_versions() -> None:
    assert len(BLOCKS) == 5
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    version = re.search(r"torchattacks==(\S+)", PAGE)
    assert version is not None
    assert f"torchattacks=={version[1]}\n" in pinned
    extra = re.search(
        r"^interop = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert extra is not None
    for requirement in re.findall(r'"([^"]+)"', extra[1]):
        assert f"{requirement}\n" in pinned
