"""The commands on networks of one's own, and curves."""

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


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.jit.save(torch.jit.trace(convnet(0).eval(), X[:2]), tmp_path / "net.pt")  # type: ignore[no-untyped-call]
    np.savez(tmp_path / "data.npz", x=X.numpy(), y=Y.numpy())
    (tmp_path / "mine.py").write_text("import torch\ndef two():\n    return [torch.jit.load('net.pt')] * 2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_evaluated_like_a_run(shell: Shell, files: Path) -> None:
    words = ("--data", "data.npz", "--attack", "pgd", "--eps", "8/255", "--device", "cpu")
    found = shell.json("evaluate", "--model", "torchscript:net.pt", *words, "--output", "out.json")
    right = (convnet(0).eval()(X).argmax(dim=1) == Y).double().mean()
    assert found["summary"]["natural"]["value"] == pytest.approx(float(right))
    assert Evaluation.load(files / "out.json").to_json() == found
    code, out, _ = shell("evaluate", "--model", "torchscript:net.pt", *words)
    assert code == 0
    assert "net.pt on data.npz, linf" in out


def test_code_runs_only_where_that_is_said(shell: Shell, files: Path) -> None:
    del files
    words = ("--model", "mine:two", "--data", "digits", "--limit", "10", "--attack", "fgsm")
    assert "runs the code of mine; say that you trust it with --run-code" in shell.refused("evaluate", *words)
    assert shell.json("evaluate", *words, "--run-code")["summary"]["members"] == 2


def test_what_does_not_fit_is_one_line(shell: Shell, files: Path) -> None:
    assert "either a run folder RUN or networks" in shell.refused("evaluate")
    assert "either a run folder RUN or networks" in shell.refused(
        "evaluate", files, "--model", "torchscript:net.pt"
    )
    assert "--model needs --data" in shell.refused("evaluate", "--model", "torchscript:net.pt")
    own = ("evaluate", "--model", "torchscript:net.pt", "--data", "data.npz")
    assert "device is 'gpu'" in shell.refused(*own, "--device", "gpu")
    assert "--mean and --std go together" in shell.refused(*own, "--mean", "0.5")
    assert "did you mean 8/255" in shell.refused(*own, "--eps", "8")
    assert "--norm is 'l2'; give its radius too" in shell.refused(*own, "--norm", "l2")
    assert "unknown data set" in shell.refused(
        "evaluate", "--model", "torchscript:net.pt", "--data", "nothing"
    )
    assert "no file, folder or name of the zoo" in shell.refused(
        "evaluate", "--model", "x", "--data", "digits"
    )


def test_curves_of_a_run_and_of_a_file(shell: Shell, files: Path, run_folder: Path) -> None:
    words = ("--eps", "0:0.1:3", "--attack", "pgd", "--limit", "20", "--no-deterministic")
    found = shell.json("evaluate", run_folder, *words, "--output", "curve.svg")
    robust = [point["ensemble"]["value"] for point in found["points"]]
    assert robust == sorted(robust, reverse=True)
    assert (run_folder / "curve.json").is_file()
    assert "<svg" in (files / "curve.svg").read_text(encoding="utf-8")
    code, out, _ = shell("evaluate", "--model", "torchscript:net.pt", "--data", "data.npz", *words)
    assert code == 0
    assert "member passes per input" in out
    assert "--eps is '0:1'" in shell.refused("evaluate", run_folder, "--eps", "0:1")


def test_the_curve_of_a_saved_ensemble_is_in_its_own_norm(shell: Shell, files: Path) -> None:
    network = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    randens.RandomizedEnsemble([network], threat=randens.Threat("l2", 0.5)).save(files / "saved")
    words = ("--eps", "0:2:2", "--attack", "fgsm", "--limit", "5")
    found = shell.json("evaluate", "--model", "saved", "--data", "digits", *words)
    assert (found["norm"], [point["eps"] for point in found["points"]]) == ("l2", [0.0, 2.0])
