"""bfloat16 is used only where a child process has shown that it works and is faster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from randens import models
from randens.models import precision
from randens.models.precision import Probe
from randens.training.placement import arithmetic

CPU = torch.device("cpu")


def test_the_probe_survives_whatever_happens_and_remembers(tmp_path: Path) -> None:
    found = precision.probe(folder=tmp_path)
    assert found.float32 is not None
    assert found.float32 > 0
    assert (found.bfloat16 is None) == bool(found.reason)
    (path,) = tmp_path.glob("*.json")
    stored = json.loads(path.read_text())
    assert Probe(**stored["probe"]) == found
    assert stored["key"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("output", "code", "expected"),
    [
        ("float32 0.02\nbfloat16 0.005\n", 0, Probe(0.02, 0.005)),
        ("float32 0.02\n", -4, Probe(0.02, None, "bfloat16 ended the process by signal 4")),
        ("float32 0.02\n", 1, Probe(0.02, None, "bfloat16 failed")),
    ],
)
def test_what_the_child_says_is_understood(
    monkeypatch: pytest.MonkeyPatch, output: str, code: int, expected: Probe
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, output, "")

    monkeypatch.setattr(subprocess, "run", run)
    assert precision._measure(1, 5.0) == expected


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 5.0, output=b"float32 0.02\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert precision._measure(1, 5.0) == Probe(0.02, None, "bfloat16 gave no result within 5 s")


def test_it_pays_only_if_it_is_faster() -> None:
    assert Probe(0.02, 0.005).pays
    assert Probe(0.02, 0.005).ratio == pytest.approx(4.0)
    assert not Probe(0.02, 0.02).pays
    assert not Probe(0.02, None, "no").pays


def test_auto_asks_only_for_convolutions_and_float32_is_always_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    convnet = models.create("convnet", classes=2, input_shape=(1, 8, 8), seed=0)
    mlp = models.create("mlp", classes=2, input_shape=(8,), seed=0)
    monkeypatch.setattr("randens.training.placement.bfloat16_pays", lambda _: True)
    for name, model, low in (
        ("auto", convnet, True),
        ("auto", mlp, False),
        ("float32", convnet, False),
        ("bfloat16", mlp, True),
    ):
        with arithmetic(name, CPU, model)():
            assert torch.is_autocast_enabled("cpu") == low, name
    monkeypatch.setattr("randens.training.placement.bfloat16_pays", lambda _: False)
    with arithmetic("auto", CPU, convnet)():
        assert not torch.is_autocast_enabled("cpu")
