"""Walk 2: networks and images of one's own, on the command line; every mistake on the way gets one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.commands import Shell

from randens import data as datasets
from randens.evaluation import Evaluation

NETWORKS = """
import torch

def network(seed):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.load("means.pt", weights_only=True) + 0.05 * torch.randn(10, 64))
        net[1].bias.copy_(-0.5 * net[1].weight.square().sum(dim=1))
    return net

def three():
    return [network(seed) for seed in range(3)]
"""


@pytest.fixture
def files(desk: Path) -> Path:
    """walked_nets.py with three classifiers by class means, and images.npz with 40 test images."""
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    means = torch.stack([train.x[train.y == c].flatten(1).mean(dim=0) for c in range(10)])
    torch.save(means, desk / "means.pt")
    np.savez(desk / "images.npz", x=test.x[:40].numpy(), y=test.y[:40].numpy())
    (desk / "walked_nets.py").write_text(NETWORKS, encoding="utf-8")
    return desk


def test_from_files_to_a_table_and_a_curve(shell: Shell, files: Path) -> None:
    own = ("walked_nets:three", "--data", "images.npz")
    generator = torch.get_rng_state()
    # The first tries are wrong; each answer says what to do.
    assert "--data" in shell.refused("evaluate", own[0])
    assert "did you mean 8/255" in shell.refused("evaluate", *own, "--eps", "8")
    assert "pgd" in shell.refused("evaluate", *own, "--attack", "pdg")
    code, out, err = shell("evaluate", *own, "--eps", "0.1", "--attack", "pgd", "--output", "mine.json")
    assert code == 0, err
    result = Evaluation.load(files / "mine.json")
    assert result.members == 3
    assert result.n == 40
    # The screen shows the numbers of the file.
    assert f"{100 * float(result.natural):.1f}" in out
    assert f"{100 * float(result.robust):.1f}" in out
    assert "member 0" in out
    # Better than chance, and worse under attack: these are real classifiers and a real attack.
    assert float(result.natural) > 0.5
    assert float(result.robust) < float(result.natural)
    code, out, err = shell("evaluate", *own, "--eps", "0:0.1:3", "--attack", "pgd", "--output", "curve.svg")
    assert code == 0, err
    assert "0.05" in out
    assert "<svg" in (files / "curve.svg").read_text(encoding="utf-8")
    torch.set_rng_state(generator)  # the walker's own file has seeded torch
