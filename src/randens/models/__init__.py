"""Networks: the paper's three, small ones, and adapters for anything that gives logits."""

from randens.core.devices import on_device, pick_device, send
from randens.models.complexity import flops, parameters
from randens.models.factories import from_spec, imported, trust
from randens.models.from_files import OnnxMember, onnx, torchscript
from randens.models.outputs import (
    Adapted,
    adapt,
    in_precision,
    logits_of,
    preprocessing_of,
    preprocessing_per_member,
)
from randens.models.registry import Classifier, build, create, names

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
    "on_device",
    "onnx",
    "parameters",
    "pick_device",
    "preprocessing_of",
    "preprocessing_per_member",
    "send",
    "torchscript",
    "trust",
]
