"""Networks: the paper's three, small ones, and adapters for anything that gives logits."""

from randens.models.outputs import (
    Adapted,
    adapt,
    in_precision,
    logits_of,
    preprocessing_of,
    preprocessing_per_member,
    undisturbed,
)
from randens.models.outside import OnnxMember, from_spec, imported, onnx, torchscript, trust
from randens.models.registry import Classifier, build, create, flops, names

__all__ = [
    "Adapted",
    "Classifier",
    "OnnxMember",
    "adapt",
    "build",
    "create",
    "flops",
    "from_spec",
    "imported",
    "in_precision",
    "logits_of",
    "names",
    "onnx",
    "preprocessing_of",
    "preprocessing_per_member",
    "torchscript",
    "trust",
    "undisturbed",
]
