"""The architecture page names files and functions that exist."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

PACKAGE = ROOT / "src" / "randens"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_step_of_the_walk_is_there() -> None:
    steps = re.findall(r"^\| \d+\. .*? \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    assert len(steps) > 15
    for files, functions in steps:
        sources = [(PACKAGE / name).read_text(encoding="utf-8") for name in re.findall(r"`([^`]+)`", files)]
        for name in re.findall(r"`([^`]+)`", functions):
            assert any(re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE) for text in sources), name


def test_every_room_is_listed() -> None:
    listed = PAGE + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in PACKAGE.iterdir():
        if path.name.startswith(("_", ".")) or path.name == "py.typed":
            continue
        name = f"`{path.name}/`" if path.is_dir() else f"`{path.name}`"
        assert listed.count(name) >= 1, name
    for named in set(re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE)):
        assert (PACKAGE / named).is_file() or (ROOT / named).is_file(), named
