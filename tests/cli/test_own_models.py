"""The commands on networks of one's own, random ones among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.attacks.cases import convnet, digits
from tests.cli.commands import Shell

import randens
from randens.evaluation import Evaluation

X, Y = (t[:20] for t in digits("test"))
CODE = """
import torch
from torch import nn

def two():
    return [torch.jit.load("net.pt")] * 2

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-1, 1, 640).reshape(10, 64))

    def forward(self, x):
        return self.linear((x + 0.2 * torch.randn_like(x)).flatten(1))

def noisy():
    from randens import RandomizedModel
    return RandomizedModel(Noisy(), 4)

def seeded(seed):
    if seed == 5:
        raise ValueError("out of checkpoints")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def several():
    from randens import RandomizedEnsemble, RandomizedModel
    return RandomizedEnsemble([RandomizedModel(Noisy(), 3), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))])
"""
RANDOM = ("--data", "digits", "--limit", "8", "--eps", "0.1", "--attack", "adaptive-pgd-margin:steps=2")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.jit.save(torch.jit.trace(convnet(0).eval(), X[:2]), tmp_path / "net.pt")  # type: ignore[no-untyped-call]
    np.savez(tmp_path / "data.npz", x=X.numpy(), y=Y.numpy())
    (tmp_path / "own_models.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_evaluated_like_a_run(shell: Shell, files: Path) -> None:
    words = ("--data", "data.npz", "--attack", "pgd", "--eps", "8/255", "--device", "cpu")
    found = shell.json("evaluate", "torchscript:net.pt", *words, "--output", "out.json")
    right = (convnet(0).eval()(X).argmax(dim=1) == Y).double().mean()
    assert found["summary"]["natural"]["value"] == pytest.approx(float(right))
    assert Evaluation.load(files / "out.json").to_json() == found
    assert shell.json("evaluate", "own_models:two", *words)["summary"]["members"] == 2
    assert shell("sample", "own_models:two", *words, "--split", "validation")[0] == 0
    assert shell("advise", "own_models:two", *words)[0] == 0
    code, out, _ = shell("evaluate", "torchscript:net.pt", *words, "--eps", "0:0.1:3")
    assert code == 0
    assert "0.05" in out


def test_what_does_not_fit_is_one_line(shell: Shell, files: Path) -> None:
    del files
    own = ("evaluate", "torchscript:net.pt", "--data", "data.npz")
    assert "give --data" in shell.refused("evaluate", "torchscript:net.pt")
    assert "device is 'gpu'" in shell.refused(*own, "--device", "gpu")
    assert "did you mean 8/255" in shell.refused(*own, "--eps", "8")
    assert "radius too" in shell.refused(*own, "--norm", "l2")
    assert "unknown data set" in shell.refused("evaluate", "torchscript:net.pt", "--data", "nothing")
    assert "no file, folder or name of the zoo" in shell.refused("evaluate", "x", "--data", "digits")
    assert "no run folder" in shell.refused("sample", "torchscript:net.pt", "--data", "data.npz", "--apply")


def test_the_curve_of_a_saved_ensemble_is_in_its_own_norm(shell: Shell, files: Path) -> None:
    network = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    randens.RandomizedEnsemble([network], threat=randens.Threat("l2", 0.5)).save(files / "saved")
    words = ("--eps", "0:2:2", "--attack", "fgsm", "--limit", "5")
    found = shell.json("evaluate", "saved", "--data", "digits", *words)
    assert (found["about"]["threat"]["norm"], [point["eps"] for point in found["points"]]) == (
        "l2",
        [0.0, 2.0],
    )


@pytest.mark.usefixtures("files")
def test_a_random_model_is_evaluated_and_has_a_page(shell: Shell) -> None:
    code, out, err = shell("evaluate", "own_models:noisy", *RANDOM, "--attempts", "1,2", "--output", "run")
    assert code == 0, err
    assert "robust after 2 attempts" in out
    code, out, err = shell("report", "run")
    assert code == 0, err
    assert "How random is it" in Path("run/report.html").read_text(encoding="utf-8")
    found = shell.json("evaluate", "own_models:several", *RANDOM)
    assert (found["draws"], found["about"]["n"], found["about"]["probs"]) == (3, 8, [0.5, 0.5])


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("own_models:Noisy", *RANDOM), "RandomizedModel"),
        (("own_models:seeded", *RANDOM), "the factory fails at seed 5"),
        (("own_models:noisy",), "give --data"),
        (("own_models:noisy", *RANDOM, "--attempts", "inf"), "attempts is inf"),
        (("own_models:noisy", *RANDOM, "--eps", "0:0.1:3"), "answers at random"),
        (("own_models:two", "--data", "data.npz", "--attempts", "1.5"), "attempts is 1.5"),
        (("own_models:two", "--data", "data.npz", "--attempts", "2", "--eps", "0:1:3"), "one --eps"),
    ],
)
def test_mistakes_are_one_sentence(shell: Shell, options: tuple[str, ...], message: str) -> None:
    assert message in shell.refused("evaluate", *options)
