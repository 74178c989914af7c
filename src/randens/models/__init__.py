"""Networks: the paper's three, three small ones, and adapters for anything that gives logits."""

from randens.models.cost import flops, parameters
from randens.models.foreign import Adapted, OnnxMember, adapt, onnx, torchscript
from randens.models.registry import Classifier, build, create, names, weights

__all__ = [
    "Adapted",
    "Classifier",
    "OnnxMember",
    "adapt",
    "build",
    "create",
    "flops",
    "names",
    "onnx",
    "parameters",
    "torchscript",
    "weights",
]
