"""The short examples of evaluating one's own model: each is short, runs, and prints a robust accuracy."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEEDS = ("torch", "pandas", "sklearn", "transformers", "timm")
EXAMPLES = dict(zip(("torch_nets", "numpy", "sklearn", "transformers", "timm"), NEEDS, strict=True))
# One process for all, as importing torch takes longer than most of them. timm is last: its models are its own and
# torchvision is only imported, so that a stand-in will do where it is missing.
_RUN = """
import runpy, sys

for path in sys.argv[2:]:
    print("#", path)
    sys.path += [sys.argv[1]] if "timm" in path else []
    runpy.run_path(path, run_name="__main__")
"""


def test_examples_are_short_and_run() -> None:
    names = [name for name, package in EXAMPLES.items() if importlib.util.find_spec(package)]
    paths = [str(ROOT / "examples" / f"own_{name}.py") for name in names]
    assert all(len(Path(path).read_text(encoding="utf-8").splitlines()) <= 16 for path in paths)
    stand_in = "" if importlib.util.find_spec("torchvision") else str(Path(__file__).parent / "stand_in")
    found = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": found, "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _RUN, stand_in, *paths]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    printed = re.split(r"^# .*$", done.stdout, flags=re.MULTILINE)[1:]
    assert len(printed) == len(names) >= 3
    assert all(re.search(r"(\d+\.\d) %|0\.\d+", said) for said in printed), printed
