"""ONNX files that answer as torch does."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from tests.deploy.conftest import Exported
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, data
from randens.core.errors import FileError, InputError, ModelError
from randens.deploy import Bundle, Predictor, export


def test_every_member_answers_as_torch_does(exported: Exported) -> None:
    test = data.load("digits", "test")
    predictor = Predictor(exported.bundle)
    with torch.no_grad():
        expected = exported.rec.logits(test.x).numpy()
    found = predictor.logits(test.x.numpy())
    assert np.abs(found - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())
    assert (found.argmax(axis=2) == expected.argmax(axis=2)).all()
    # Trained members, so agreement is not agreement on one constant class.
    assert (found.argmax(axis=2) == test.y.numpy()).mean() > 0.8


def test_the_stated_difference_is_the_measured_one(exported: Exported) -> None:
    validation = data.load("digits", "validation")
    with torch.no_grad():
        expected = exported.rec.logits(validation.x).numpy()
    difference = np.abs(Predictor(exported.bundle).logits(validation.x.numpy()) - expected).max()
    parity = exported.bundle.sign_off["parity"]
    assert parity["inputs"] == len(validation)
    assert (parity["data"], parity["split"], parity["labels_changed"]) == ("digits", "validation", 0)
    assert 0 < parity["max_difference"] < 1e-4
    assert difference == pytest.approx(parity["max_difference"], abs=1e-5)
    assert parity["largest_logit"] == pytest.approx(np.abs(expected).max(), rel=1e-5)


def test_the_manifest_says_what_was_exported(exported: Exported) -> None:
    bundle = Bundle.open(exported.bundle.path)
    assert bundle.probs == (0.7, 0.3)
    assert bundle.classes == tuple(map(str, range(10)))
    assert bundle.threat == {"norm": "linf", "eps": 0.1, "bounds": [0.0, 1.0]}
    assert bundle.input_shape == (1, 8, 8)
    for member in bundle.members:
        model = onnx.load(bundle.path / member.file)
        onnx.checker.check_model(model, full_check=True)
        assert [e.version for e in model.opset_import if e.domain == ""] == [bundle.opset]
        # Standard operators only: any runtime can read the file.
        assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}


def test_sample_pictures_are_the_first_of_every_class(exported: Exported) -> None:
    validation = data.load("digits", "validation")
    found = Bundle.open(exported.bundle.path).samples
    assert [sample.label for sample in found] == [*range(10), 0, 1]
    for sample, turn in zip(found, [0] * 10 + [1] * 2, strict=True):
        place = torch.nonzero(validation.y == sample.label)[turn].item()
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(sample.png))), dtype=np.float32)
        assert np.abs(pixels / 255 - validation.x[int(place), 0].numpy()).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize("samples", [-1, 65, True, 1.5])
def test_the_number_of_samples_is_checked(exported: Exported, tmp_path: Path, samples: Any) -> None:
    with pytest.raises(InputError, match=r"samples is .*; it must be a whole number from 0 to 64"):
        export(exported.rec, data.load("digits", "validation"), tmp_path / "b", samples=samples)


@pytest.mark.parametrize("n", [1, 2, 7, 130])
def test_each_file_alone_takes_any_batch_of_plain_pixels(exported: Exported, n: int) -> None:
    x = data.load("digits", "test").x[:n]
    for file, member in zip(exported.bundle.members, exported.rec.members, strict=True):
        session = onnxruntime.InferenceSession(str(exported.bundle.path / file.file))
        found = session.run(["logits"], {"inputs": x.numpy()})[0]
        with torch.no_grad():
            np.testing.assert_allclose(found, member(x).numpy(), atol=1e-4)


def test_batch_normalisation_is_folded_and_right(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    member = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 4),
    )
    # Statistics of a trained network: not the 0 and 1 that hide a wrong folding.
    for module in member.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    x = torch.rand(16, 3, 8, 8, generator=generator)
    bundle = export(RandomizedEnsemble([member]), (x, torch.zeros(16, dtype=torch.int64)), tmp_path / "b")
    model = onnx.load(bundle.path / "member-00.onnx")
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}
    member.eval()
    with torch.no_grad():
        expected = member(x).numpy()
    for lean in (False, True):
        np.testing.assert_allclose(
            Predictor(bundle, lean=lean).logits(x.numpy())[0], expected, rtol=1e-4, atol=1e-4
        )
    assert bundle.classes == ("0", "1", "2", "3")
    assert bundle.threat is None


class TwoFaced(nn.Module):
    """Another function while it is being exported."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x)
        return z + 1e-2 * x.sum(dim=1, keepdim=True) if torch.compiler.is_exporting() else z


class Rigid(nn.Module):
    """A Python number made of the batch size becomes a constant when traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x)
        return z.reshape(len(x), 3)


class Undecided(nn.Module):
    """Control flow that depends on values cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x)
        return z if float(x.sum()) > 1 else -z


@pytest.mark.parametrize(
    ("member", "reason"),
    [(TwoFaced, "more than rounding"), (Undecided, "cannot be exported"), (Rigid, "fixes the batch size")],
)
def test_what_cannot_be_exported_rightly_is_not_exported(
    tmp_path: Path, member: type[nn.Module], reason: str
) -> None:
    rec = RandomizedEnsemble([member()], threat=Threat("linf", 0.1))
    pair = (torch.rand(8, 4), torch.zeros(8, dtype=torch.int64))
    with pytest.raises(ModelError, match=reason):
        export(rec, pair, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("kept")
    with pytest.raises(FileError, match="exists already"):
        export(exported.rec, data.load("digits", "validation"), tmp_path / "b")
    assert (tmp_path / "b" / "mine").read_text() == "kept"


def test_exporting_leaves_the_ensemble_as_it_was(exported: Exported) -> None:
    assert all(p.requires_grad for p in exported.rec.parameters())
    assert not any(m.training for m in exported.rec.modules())
