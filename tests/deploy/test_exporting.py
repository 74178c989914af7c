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

from randens import DeterministicEnsemble, RandomizedEnsemble, Threat, data
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
    assert (found.argmax(axis=2) == test.y.numpy()).mean() > 0.8
    assert all(p.requires_grad for p in exported.rec.parameters())


def test_the_manifest_says_what_was_exported(exported: Exported) -> None:
    bundle = Bundle.open(exported.bundle.path)
    assert bundle.probs == (0.7, 0.3)
    assert bundle.classes == tuple(map(str, range(10)))
    assert bundle.bounds == (0.0, 1.0)
    assert bundle.input_shape == (1, 8, 8)
    parity = bundle.parity
    assert (parity["data"], parity["split"], parity["inputs"]) == ("digits", "validation", 180)
    assert parity["labels_changed"] == 0
    assert 0 < parity["max_difference"] < 1e-4
    for file in bundle.files:
        model = onnx.load(bundle.path / file.name)
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
    with torch.no_grad():
        alone = np.stack([net(PAIR[0]).numpy() for net in nets])
    predictor = Predictor(export(nets, PAIR, tmp_path / "b", **options))
    expected = np.stack([alone[list(part)].mean(axis=0) for part in parts])
    np.testing.assert_allclose(predictor.logits(PAIR[0].numpy()), expected, atol=1e-5)
    assert len(predictor.bundle.files) == len({i for part in parts for i in part})
    probs = options.get("probs", [1 / len(parts)] * len(parts))
    assert predictor.bundle.probs == pytest.approx(probs)


def test_whatever_evaluate_takes(tmp_path: Path) -> None:
    nets = networks()
    with torch.no_grad():
        mean = DeterministicEnsemble(nets, [0.5, 0.25, 0.25])(PAIR[0]).numpy()
        first = nets[0](PAIR[0]).numpy()
    average = export(DeterministicEnsemble(nets, [0.5, 0.25, 0.25]), PAIR, tmp_path / "a")
    np.testing.assert_allclose(Predictor(average).logits(PAIR[0].numpy())[0], mean, atol=1e-5)
    single = export(nets[0], PAIR, tmp_path / "s")
    np.testing.assert_allclose(Predictor(single).logits(PAIR[0].numpy())[0], first, atol=1e-5)
    assert single.classes == ("0", "1", "2", "3")
    assert single.threat is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"member": 3}, "member is 3"), ({"average": 4}, "k is 4"), ({"member": 0, "average": 2}, "give one")],
)
def test_other_choices_are_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        export(networks(), PAIR, tmp_path / "b", **options)


class Odd(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(4, 3), kind

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x)
        if self.kind == "two-faced":
            return z + 1e-2 * x.sum(dim=1, keepdim=True) if torch.compiler.is_exporting() else z
        if self.kind == "rigid":
            return z.reshape(len(x), 3)
        return z if float(x.sum()) > 1 else -z


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("two-faced", "more than rounding"),
        ("undecided", "cannot be exported"),
        ("rigid", "fixes the batch size"),
    ],
)
def test_what_cannot_be_exported_rightly_is_not_exported(tmp_path: Path, kind: str, reason: str) -> None:
    rec = RandomizedEnsemble([Odd(kind)], threat=Threat("linf", 0.1))
    with pytest.raises(ModelError, match=reason):
        export(rec, (torch.rand(8, 4), torch.zeros(8, dtype=torch.int64)), tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("kept")
    with pytest.raises(FileError, match="exists already"):
        export(networks(), PAIR, tmp_path / "b")
    assert (tmp_path / "b" / "mine").read_text() == "kept"
    # What a killed export leaves behind is cleaned by the next.
    (tmp_path / ".c.tmp").mkdir()
    (tmp_path / ".c.tmp" / "network-07.onnx").write_text("half")
    export(networks(1), PAIR, tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]
    assert not (tmp_path / "c" / "network-07.onnx").exists()


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
    assert run(["export", str(made.path)]) == 2
    assert "exists already" in capsys.readouterr().err
