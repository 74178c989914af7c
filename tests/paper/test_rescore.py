"""Networks in the layouts of other authors' programs, with made-up weights, load as members."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paper.rescore import main, members
from torch import Tensor

from randens import models
from randens.models.networks import ResNet

RENAMED = {
    "conv.": "conv1.",
    "bn.": "bn1.",
    "blocks.": "layer.",
    "shortcut.": "downsample.",
    "linear.": "fc.",
}


def renamed(body: torch.nn.Module, prefix: str) -> dict[str, Tensor]:
    """The same weights under other names."""
    named = {}
    for key, value in body.state_dict().items():
        for ours, theirs in RENAMED.items():
            key = key.replace(ours, theirs, 1) if key.startswith(ours) or f".{ours}" in key else key
        named[prefix + key] = value
    return named


@pytest.mark.parametrize(("name", "classes"), [("resnet20", 10), ("mobilenetv1", 100)])
@pytest.mark.parametrize("mrboost", [False, True])
def test_the_releases_of_barre_and_mrboost(tmp_path: Path, name: str, classes: int, mrboost: bool) -> None:
    nets = [models.create(name, classes=classes, seed=seed).eval() for seed in (0, 1)]
    for number, net in zip((2, 10), nets, strict=True):
        file = tmp_path / (f"iter{number}/epoch99.pth" if mrboost else f"m{number // 10}/model_best.pth")
        file.parent.mkdir()
        own = (
            {"lr_scheduler": {"milestones": Counter([50])}}
            if mrboost
            else {"alpha": np.array([0.7504, 0.2496])}
        )
        torch.save(
            {"net": renamed(net.body, "" if mrboost else "module."), "acc": np.float64(80), **own}, file
        )
    found, alpha = members(tmp_path)
    assert alpha is None if mrboost else alpha == pytest.approx([0.75, 0.25])
    x = torch.rand(2, 3, 32, 32)
    assert all(torch.equal(one(x), two(x)) for one, two in zip(found, nets, strict=True))
    mean = members(tmp_path, normalized=True)[0][0].mean
    assert mean is not None
    assert float(mean.flatten()[0]) == pytest.approx({10: 0.4914, 100: 0.5071}[classes], abs=1e-4)


def test_the_release_of_dverge(tmp_path: Path) -> None:
    """One file; ResNet-20 with projections; each member has its normalization."""
    body = ResNet((3, 32, 32), 10, 16, (3, 3, 3), projections=True).eval()
    scale = {"normalizer.mean": torch.full((3,), 0.5), "normalizer.std": torch.full((3,), 0.25)}
    torch.save({"model_0": {**renamed(body, "model."), **scale}}, tmp_path / "epoch_200.pth")
    (found,), _ = members(tmp_path / "epoch_200.pth")
    x = torch.rand(2, 3, 32, 32)
    assert torch.allclose(found(x), body((x - 0.5) / 0.25))


def test_what_is_no_release_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "model_best.pth" in capsys.readouterr().err
    torch.save({"model_0": {"weight": torch.zeros(10, 3)}}, tmp_path / "other.pth")
    assert main([str(tmp_path / "other.pth")]) == 2
    assert "no network" in capsys.readouterr().err

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"model_0": Evil()}, tmp_path / "evil.pth")
    assert main([str(tmp_path / "evil.pth")]) == 2
    assert not (tmp_path / "ran").exists()
