"""Members that were made elsewhere."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from randens import models
from randens.core.errors import FileError, InputError, ModelError
from randens.models.from_files import OnnxMember


@dataclass
class Answer:
    """What Hugging Face classifiers return."""

    logits: torch.Tensor
    loss: None = None


class Wrapped(nn.Module):
    """A linear classifier that answers in the form that `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 5)
        self.how = how

    def forward(self, x: torch.Tensor) -> Any:
        z = self.linear(x.flatten(1))
        return {
            "tensor": z,
            "object": Answer(z),
            "tuple": (z, None),
            "mapping": {"logits": z},
            "features": z[:, :, None],
            "nothing": None,
            "empty mapping": {},
        }[self.how]


@pytest.mark.parametrize("how", ["tensor", "object", "tuple", "mapping"])
def test_any_module_that_has_logits(how: str) -> None:
    module = Wrapped(how)
    member = models.adapt(module, mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 1.0))
    x = torch.rand(6, 3, 2, 2, requires_grad=True)
    normalised = (x - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 0.5, 1.0]).view(
        3, 1, 1
    )
    assert torch.allclose(member(x), module.linear(normalised.flatten(1)), atol=1e-6)
    (gradient,) = torch.autograd.grad(member(x).sum(), x)
    assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize("how", ["features", "nothing", "empty mapping"])
def test_modules_without_logits(how: str) -> None:
    with pytest.raises(
        ModelError, match=r"Wrapped returned .*; a member returns logits \[n, classes\], or a tuple that"
    ):
        models.adapt(Wrapped(how))(torch.rand(6, 3, 2, 2))


def test_bad_normalisation() -> None:
    with pytest.raises(InputError, match="std="):
        models.adapt(Wrapped("tensor"), std=(0.0, 1.0, 1.0))
    with pytest.raises(InputError, match="mean="):
        models.adapt(Wrapped("tensor"), mean=(float("inf"), 1.0, 1.0))
    with pytest.raises(InputError, match=r"module=str must be a torch\.nn\.Module"):
        models.adapt("resnet50")  # type: ignore[arg-type]


def network() -> models.Classifier:
    return models.create(
        "convnet", classes=5, input_shape=(1, 8, 8), width=4, mean=0.3, std=0.4, seed=0
    ).eval()


def test_torchscript_file(tmp_path: Path) -> None:
    original, path = network(), tmp_path / "member.pt"
    with warnings.catch_warnings():
        # A tracer warning would mean that a shape was baked in.
        warnings.filterwarnings("error", "Converting a tensor")
        torch.jit.save(torch.jit.trace(original, torch.rand(2, 1, 8, 8)), path)  # type: ignore[no-untyped-call]
    member = models.torchscript(path)
    x = torch.rand(7, 1, 8, 8, requires_grad=True)
    assert torch.allclose(member(x), original(x), atol=1e-6)
    ours, theirs = (torch.autograd.grad(model(x).sum(), x)[0] for model in (original, member))
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_bad_torchscript_files(tmp_path: Path) -> None:
    (tmp_path / "page.pt").write_text("<html>")
    with pytest.raises(FileError, match=r"page\.pt is not a TorchScript file"):
        models.torchscript(tmp_path / "page.pt")
    with pytest.raises(FileError, match=r"none\.pt does not exist"):
        models.torchscript(tmp_path / "none.pt")


def export(path: Path, dynamic: bool) -> models.Classifier:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    original = network()
    shapes = ({0: torch.export.Dim("n")},) if dynamic else None
    torch.onnx.export(
        original, (torch.rand(4, 1, 8, 8),), path, dynamo=True, dynamic_shapes=shapes, verbose=False
    )
    return original


@pytest.mark.parametrize("dynamic", [True, False])
def test_onnx_file(tmp_path: Path, dynamic: bool) -> None:
    path = tmp_path / "member.onnx"
    original = export(path, dynamic)
    member = copy.deepcopy(models.onnx(path))
    for n in (1, 4, 7):
        x = torch.rand(n, 1, 8, 8)
        with torch.no_grad():
            assert torch.allclose(member(x), original(x), atol=1e-5)


def test_onnx_files_with_another_number_of_answers_are_refused() -> None:
    given = SimpleNamespace(name="x", shape=["n", 4])
    session = SimpleNamespace(
        get_inputs=lambda: [given], run=lambda _, inputs: [np.repeat(inputs["x"], 2, axis=0)]
    )
    with pytest.raises(ModelError, match=r"net\.onnx returned shape \(6, 4\) for 3 inputs"):
        OnnxMember(session, Path("net.onnx"))(torch.rand(3, 4))


def test_onnx_refuses_gradients_instead_of_faking_them(tmp_path: Path) -> None:
    export(tmp_path / "member.onnx", dynamic=True)
    member = models.onnx(tmp_path / "member.onnx")
    x = torch.rand(2, 1, 8, 8, requires_grad=True)
    with pytest.raises(ModelError, match=r"member\.onnx is an ONNX file and gives no gradients"):
        member(x)
    with torch.no_grad():
        assert member(x).shape == (2, 5)
    with pytest.raises(InputError, match=r"member\.onnx cannot take images of shape \(3, 9, 9\)"):
        member(torch.rand(2, 3, 9, 9))


def test_bad_onnx_files(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "page.onnx").write_text("<html>")
    with pytest.raises(FileError, match=r"page\.onnx is not an ONNX file"):
        models.onnx(tmp_path / "page.onnx")
    with pytest.raises(FileError, match=r"none\.onnx does not exist"):
        models.onnx(tmp_path / "none.onnx")


def test_without_onnx_runtime_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError):
        importlib.import_module("onnxruntime")
    (tmp_path / "member.onnx").write_bytes(b"x")
    with pytest.raises(
        ModelError, match=r"needs ONNX Runtime; install it with `pip install 'randens\[deploy\]'`"
    ):
        models.onnx(tmp_path / "member.onnx")
