"""The committed page is what the generator makes of the committed results; made-up results show what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.harness import Goal, Row, Side, Timing, as_fast, left_out
from benchmarks.runner import BENCHMARKS
from tests.drawings import Drawing, difference

from benchmarks import page as pages
from randens.core.files import read_json, write_json


def _entry(rows: list[Row], **changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "status": "ok",
        "error": "",
        "started": "2030-01-01 00:00 UTC",
        "seconds": 90.0,
        "threads": 2,
        "load_before": 0.1,
        "load_after": 1.5,
        "others": 0.25,
        "warnings": ["too noisy to tell: others used 25% of the machine meanwhile"],
        "commit": "abc1234",
        "title": "a title",
        "rows": [row.to_json() for row in rows],
    }
    return entry | changes


@pytest.fixture
def document() -> dict[str, Any]:
    ours, theirs = Side("ours", Timing(1.0, 1.0, 3), 0.4), Side("textbook", Timing(8.0, 8.0, 3), 0.5)
    points = [1.0, 10.0, 100.0]
    growth = Row(
        "ARC-R: seconds against inputs",
        Side("1 to 100"),
        Side("a straight line"),
        1.0,
        "slope",
        facts={"axis": "inputs", "x": points, "seconds": points, "passes": points},
    )
    return {
        "format": "randens-bench-1",
        "complete": True,
        "quick": True,
        "machine": {
            "cpu": "Abacus 3000",
            "cores": 2,
            "memory_gb": 8.0,
            "system": "Linux x86_64",
            "python": "3.11.0",
            "packages": {"torch": "2.13.0", "foolbox": None},
        },
        "benchmarks": {
            "attacks": _entry(
                [
                    as_fast("ARC-R", ours, theirs, Goal(at_least=6)),
                    left_out("PGD", "Foolbox", "not installed"),
                ]
            ),
            "growth": _entry([growth], status="failed", error="OSError: no luck"),
        },
    }


def test_the_committed_page_is_made_from_the_committed_results() -> None:
    document = read_json(pages.RESULTS)
    assert pages.PAGE.read_text() == pages.page(document), "run `make bench-docs`"
    names = {benchmark.name for benchmark in BENCHMARKS}
    assert set(document["benchmarks"]) <= names
    # What the run did not have is named, not left out.
    for name in names - set(document["benchmarks"]):
        assert f"`{name}`" in pages.PAGE.read_text().splitlines()[-1]


def test_the_committed_plots_are_drawn_from_the_committed_results() -> None:
    drawn = dict(pages.plots(read_json(pages.RESULTS)))
    shown = set(re.findall(r"\(benchmarks/([a-z]+\.svg)\)", pages.PAGE.read_text()))
    assert shown == set(drawn) == {path.name for path in pages.FIGURES.iterdir()}
    for file, content in drawn.items():
        told = difference(Drawing(content), Drawing((pages.FIGURES / file).read_bytes()))
        assert not told, f"{file} differs in {told}: run `make bench-docs`"


def test_the_page_states_machine_goals_warnings_and_failures(document: dict[str, Any]) -> None:
    text = pages.page(document)
    assert "Abacus 3000, 2 cores, 8.0 GB, Linux x86_64; Python 3.11.0, torch 2.13.0." in text
    assert "Commit abc1234, 2030-01-01 00:00 UTC, 3 minutes, a **quick** run" in text
    assert "| attacks | 1.5 | 0.1 | 1.5 | 25% | ok |" in text
    goals = text.split("## Goals")[1].split("## Attacks")[0]
    assert "| ARC-R | textbook | 8.00× as fast (medians 8.00) | ≥ 6: met | 40.0% / 50.0% |" in goals
    assert "PGD" not in goals
    assert "not installed" in text
    assert "**Warning:** too noisy to tell" in text
    assert "**Failed:** OSError: no luck." in text


def test_plots_are_the_same_for_the_same_results(document: dict[str, Any]) -> None:
    first, second = dict(pages.plots(document)), dict(pages.plots(document))
    assert first == second
    assert set(first) == {"attacks.svg", "growth.svg"}
    assert all(content.startswith(b"<?xml") for content in first.values())


def test_the_command_writes_page_and_plots(document: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "results.json", document)
    places = ["--page", str(tmp_path / "page.md"), "--figures", str(tmp_path / "figures")]
    assert pages.main([str(tmp_path / "results.json"), *places]) == 0
    assert (tmp_path / "page.md").read_text() == pages.page(document)
    assert len(list((tmp_path / "figures").iterdir())) == 2
    assert pages.main([str(tmp_path / "missing.json"), *places]) == 2
