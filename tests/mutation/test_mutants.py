"""The list of mutants fits the tree: every place is there once, every test exists, and the page lists them all."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the mutants' runner loads it once for all of them")

from tests.mutation.run import ROOT, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant["what"])
def test_a_mutant_has_one_place_and_a_test(mutant: dict[str, Any]) -> None:
    assert (ROOT / mutant["file"]).read_text(encoding="utf-8").count(mutant["old"]) == 1
    assert mutant["old"] != mutant["new"]
    for test in mutant["tests"]:
        path, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8")


def test_the_page_lists_every_mutant() -> None:
    page = (ROOT / "tests" / "mutation" / "results.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[1] for line in page.splitlines() if line.startswith("| `")]
    assert rows == [mutant["what"] for mutant in mutants()]
