"""Networks that are not ours, by a function's name."""

from __future__ import annotations

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
        ("timm:resnet18", {"checkpoint_path": "a.pth"}, "loads weights"),
        ("timm:hf-hub:someone/net", {}, "name of a network of timm"),
    ],
)
def test_what_is_no_network_is_one_sentence(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        models.create(name, classes=10, input_shape=(1, 8, 8), **options)
    assert "\n" not in str(caught.value)
