"""Apply hand-made mutants one by one to a copy of the package, and see whether a test notices.

    python -m tests.mutation.run              # all of them; exit code 1 below 90 % or if a reason is missing
    python -m tests.mutation.run --only ARC   # those whose description holds the word

A mutant is killed if one of its tests fails. What survives must say why in mutants.toml.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
_COPIED = ("src", "tests", "recipes", "benchmarks", "zoo", "docs", "pyproject.toml")
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


def killed(folder: Path, mutant: Mapping[str, Any]) -> bool:
    """Whether a test fails with the mutant in place, in a child process that inherits the packages loaded here."""
    original = mutate(folder, mutant)
    child = multiprocessing.get_context("fork").Process(target=_tested, args=(folder, mutant["tests"]))
    try:
        child.start()
        child.join(_SECONDS)
        if child.is_alive():
            child.kill()
            child.join()
            return True  # a test that never ends is noticed, too
    finally:
        (folder / mutant["file"]).write_text(original, encoding="utf-8")
    if child.exitcode not in (0, 1):
        raise SystemExit(f"{mutant['what']}: pytest could not run its tests (exit code {child.exitcode})")
    return child.exitcode == 1


def _tested(folder: Path, tests: Sequence[str]) -> None:
    os.chdir(folder)
    sys.path[:0] = [str(folder / "src"), str(folder)]
    with Path(os.devnull).open("w", encoding="utf-8") as nothing, contextlib.redirect_stdout(nothing):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
    os._exit(int(code))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the list; print every verdict and the share that was killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a word of the description")
    parser.add_argument("--part", default="1/1", help="which of how many equal parts of the list, e.g. 2/3")
    given = parser.parse_args()
    number, parts = (int(v) for v in given.part.split("/"))
    torch.set_num_threads(1)
    chosen = [m for m in mutants() if given.only.lower() in m["what"].lower()][number - 1 :: parts]
    survivors = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        for mutant in chosen:
            dead = killed(folder, mutant)
            _say(f"{'killed  ' if dead else 'SURVIVES'}  {mutant['what']}")
            if not dead:
                survivors.append(mutant)
    share = 1 - len(survivors) / max(1, len(chosen))
    _say(
        f"{len(chosen) - len(survivors)} of {len(chosen)} killed ({share:.0%}); at least {WANTED:.0%} are wanted."
    )
    for mutant in survivors:
        _say(f"survives: {mutant['what']}: {mutant.get('survives', 'NO REASON GIVEN')}")
    unexplained = [m for m in survivors if "survives" not in m]
    return 0 if share >= WANTED and not unexplained else 1


if __name__ == "__main__":
    sys.exit(main())
