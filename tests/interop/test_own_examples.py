"""The five short examples of evaluating one's own model: each is short, runs, and prints a number."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).parent / "stand_in"
NEEDS = {
    "torch_nets": "torch",
    "transformers": "transformers",
    "sklearn": "sklearn",
    "numpy": "pandas",
    "timm": "timm",
}
# One process for all examples, as importing torch takes longer than most of them: what each printed, or its traceback.
# timm is last: its models are its own and torchvision is only imported, so that a stand-in will do where it is missing.
_RUN = """
import contextlib, importlib.util, io, json, runpy, sys, traceback

stand_in, *paths = sys.argv[1:]
for path in paths:
    if path.endswith("own_timm.py") and importlib.util.find_spec("torchvision") is None:
        sys.path.append(stand_in)
    said, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(path, run_name="__main__")
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([said.getvalue(), error]))
"""


@pytest.fixture(scope="module")
def printed() -> dict[str, tuple[str, str]]:
    """What every example printed whose packages are there, and the traceback of one that failed."""
    names = [name for name, package in NEEDS.items() if importlib.util.find_spec(package) is not None]
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PYTHONUTF8": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(STAND_IN), *(str(_example(name)) for name in names)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


def _example(name: str) -> Path:
    return ROOT / "examples" / f"own_{name}.py"


@pytest.mark.parametrize("name", NEEDS)
def test_examples_are_short_and_run(name: str, printed: dict[str, tuple[str, str]]) -> None:
    if name not in printed:
        pytest.skip(f"{NEEDS[name]} is not installed; see the extra interop")
    assert len(_example(name).read_text(encoding="utf-8").splitlines()) <= 16
    said, error = printed[name]
    assert not error
    robust = re.findall(r"(\d+\.\d) %|0\.\d+", said)
    assert robust, said
    if name == "timm":
        assert "(0.5, 0.5, 0.5)" in said
    if name == "numpy":
        assert "channels last" in said
        assert "ndarray (50, 1, 8, 8)" in said
