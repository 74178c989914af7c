"""The five short examples of evaluating what one has: each fits on a screen, runs, and says a number."""

from __future__ import annotations

import importlib.util
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
    "timm": "timm",
    "transformers": "transformers",
    "sklearn": "sklearn",
    "numpy": "pandas",
}


@pytest.mark.parametrize("name", NEEDS)
def test_examples_are_short_and_run(name: str) -> None:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed; see the extra interop")
    path = ROOT / "examples" / f"own_{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 15
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    if name == "timm" and importlib.util.find_spec("torchvision") is None:
        paths.append(str(STAND_IN))  # timm's models are its own; torchvision is only imported
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "PYTHONUTF8": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    robust = re.findall(r"(\d+\.\d) %|0\.\d+", done.stdout)
    assert robust, done.stdout
    if name == "timm":
        assert "(0.5, 0.5, 0.5)" in done.stdout
    if name == "numpy":
        assert "channels last" in done.stdout
        assert "ndarray (50, 1, 8, 8) (50, 1)" in done.stdout
