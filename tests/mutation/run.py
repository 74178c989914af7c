"""Apply hand-made mutants one by one to a copy of the package, and see whether a test notices.

    python -m tests.mutation.run              # all of them; exit code 1 below 90 % or if a reason is missing
    python -m tests.mutation.run --only ARC   # those whose description holds the word
    python -m tests.mutation.run --page tests/mutation/results.md

A mutant is killed if one of its tests fails. What survives must say why in mutants.toml. The page lists every mutant
with the test that failed; `--keep FILE` writes verdicts down as they come, and a run that was stopped goes on there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Loaded once for all children; randens itself must not be, for every child has another one.
import hypothesis  # noqa: F401
import numpy as np  # noqa: F401
import pydantic  # noqa: F401
import pytest
import rich.table  # noqa: F401
import sklearn.datasets  # noqa: F401
import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WANTED = 0.9
_COPIED = ("src", "tests", "recipes", "benchmarks", "paper", "zoo", "docs", "pyproject.toml")
_SECONDS = 1200


def mutants() -> list[dict[str, Any]]:
    """The list, as written down."""
    content = tomllib.loads((ROOT / "tests" / "mutation" / "mutants.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = content["mutant"]
    return found


def mutate(folder: Path, mutant: Mapping[str, Any]) -> str:
    """Change the one place in `folder`; returns the original text. The place must be there exactly once."""
    path: Path = folder / str(mutant["file"])
    text: str = path.read_text(encoding="utf-8")
    if text.count(mutant["old"]) != 1:
        raise SystemExit(
            f"{mutant['what']}: {mutant['file']} has its text {text.count(mutant['old'])} times, not once"
        )
    path.write_text(text.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    return text


class _FirstFailure:
    """A pytest plugin that remembers which test failed first."""

    test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid.split("[")[0]


def killer(folder: Path, mutant: Mapping[str, Any]) -> str:
    """The first test that fails with the mutant in place, "" if none does."""
    original = mutate(folder, mutant)
    try:
        return first_failure(folder, mutant["what"], mutant["tests"])
    finally:
        (folder / mutant["file"]).write_text(original, encoding="utf-8")


def first_failure(folder: Path, what: str, tests: Sequence[str]) -> str:
    """The first of the tests that fails, "" if none does; in a child that inherits the packages loaded here."""
    context = multiprocessing.get_context("fork")
    told, tell = context.Pipe(duplex=False)
    child = context.Process(target=_tested, args=(folder, tests, tell))
    child.start()
    tell.close()
    child.join(_SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
        return "a test that never ended"
    if child.exitcode not in (0, 1):
        raise SystemExit(f"{what}: pytest could not run its tests (exit code {child.exitcode})")
    return str(told.recv()) if child.exitcode == 1 else ""


def _tested(folder: Path, tests: Sequence[str], tell: Connection) -> None:
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder)]
    first = _FirstFailure()
    with Path(os.devnull).open("w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=[first])
    tell.send(first.test)
    os._exit(int(code))


def page(verdicts: Sequence[tuple[Mapping[str, Any], str]], minutes: float) -> str:
    """Every mutant with the test that failed, or the reason why none does, as Markdown."""
    dead = sum(bool(test) for _, test in verdicts)
    lines = [
        "# Mutants",
        "",
        f"Made by `python -m tests.mutation.run --page tests/mutation/results.md`: {dead} of {len(verdicts)} killed "
        f"({dead / max(1, len(verdicts)):.0%}), in {minutes:.0f} minutes of one core.",
        "",
        "| file | mutant | noticed by |",
        "|---|---|---|",
    ]
    for mutant, test in verdicts:
        noticed = f"`{test}`" if test else f"survives. {mutant.get('survives', 'NO REASON GIVEN')}"
        lines.append(f"| `{mutant['file'].removeprefix('src/randens/')}` | {mutant['what']} | {noticed} |")
    return "\n".join([*lines, ""])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _name(folder: Path, mutant: Mapping[str, Any]) -> str:
    """Of a verdict that is kept: it holds for this mutant and these tests in this file as it is, and not after."""
    content = json.dumps([mutant["old"], mutant["new"], mutant["tests"]])
    code = (folder / mutant["file"]).read_text(encoding="utf-8")
    return hashlib.sha256(f"{content}\n{code}".encode()).hexdigest()


def main() -> int:
    """Run the list; print every verdict and the share that was killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a word of the description")
    parser.add_argument("--part", default="1/1", help="which of how many equal parts of the list, e.g. 2/3")
    parser.add_argument("--keep", type=Path, help="a file of verdicts, to go on after an interruption")
    parser.add_argument("--page", type=Path, help="also write the verdicts to this file, as Markdown")
    given = parser.parse_args()
    number, parts = (int(v) for v in given.part.split("/"))
    torch.set_num_threads(1)
    chosen = [m for m in mutants() if given.only.lower() in m["what"].lower()][number - 1 :: parts]
    kept: dict[str, str] = {}
    if given.keep is not None and given.keep.exists():
        kept = json.loads(given.keep.read_text(encoding="utf-8"))
    verdicts: list[tuple[dict[str, Any], str]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        # A test that fails anyway would kill everything.
        left = [m for m in chosen if _name(folder, m) not in kept]
        tests = sorted({test for mutant in left for test in mutant["tests"]})
        if tests and (failed := first_failure(folder, "no mutant", tests)):
            raise SystemExit(f"{failed} fails without any mutant; mend that first")
        for mutant in chosen:
            key = _name(folder, mutant)
            if key not in kept:
                kept[key] = killer(folder, mutant)
                if given.keep is not None:
                    given.keep.write_text(json.dumps(kept, indent=1), encoding="utf-8")
            verdicts.append((mutant, kept[key]))
            _say(f"{'killed  ' if kept[key] else 'SURVIVES'}  {mutant['what']}  {kept[key]}")
    survivors = [mutant for mutant, test in verdicts if not test]
    share = 1 - len(survivors) / max(1, len(chosen))
    spent = os.times()
    minutes = (spent.user + spent.system + spent.children_user + spent.children_system) / 60
    _say(
        f"{len(chosen) - len(survivors)} of {len(chosen)} killed ({share:.0%}); at least {WANTED:.0%} are wanted. "
        f"{minutes:.1f} minutes of processor time."
    )
    for mutant in survivors:
        _say(f"survives: {mutant['what']}: {mutant.get('survives', 'NO REASON GIVEN')}")
    if given.page is not None:
        given.page.write_text(page(verdicts, minutes), encoding="utf-8")
    unexplained = [m for m in survivors if "survives" not in m]
    return 0 if share >= WANTED and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main())
