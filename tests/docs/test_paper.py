"""The table from the paper to the code leaves nothing out and points at what exists."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| paper |")]
SPANS = sorted(set(re.findall(r"`([^`]+)`", "\n".join(ROWS))))
# How many of each the paper has, counted in its source.
NUMBERED = {
    "Definition": 1,
    "Proposition": 1,
    "Theorem": 4,
    "Corollary": 1,
    "Lemma": 6,
    "Algorithm": 2,
    "Equation": 96,
    "Table": 6,
    "Figure": 4,
}


@pytest.mark.parametrize("kind", NUMBERED)
def test_everything_with_a_number_is_in_the_table(kind: str) -> None:
    found: set[int] = set()
    for row in ROWS:
        if named := re.match(rf"\| {kind}s? (\d+)(?:–(\d+))? \|", row):
            found |= set(range(int(named[1]), int(named[2] or named[1]) + 1))
    assert found == set(range(1, NUMBERED[kind] + 1))


@pytest.mark.parametrize("name", [s for s in SPANS if s.startswith(("randens.", "paper."))])
def test_every_name_can_be_imported(name: str) -> None:
    assert resolve(name) is not None


@pytest.mark.parametrize("target", [s for s in SPANS if "/" in s])
def test_every_file_and_test_exists(target: str) -> None:
    path, _, test = target.partition("::")
    assert (ROOT / path).exists()
    if test:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("owner", "field"),
    re.findall(
        r"`((?:randens|paper)\.[\w.]+)` \(`(\w+)`",
        "\n".join(r for r in ROWS if "reproduce.reproduce" not in r),
    ),
)
def test_fields_in_brackets_exist(owner: str, field: str) -> None:
    found = resolve(owner)
    result = (
        found if isinstance(found, type) else resolve(f"{owner.rpartition('.')[0]}.{found.__name__.title()}")
    )
    assert field in getattr(result, "__dataclass_fields__", {}) or hasattr(result, field)


def resolve(name: str) -> Any:
    """The object of a dotted name: modules as far as they go, attributes from there."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if part in getattr(found, "__annotations__", {}):
            found = found.__annotations__[part]
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            found = importlib.import_module(".".join(parts[:i]))
    return found
