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

import randens
from randens import models
from randens.core.errors import FileError, InputError, ModelError


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
    member = models.adapt(module, ((0.1, 0.2, 0.3), (0.5, 0.5, 1.0)))
    x = torch.rand(6, 3, 2, 2, requires_grad=True)
    normalized = (x - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 0.5, 1.0]).view(
        3, 1, 1
    )
    assert torch.allclose(member(x), module.linear(normalized.flatten(1)), atol=1e-6)
    (gradient,) = torch.autograd.grad(member(x).sum(), x)
    assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize("how", ["features", "nothing", "empty mapping"])
def test_modules_without_logits(how: str) -> None:
    with pytest.raises(
        ModelError, match=r"Wrapped returned .*; a member returns logits \[n, classes\], or a tuple that"
    ):
        models.adapt(Wrapped(how))(torch.rand(6, 3, 2, 2))


@pytest.mark.parametrize(
    ("module", "given"),
    [
        (Wrapped("tensor"), (0, (0.0, 1.0, 1.0))),
        (Wrapped("tensor"), ((float("inf"), 1.0, 1.0), 1)),
        (Wrapped("tensor"), ("gray", 1)),
        ("resnet50", None),
    ],
)
def test_bad_normalization(module: Any, given: Any) -> None:
    with pytest.raises(InputError, match=r"preprocessing is|module is"):
        models.adapt(module, given)


def test_vectors_are_normalized_by_feature_and_images_by_channel() -> None:
    pair, net = ([0.1, 0.2, 0.3], [0.5, 1.0, 2.0]), nn.Linear(3, 4)
    x = torch.rand(5, 3)
    assert torch.equal(models.adapt(net, pair)(x), net((x - torch.tensor(pair[0])) / torch.tensor(pair[1])))
    with pytest.raises(InputError, match=r"preprocessing has 3 channels; x has shape \(1, 2, 2\)"):
        models.adapt(nn.Sequential(nn.Flatten(), net), pair)(torch.rand(5, 1, 2, 2))


NORMALIZE = SimpleNamespace(mean=[0.1, 0.2, 0.3], std=(0.4, 0.5, 0.6), inplace=False)
PRESET = SimpleNamespace(crop_size=[224], mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6], interpolation="bilinear")


@pytest.mark.parametrize(
    "given",
    [
        NORMALIZE,
        PRESET,
        SimpleNamespace(transforms=[SimpleNamespace(size=32), NORMALIZE]),
        {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)},
        SimpleNamespace(image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]),
        ([0.1, 0.2, 0.3], torch.tensor([0.4, 0.5, 0.6])),
    ],
)
def test_preprocessing_as_torchvision_timm_and_transformers_have_it(given: Any) -> None:
    found = models.preprocessing_of(given)
    assert found is not None
    assert found[0] == pytest.approx([0.1, 0.2, 0.3])
    assert found[1] == pytest.approx([0.4, 0.5, 0.6])


@pytest.mark.parametrize(
    "given", ["imagenet", "auto", 3, SimpleNamespace(transforms=[]), (1, 0), ((), ()), {}]
)
def test_preprocessing_that_says_nothing(given: Any) -> None:
    with pytest.raises(InputError, match="preprocessing is"):
        models.preprocessing_of(given, nn.Linear(2, 2))


def test_preprocessing_for_each_member() -> None:
    pair = ([0.5], [0.25])
    assert models.preprocessing_per_member([None, pair, NORMALIZE], 3) == [None, pair, NORMALIZE]
    for same in (pair, list(pair), NORMALIZE, None, [np.ones(3), np.ones(3)]):
        assert all(part is same for part in models.preprocessing_per_member(same, 2))
    with pytest.raises(InputError, match="a list of 2; there are 3 members"):
        models.preprocessing_per_member([None, pair], 3)


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
        models.OnnxMember(session, Path("net.onnx"))(torch.rand(3, 4))


def test_onnx_has_no_gradients_and_fakes_none(tmp_path: Path) -> None:
    export(tmp_path / "member.onnx", dynamic=True)
    member = models.onnx(tmp_path / "member.onnx")
    x = torch.rand(2, 1, 8, 8, requires_grad=True)
    assert member(x).shape == (2, 5)
    assert not member(x).requires_grad
    with pytest.raises(InputError, match=r"member\.onnx takes no inputs of shape \(3, 9, 9\)"):
        member(torch.rand(2, 3, 9, 9))


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
@pytest.mark.parametrize("content", ["page", "empty", "folder", "none"])
def test_bad_files_are_named(tmp_path: Path, kind: str, content: str) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "bad"
    if content == "folder":
        path.mkdir()
    elif content != "none":
        path.write_text("<html>" if content == "page" else "")
    with pytest.raises(FileError, match="bad"):
        models.from_spec(f"{kind}:{path}")


@pytest.mark.parametrize("shape", [[], [20_000_000, 4]])
def test_an_onnx_file_without_inputs_or_with_far_too_many(shape: list[int]) -> None:
    session = SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name="x", shape=shape)])
    with pytest.raises(FileError, match=r"net\.onnx"):
        models.OnnxMember(session, Path("net.onnx"))


def test_specs_name_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mymodels.py").write_text(
        "import torch\ndef two():\n    return [torch.nn.Linear(4, 5)] * 2\ndef one(x):\n    return x\n"
    )
    torch.jit.save(torch.jit.trace(nn.Linear(4, 3), torch.zeros(1, 4)), "net.pt")  # type: ignore[no-untyped-call]
    assert models.from_spec("torchscript:net.pt")(torch.rand(2, 4)).shape == (2, 3)
    assert [net.out_features for net in models.from_spec("mymodels:two")] == [5, 5]
    for wrong in ("mymodels", ":two", "mymodels:2", "mymodels:three", "nonets:two", "mymodels:torch"):
        with pytest.raises(InputError, match="model"):
            models.from_spec(wrong)
    with pytest.raises(InputError, match="cannot be called"):
        models.from_spec("mymodels:one")
    Path("mymodels.py").write_text("")
    assert str(tmp_path) not in sys.path


def test_a_network_of_robustbench(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, which needs torchvision."""
    asked: list[dict[str, str]] = []

    def load_model(**options: str) -> nn.Module:
        asked.append(options)
        return nn.Linear(4, 3)

    monkeypatch.setitem(sys.modules, "robustbench", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "robustbench.utils", SimpleNamespace(load_model=load_model))
    x, y = torch.rand(6, 4), torch.arange(6) % 3
    assert randens.evaluate("robustbench:Standard", (x, y), "fgsm", eps=0.1, limit=4).about.n == 4
    models.from_spec("robustbench:cifar100/L2/Wang2023Better")
    assert asked == [
        {"model_name": "Standard", "dataset": "cifar10", "threat_model": "Linf"},
        {"model_name": "Wang2023Better", "dataset": "cifar100", "threat_model": "L2"},
    ]
    with pytest.raises(InputError, match="DATASET/NORM/NAME"):
        models.from_spec("robustbench:cifar10/Standard")


def test_without_onnx_runtime_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError):
        importlib.import_module("onnxruntime")
    (tmp_path / "member.onnx").write_bytes(b"x")
    with pytest.raises(ModelError, match="needs ONNX Runtime"):
        models.onnx(tmp_path / "member.onnx")
