"""Numbers can be checked by others: a script without randens, Foolbox's PGD, AutoAttack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import safetensors.torch
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import THREAT, digits, ensemble

from randens import attacks
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


def save_worst_inputs(path: Path, result: Evaluation, data: Data) -> None:
    tensors = {"x_adv": result.x_adv, "errors": result.errors, "probs": result.probs, "y": data.y.numpy()}
    safetensors.numpy.save_file(tensors, path)


def test_saved_inputs_score_the_same_elsewhere(tmp_path: Path) -> None:
    rec = ensemble("mlp", "convnet")
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
    said = rescored(tmp_path / "ensemble", tmp_path / "altered.safetensors")
    assert said["verdicts_agree"] is False
    assert said["robust_accuracy"] == pytest.approx(result.natural)
