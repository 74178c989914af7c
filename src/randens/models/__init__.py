"""Networks: the paper's three, three small ones, and adapters for anything that gives logits."""

from randens.models.cost import flops, parameters
from randens.models.registry import Classifier, build, create, names

__all__ = ["Classifier", "build", "create", "flops", "names", "parameters"]
