"""Deploy a randomized ensemble: a bundle of ONNX files, a predictor that needs no torch, a server.

`Bundle` and `Predictor` need NumPy and ONNX Runtime only (extra ``runtime``). `export` and `quantize` make bundles
and need torch; they are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from randens.deploy.bundle import Bundle
from randens.deploy.predictor import Prediction, Predictor

if TYPE_CHECKING:
    from randens.deploy.exporting import export
    from randens.deploy.quantizing import quantize

_HOMES = {"export": "randens.deploy.exporting", "quantize": "randens.deploy.quantizing"}

__all__ = ["Bundle", "Prediction", "Predictor", "export", "quantize"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'randens.deploy' has no attribute {name!r}")
