"""Numbers can be checked by others: a script without randens, Foolbox's PGD, AutoAttack."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import THREAT, Scaled, digits, ensemble, member
from torch import Tensor, nn

from randens import Threat, attacks
from randens.data import Data
from randens.evaluation import Evaluation

SCRIPT = Path(__file__).parents[2] / "examples" / "rescore.py"


def rescored(folder: Path, found: Path) -> dict[str, Any]:
    """What the script says, run on its own, where randens cannot be imported."""
    answer = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), str(folder), str(found)],
        capture_output=True,
        text=True,
        check=True,
        env={"OMP_NUM_THREADS": "1"},
    )
    said: dict[str, Any] = json.loads(answer.stdout)
    return said


def rescored_here(folder: Path, found: Path) -> dict[str, Any]:
    """What the script says in this process, where torch is imported already."""
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(io.StringIO()) as printed:
        patched.setattr(sys, "argv", [str(SCRIPT), str(folder), str(found)])
        runpy.run_path(str(SCRIPT))
    said: dict[str, Any] = json.loads(printed.getvalue())
    return said


def save_worst_inputs(path: Path, result: Evaluation, data: Data) -> None:
    tensors = {"x_adv": result.x_adv, "errors": result.errors, "probs": result.probs, "y": data.y.numpy()}
    safetensors.numpy.save_file(tensors, path)


def test_the_script_is_twenty_lines_of_torch_and_safetensors() -> None:
    tree = ast.parse(SCRIPT.read_text())
    names = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.split(".")[0] for name in names} == {"json", "sys", "pathlib", "torch", "safetensors"}
    code = [
        s
        for s in ast.walk(tree)
        if isinstance(s, ast.stmt) and not isinstance(s, ast.Import | ast.ImportFrom)
    ]
    assert len(code) <= 20


@pytest.mark.parametrize("names", [("mlp", "convnet"), ("linear", "mlp", "mlp")])
def test_saved_inputs_score_the_same_elsewhere(tmp_path: Path, names: tuple[str, ...]) -> None:
    rec = ensemble(*names)
    data = digits("test").subset(slice(0, 120))
    result = evaluate(rec, data, attacks.create("suite", THREAT, preset="fast"))
    rec.save(tmp_path / "ensemble")
    save_worst_inputs(tmp_path / "worst.safetensors", result, data)
    said = rescored(tmp_path / "ensemble", tmp_path / "worst.safetensors")
    assert said["verdicts_agree"] is True
    assert said["inputs"] == 120
    assert said["robust_accuracy"] == pytest.approx(result.robust, abs=1e-12)
    stored = safetensors.torch.load_file(tmp_path / "worst.safetensors")
    assert bool(THREAT.contains(stored["x_adv"], data.x).all())
    assert result.robust < result.natural - 0.1


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    rec, data = ensemble("mlp", "linear"), digits("test").subset(slice(0, 60))
    result = evaluate(rec, data, attacks.create("saddle", THREAT))
    rec.save(tmp_path / "ensemble")
    save_worst_inputs(tmp_path / "worst.safetensors", result, data)
    stored = safetensors.torch.load_file(tmp_path / "worst.safetensors")
    stored["x_adv"] = data.x.contiguous()
    safetensors.torch.save_file(stored, tmp_path / "altered.safetensors")
    said = rescored_here(tmp_path / "ensemble", tmp_path / "altered.safetensors")
    assert said["verdicts_agree"] is False
    assert said["robust_accuracy"] == pytest.approx(result.natural)


# Attacks of other libraries on single members. Theirs use the sign of a float32 margin, ours want it clear of
# rounding: a point may count there and not here, so one input is allowed.
_ALLOWED = 1
_FEW, _MANY = 40, 100


@functools.cache
def _thorough(name: str, norm: str, eps: float, inputs: int) -> Tensor:
    """Bool: which inputs the thorough preset fools."""
    x, y = digits("test")[:inputs]
    found = attacks.create("suite", Threat(norm, eps), preset="thorough")(member(name), x, y)
    return found.errors[:, 0]


CASES = [("mlp", "linf", 0.1), ("convnet", "linf", 0.1), ("mlp", "l2", 0.5)]


@pytest.mark.parametrize(("name", "norm", "eps"), CASES)
def test_foolbox_finds_no_more_than_the_thorough_preset(name: str, norm: str, eps: float) -> None:
    foolbox = pytest.importorskip("foolbox", reason="Foolbox is not installed; pip install foolbox==3.3.4")
    x, y = digits("test")[:_FEW]
    model = foolbox.PyTorchModel(member(name), bounds=(0, 1))
    attack = foolbox.attacks.LinfPGD(steps=50) if norm == "linf" else foolbox.attacks.L2PGD(steps=50)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, clipped, _ = attack(model, x, y, epsilons=eps)
    # By our own rules: the point must be legal, and the member must answer another class.
    legal = Threat(norm, eps * (1 + 1e-5)).contains(clipped, x)
    theirs = legal & (member(name)(clipped).argmax(dim=1) != y)
    assert float(theirs.double().mean()) > 0.1
    assert int((theirs & ~_thorough(name, norm, eps, _FEW)).sum()) <= _ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm", "eps"), CASES)
def test_autoattack_finds_no_more_than_the_thorough_preset(name: str, norm: str, eps: float) -> None:
    package = pytest.importorskip(
        "pyautoattack", reason="AutoAttack is not installed; pip install pyautoattack==0.2"
    )
    x, y = digits("test")[:_MANY]
    attack = package.AutoAttack(
        member(name),
        norm={"linf": "Linf", "l2": "L2"}[norm],
        eps=eps,
        version="standard",
        device="cpu",
        seed=0,
    )
    attack.square.n_queries = 500
    x_adv, *_ = attack.run_standard_evaluation(x, y, batch_size=_MANY)
    legal = Threat(norm, eps * (1 + 1e-5)).contains(x_adv, x)
    theirs = legal & (member(name)(x_adv).argmax(dim=1) != y)
    assert float(theirs.double().mean()) > 0.1
    assert int((theirs & ~_thorough(name, norm, eps, _MANY)).sum()) <= _ALLOWED


def test_the_thorough_preset_does_not_depend_on_the_scale_of_logits() -> None:
    huge: nn.Module = Scaled(member("mlp"), 1e4)
    x, y = digits("test")[:_FEW]
    found = attacks.create("suite", THREAT, preset="thorough")(huge, x, y).errors[:, 0]
    assert abs(int(found.sum()) - int(_thorough("mlp", "linf", 0.1, _FEW).sum())) <= _ALLOWED
