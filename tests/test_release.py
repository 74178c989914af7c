"""What a release says about itself in several places is the same in all of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

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


def test_the_files_that_the_gates_name_are_there() -> None:
    for path in ("Makefile", ".ci/pythons", ".ci/run", "tests/conftest.py"):
        named = set(re.findall(r"\btests/[\w/]+(?:\.py)?", (ROOT / path).read_text(encoding="utf-8")))
        assert not {name for name in named if not (ROOT / name).exists()}, path
