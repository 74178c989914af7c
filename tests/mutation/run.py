"""Apply hand-made mutants one by one to a copy of the package, and see whether a test notices.

    python -m tests.mutation.run              # all of them; exit code 1 below 90 % or if a reason is missing
    python -m tests.mutation.run --only ARC   # those whose description holds the word

A mutant is killed if one of its tests fails. What survives must say why in mutants.toml.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    path = folder / mutant["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(mutant["old"]) != 1:
        raise SystemExit(
            f"{mutant['what']}: {mutant['file']} has its text {text.count(mutant['old'])} times, not once"
        )
    path.write_text(text.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    return text


def killed(folder: Path, mutant: Mapping[str, Any]) -> bool:
    """Whether a test fails with the mutant in place."""
    original = mutate(folder, mutant)
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant["tests"]]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=_SECONDS, check=False
        )
    finally:
        (folder / mutant["file"]).write_text(original, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutant['what']}: pytest could not run\n{done.stdout.decode()[-2000:]}")
    return done.returncode == 1


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
