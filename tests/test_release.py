"""What a release says about itself in several places is the same in all of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.conftest import THREADS, pytest_terminal_summary

import randens

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_the_newest_of_the_changelog_and_the_one_to_cite() -> None:
    newest = re.search(
        r"^## (\S+)(?: \((\S+)\))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert newest is not None
    version, date = newest.groups()
    # Between releases the newest entry is that of the next one, without a date.
    if version != "Unreleased":
        assert version == randens.__version__
        assert date is not None
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
        assert f"\ndate-released: {date}\n" in cited
    assert f"\nversion: {randens.__version__}\n" in cited


def test_tools_check_for_the_oldest_python_that_is_supported() -> None:
    project = _project()
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    stated = [c.rpartition(" ")[2] for c in project["project"]["classifiers"] if ":: Python :: 3." in c]
    assert stated[0] == oldest
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    matrices = re.findall(r"python: \[(.*)\]", workflow)
    assert matrices
    for matrix in matrices:
        assert re.findall(r'"([\d.]+)"', matrix) == stated
    assert "run: .ci/run" in workflow


def test_no_requirement_is_listed_twice() -> None:
    project = _project()["project"]
    for wanted in (project["dependencies"], *project["optional-dependencies"].values()):
        # One package may be named once for each Python.
        names = [
            (re.split(r"[<>=;\[ ]", line)[0], line.partition(";")[2])
            for line in wanted
            if "randens[" not in line
        ]
        assert len(names) == len(set(names)), names
    pinned = re.findall(r"^[\w.-]+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(pinned) == len(set(pinned))
    silenced = [module for part in _project()["tool"]["mypy"]["overrides"] for module in part["module"]]
    assert len(silenced) == len(set(silenced))


@pytest.mark.parametrize(("reason", "told"), [("Skipped: no browser", True), ("Skipped: no reason", False)])
def test_a_line_says_that_tests_in_a_browser_were_left_out(reason: str, told: bool) -> None:
    lines: list[str] = []
    reporter = SimpleNamespace(
        stats={"skipped": [SimpleNamespace(longrepr=("a.py", 1, reason))] * 3},
        write_line=lines.append,
    )
    steps = pytest_terminal_summary(cast(pytest.TerminalReporter, reporter))
    assert list(steps) == [None]
    assert bool(lines) == told
    if told:
        assert len(lines) == 1
        assert lines[0].startswith("3 tests in a browser were skipped; to run them: apt-get install chromium")


def test_the_files_that_the_gates_name_are_there() -> None:
    for path in ("Makefile", ".ci/pythons", ".ci/run", "tests/conftest.py"):
        named = set(re.findall(r"\btests/[\w/]+(?:\.py)?", (ROOT / path).read_text(encoding="utf-8")))
        assert not {name for name in named if not (ROOT / name).exists()}, path


@pytest.mark.parametrize("run", ["first", "second"])
def test_every_test_begins_with_the_same_number_of_threads(run: str) -> None:
    """The first run leaves another number behind, as a command with --threads does; the second does not notice."""
    torch = pytest.importorskip("torch")
    assert torch.get_num_threads() == THREADS, run
    torch.set_num_threads(3 - THREADS)
