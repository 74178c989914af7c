"""The examples run unchanged and print what they promise."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from randens import data
from randens.deploy import Bundle

ROOT = Path(__file__).parents[2]
Run = Callable[..., list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example in this process, which has imported torch already; what it prints, line by line."""

    def run(name: str, *options: str) -> list[str]:
        path = str(ROOT / "examples" / name)
        monkeypatch.setattr(sys, "argv", [path, *options])
        with torch.random.fork_rng(devices=[]):
            runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_members_of_your_own_and_another_librarys_witnesses(run: Run) -> None:
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
    assert "no gradients of it" in lines[-1]


def check_train_to_serve(folder: Path, lines: list[str], images: int) -> None:
    said = {line[:16].strip(): line[17:] for line in lines}
    accuracies = re.fullmatch(r"(\S+) natural, (\S+) robust, (\d+) images", said["test accuracy"])
    assert accuracies is not None
    natural, robust, n = map(float, accuracies.groups())
    assert 0 <= robust <= natural <= 1
    assert n == images
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


def test_from_training_to_a_served_model_in_short(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript", reason="exporting needs the deploy extra; `make test` installs it")
    whole = data.load

    def few(name: str, split: str) -> Any:
        return whole(name, split) if split == "train" else whole(name, split).subset(slice(0, 40))

    monkeypatch.setattr(data, "load", few)
    check_train_to_serve(
        tmp_path, run("train_to_serve.py", "--epochs", "1", "--output", str(tmp_path)), images=40
    )


@pytest.mark.slow
def test_from_training_to_a_served_model(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="exporting needs the deploy extra; `make test` installs it")
    check_train_to_serve(tmp_path, run("train_to_serve.py", "--output", str(tmp_path)), images=200)
