"""The page on other libraries names the versions that the tests use."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_versions_are_the_same_everywhere() -> None:
    pinned = read("constraints.txt").splitlines()
    version = re.search(r"torchattacks==\S+", read("docs/interop.md"))
    assert version is not None
    assert version[0] in pinned
    extra = re.search(r"^interop = \[(.*?)^\]$", read("pyproject.toml"), re.MULTILINE | re.DOTALL)
    assert extra is not None
    requirements = re.findall(r'"([^"]+==[^"]+)"', extra[1])
    assert [r.split("==")[0] for r in requirements] == [
        "adversarial-robustness-toolbox",
        "foolbox",
        "pyautoattack",
    ]
    assert set(requirements) <= set(pinned)


def test_make_installs_torchattacks_without_what_it_names() -> None:
    assert "$(PIP) --no-deps torchattacks timm\n" in read("Makefile")
