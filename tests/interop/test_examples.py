"""The examples run as they stand, and show what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from randens.deploy import Bundle

ROOT = Path(__file__).parents[2]


def run(name: str, *options: str) -> list[str]:
    """What the example prints, line by line."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONUTF8": "1"}
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *options],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def test_members_of_your_own_and_another_librarys_witnesses() -> None:
    pytest.importorskip("foolbox", reason="Foolbox cannot be imported; `make test` installs it")
    lines = run("bring_your_own.py")
    said = {line[:31].strip(): line[31:] for line in lines}
    natural = float(said["natural accuracy"])
    ours, theirs, both = (
        float(said[key])
        for key in ("under the saddle climber", "under Foolbox's PGD", "under the worst of both")
    )
    assert natural > 0.9
    assert both <= min(ours, theirs)
    assert both < natural - 0.1
    alone = [float(value) for value in said["each member alone"].split(",")]
    best = float(said["drawing at its best"].split()[0])
    assert best >= max(alone) - 1e-9  # the best draw is no worse than the best member
    assert best >= both - 1e-9
    assert "PGD on it is refused: " in lines[-1]
    assert "gives no gradients" in lines[-1]


def check_train_to_serve(folder: Path, lines: list[str]) -> None:
    said = {line[:16].strip(): line[17:] for line in lines}
    accuracies = re.fullmatch(r"(\S+) natural, (\S+) robust, 200 images", said["test accuracy"])
    assert accuracies is not None
    natural, robust = map(float, accuracies.groups())
    assert 0 <= robust <= natural <= 1
    page = (folder / "train-to-serve-1" / "report.html").read_text(encoding="utf-8")
    assert "</html>" in page
    bundle = Bundle.open(folder / "train-to-serve-1" / "bundle")
    assert f"checksum {bundle.checksum[:16]}" in said["bundle"]
    # The server was asked over the network and answered a hundred draws of an image that all members get right.
    agreed = re.fullmatch(r"image \d+, a (\d): 100 draws said \{'(\d)': 100\}", said["agreed on"])
    assert agreed is not None
    assert agreed[1] == agreed[2]
    shares = re.findall(r"'\d': (\d+)", said["disputed"])
    assert not shares or sum(map(int, shares)) == 100


def test_from_training_to_a_served_model_in_short(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="exporting needs the deploy extra; `make test` installs it")
    check_train_to_serve(tmp_path, run("train_to_serve.py", "--epochs", "1", "--output", str(tmp_path)))


@pytest.mark.slow
def test_from_training_to_a_served_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="exporting needs the deploy extra; `make test` installs it")
    check_train_to_serve(tmp_path, run("train_to_serve.py", "--output", str(tmp_path)))
