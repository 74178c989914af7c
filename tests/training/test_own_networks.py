"""Networks that are not ours: by a function's name or from timm; data that stay in their files."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small_runs import small

from randens import load, models
from randens.core.errors import InputError, RandensError
from randens.models import outside
from randens.training import train

ROOT = Path(__file__).resolve().parents[2]
OWN = {"name": "tests.training.own_networks:net", "width": None, "depth": None, "options": {"hidden": 12}}


def test_barre_on_a_network_named_by_its_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rec = train(small(method="barre", members=2, model=OWN), tmp_path / "run")
    again = load(tmp_path / "run" / "ensemble")
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(again.logits(x), rec.eval().logits(x))
    # In another process, which only has the file, nobody has named the function.
    monkeypatch.setattr(outside, "_TRUSTED", set())
    with pytest.raises(RandensError, match="whose code would be run"):
        load(tmp_path / "run" / "ensemble")
    models.trust("tests.training.own_networks:net")
    assert len(load(tmp_path / "run" / "ensemble")) == 2


def test_barre_on_the_smallest_resnet_of_timm(tmp_path: Path) -> None:
    """In a process of its own: timm imports torchvision, for which a stand-in will do where it is missing."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    standing_in = [] if importlib.util.find_spec("torchvision") else [str(ROOT / "tests/interop/stand_in")]
    paths = os.pathsep.join([str(ROOT / "src"), *standing_in])
    command = [sys.executable, "-m", "randens", "train", "digits-mlp-barre", "--out", str(tmp_path / "run")]
    for setting in (
        *("model.name=timm:test_resnet", "model.width=none", "model.depth=none", "members=2", "epochs=1"),
        *("later_epochs=1", "adversary.steps=1", "validation.size=10", "sampling.method=uniform", "ema=0"),
    ):
        command += ["--set", setting]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "barre, 2 members" in done.stdout
    size = sum(path.stat().st_size for path in (tmp_path / "run" / "ensemble").glob("*.safetensors"))
    assert size > 2 * 4 * 100_000  # two members with more than 100,000 weights each


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nowhere:net", {}, "cannot be imported"),
        ("tests.training.own_networks:nothing", {}, "cannot be imported"),
        ("tests.training.own_networks:net", {"depth": 3}, "cannot be called"),
        ("pathlib:Path", {}, "returns a PosixPath; it must return a torch.nn.Module"),
        ("torch:zeros", {"size": [2]}, "cannot be called"),
        ("torch.nn:Flatten", {}, r"it must return logits \[2, 10\]"),
        ("torch.nn:Linear", {"in_features": 3, "out_features": 10}, "does not take inputs of shape"),
        ("timm:resnet18", {"checkpoint_path": "a.pth"}, "would load weights"),
        ("timm:hf-hub:someone/net", {}, "name of a network of timm"),
    ],
)
def test_what_is_no_network_is_one_sentence(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        models.create(name, classes=10, input_shape=(1, 8, 8), **options)
    assert "\n" not in str(caught.value)
