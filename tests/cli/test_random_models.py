"""`randens evaluate --draws`: a model with random answers from a factory, its JSON, its page, its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands import Shell

CODE = """
import torch
from torch import nn

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-1, 1, 640).reshape(10, 64))

    def forward(self, x):
        return self.linear((x + 0.2 * torch.randn_like(x)).flatten(1))

def seeded(seed):
    if seed == 5:
        raise ValueError("out of checkpoints")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def several():
    from randens import RandomizedEnsemble, RandomizedModel
    return RandomizedEnsemble([RandomizedModel(Noisy()), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))])
"""
FAST = (
    "--data",
    "digits",
    "--limit",
    "8",
    "--eps",
    "0.1",
    "--attack",
    "adaptive-pgd-margin",
    "--set",
    "steps=2",
)
RANDOM = (*FAST, "--tolerance", "0.5", "--run-code")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_noise.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def test_a_random_model_is_evaluated_and_has_a_page(shell: Shell) -> None:
    code, out, err = shell(
        "evaluate", "--model", "own_noise:Noisy", *RANDOM, "--draws", "4", "--output", "run"
    )
    assert code == 0, err
    assert "It did not know the draws that answer" in out
    assert "One draw taken as the model's answer would have printed" in out
    code, out, err = shell("report", "run")
    assert code == 0, err
    page = Path("run/report.html").read_text(encoding="utf-8")
    for words in ("How random is it", "Spread between draws", "reach between draws", "attacked draws K"):
        assert words in page


def test_json_of_an_ensemble_with_a_random_member(shell: Shell) -> None:
    found = shell.json("evaluate", "--model", "own_noise:several", *RANDOM, "--draws", "3")
    assert found["format"] == "randens-stochastic-1"
    assert found["probs"] == [0.5, 0.5]
    assert found["draws"] == 3
    assert found["n"] == 8
    assert found["robust"]["low"] <= found["robust"]["value"] <= found["robust"]["high"]


def test_a_random_model_that_wants_normalised_inputs(shell: Shell) -> None:
    plain = ("evaluate", "--model", "own_noise:Noisy", *RANDOM, "--draws", "3")
    assert shell.json(*plain, "--mean", "0", "--std", "1")["natural"] == shell.json(*plain)["natural"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "own_noise:Noisy", *RANDOM, "--draws", "1"), "draws is 1"),
        (
            ("--model", "own_noise:seeded", *RANDOM, "--draws", "8"),
            "draw 5 of 8: the factory failed at seed 5",
        ),
        (("--model", "own_noise:Noisy", *FAST, "--draws", "4"), "--run-code"),
        (("--model", "own_noise:Noisy", "--run-code", "--draws", "4"), "--model needs --data"),
        (("runs/none", "--draws", "4"), "--draws needs --model"),
        (
            ("--model", "own_noise:Noisy", *RANDOM, "--draws", "4", "--mean", "0.5"),
            "--mean and --std go together",
        ),
    ],
)
def test_mistakes_are_one_sentence(shell: Shell, options: tuple[str, ...], said: str) -> None:
    code, _, err = shell("evaluate", *options)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
