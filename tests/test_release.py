"""What a release says about itself in several places is the same in all of them, and the project stays small."""

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
        r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert newest is not None
    assert newest[1] == randens.__version__
    assert f"\ndate-released: {newest[2]}\n" in cited
    assert f"\nversion: {randens.__version__}\n" in cited


def test_tools_check_for_the_oldest_python_that_is_supported() -> None:
    project = _project()
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    stated = [c.rpartition(" ")[2] for c in project["project"]["classifiers"] if ":: Python :: 3." in c]
    assert stated[0] == oldest
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    for matrix in re.findall(r"python: \[(.*)\]", workflow):
        assert re.findall(r'"([\d.]+)"', matrix) == stated


def test_no_requirement_is_listed_twice() -> None:
    project = _project()["project"]
    for wanted in (project["dependencies"], *project["optional-dependencies"].values()):
        # One package may be named once for each Python.
        names = [(re.split(r"[<>=;\[ ]", r)[0], r.partition(";")[2]) for r in wanted if "randens[" not in r]
        assert len(names) == len(set(names)), names
    pinned = re.findall(r"^[\w.-]+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(pinned) == len(set(pinned))


def test_the_commands_of_readme_are_those_that_the_gate_runs() -> None:
    readme, gate, make = ((ROOT / name).read_text() for name in ("README.md", ".ci/run", "Makefile"))
    assert "make quickstart" in readme
    assert "make test" in readme
    assert "make test" in gate
    assert {"quickstart", "test"} <= set(re.findall(r"^([\w-]+):", make, re.MULTILINE))
    for path in ("Makefile", ".ci/pythons", ".ci/run"):
        named = set(re.findall(r"\btests/[\w/]+(?:\.py)?", (ROOT / path).read_text(encoding="utf-8")))
        assert not {name for name in named if not (ROOT / name).exists()}, path


def _lines(pattern: str) -> dict[str, int]:
    found = {path.relative_to(ROOT).as_posix(): path for path in ROOT.glob(pattern)}
    return {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in found.items()}


def test_the_project_stays_small() -> None:
    source, tests = _lines("src/**/*.py"), _lines("tests/**/*.py")
    assert len(source) <= 115
    assert max((source | tests).values()) <= 450
    totals = [sum(_lines(f"{folder}/**/*.py").values()) for folder in ("src", "tests", "paper", "benchmarks")]
    assert [
        total for total, most in zip(totals, (20_000, 15_000, 2_000, 1_500), strict=True) if total > most
    ] == []
    assert len(list(ROOT.glob("docs/**/*.md"))) <= 20
