"""ONNX files that answer as torch does; everything that advice recommends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.deploy.conftest import Exported
from torch import Tensor, nn

from randens import DeterministicEnsemble, data
from randens.cli.main import run
from randens.core.errors import FileError, InputError, ModelError
from randens.core.runs import Run
from randens.deploy import Bundle, Predictor, export


def test_every_member_answers_as_torch_does(exported: Exported) -> None:
    test = data.load("digits", "test")
    with torch.no_grad():
        expected = exported.rec.logits(test.x).numpy()
    found = Predictor(exported.bundle).logits(test.x.numpy())
    assert np.abs(found - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())
    assert (found.argmax(axis=2) == expected.argmax(axis=2)).all()
    # Trained members, so agreement is not agreement on one constant class.
    assert (found.argmax(axis=2) == test.y.numpy()).mean() > 0.5
    assert all(p.requires_grad for p in exported.rec.parameters())


def test_the_manifest_says_what_was_exported(exported: Exported) -> None:
    bundle = Bundle.open(exported.bundle.path)
    assert bundle.probs == (0.7, 0.3)
    assert (bundle.bounds, bundle.input_shape) == ((0.0, 1.0), (1, 8, 8))
    parity = bundle.parity
    assert (parity["data"], parity["split"], parity["inputs"]) == ("digits", "validation", 180)
    assert parity["labels_changed"] == 0
    assert 0 < parity["max_difference"] < 1e-4
    model = onnx.load(bundle.path / bundle.files[1].name)
    onnx.checker.check_model(model, full_check=True)
    # Standard operators only: any runtime can read the file.
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}


def networks(count: int = 3) -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)).eval() for _ in range(count)
    ]


PAIR = (torch.rand(16, 2, 4, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 4)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"probs": [0.5, 0.5, 0.0]}, [(0,), (1,), (2,)]),
        ({"average": 2}, [(0, 1), (0, 2), (1, 2)]),
        ({"member": 1}, [(1,)]),
    ],
)
def test_sampled_average_or_one_member(
    tmp_path: Path, options: dict[str, Any], parts: list[tuple[int]]
) -> None:
    nets = networks()
    alone = np.stack([net(PAIR[0]).detach().numpy() for net in nets])
    predictor = Predictor(export(nets, PAIR, tmp_path / "b", **options))
    expected = np.stack([alone[list(part)].mean(axis=0) for part in parts])
    np.testing.assert_allclose(predictor.logits(PAIR[0].numpy()), expected, atol=1e-5)
    assert len(predictor.bundle.files) == len({i for part in parts for i in part})
    probs = options.get("probs", [1 / len(parts)] * len(parts))
    assert predictor.bundle.probs == pytest.approx(probs)


def test_a_weighted_average_and_one_network(tmp_path: Path) -> None:
    mixed = DeterministicEnsemble(networks(2), [0.75, 0.25]).eval()
    for number, model in enumerate((mixed, mixed.members[0])):
        bundle = export(model, PAIR, tmp_path / str(number))
        with torch.no_grad():
            expected = model(PAIR[0]).numpy()
        np.testing.assert_allclose(Predictor(bundle).logits(PAIR[0].numpy())[0], expected, atol=1e-5)
    assert (bundle.classes, bundle.threat) == (("0", "1", "2", "3"), None)


class Odd(nn.Module):
    def __init__(self, reason: str) -> None:
        super().__init__()
        self.linear, self.reason = nn.Linear(4, 3), reason

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x)
        if self.reason == "more than rounding":
            return z + 1e-2 * x.sum(dim=1, keepdim=True) if torch.compiler.is_exporting() else z
        if self.reason == "fixes the batch size":
            return z.reshape(len(x), 3)
        return z if float(x.sum()) > 1 else -z


@pytest.mark.parametrize("reason", ["more than rounding", "cannot be exported", "fixes the batch size"])
def test_what_cannot_be_exported_rightly_is_not_exported(tmp_path: Path, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        export(Odd(reason), (torch.rand(8, 4), torch.zeros(8, dtype=torch.int64)), tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_folders_and_choices(tmp_path: Path) -> None:
    choices: list[dict[str, Any]] = [{"member": 3}, {"average": 4}, {"member": 0, "average": 2}]
    for options in choices:
        with pytest.raises(InputError, match=r"member|k is 4"):
            export(networks(), PAIR, tmp_path / "a", **options)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("kept")
    with pytest.raises(FileError, match="exists already"):
        export(networks(), PAIR, tmp_path / "b")
    assert (tmp_path / "b" / "mine").read_text() == "kept"
    # What a killed export leaves behind is cleaned by the next.
    (tmp_path / ".c.tmp").mkdir()
    export(networks(1), PAIR, tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_the_command(exported: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Run.create(tmp_path / "run", recipe={"data": {"name": "digits"}})
    assert run(["export", str(made.path)]) == 2
    assert "holds no ensemble" in capsys.readouterr().err
    exported.rec.save(made.ensemble)
    assert run(["export", str(made.path)]) == 0
    said, bundle = capsys.readouterr().out, Bundle.open(made.path / "bundle")
    assert bundle.checksum in said
    assert "180 inputs of digits validation" in said
    assert run(["export", str(made.path), "--member", "1", "--output", str(tmp_path / "one"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["sha256"] == bundle.files[1].sha256
    saved = [str(made.ensemble), "--data", "digits", "--uniform"]
    assert run(["export", *saved]) == 2
    assert "--output" in capsys.readouterr().err
    assert run(["export", *saved, "--output", str(tmp_path / "alike"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["probs"] == [0.5, 0.5]
    assert run(["export", str(made.path)]) == 2
    assert "exists already" in capsys.readouterr().err
