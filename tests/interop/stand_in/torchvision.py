"""Stands in for torchvision where it is not installed, so that timm can be imported; nothing in it works.

timm imports names of torchvision for its data pipeline and for detection layers. Its models need none of them.
"""

from __future__ import annotations

import sys
import types
from enum import Enum
from typing import Any


class InterpolationMode(Enum):
    """timm makes a table of these while it is imported."""

    NEAREST, BILINEAR, BICUBIC, BOX, HAMMING, LANCZOS = range(6)


class _Module(types.ModuleType):
    """A module in which every other name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return InterpolationMode if name == "InterpolationMode" else type(name, (), {})


__path__: list[str] = []
__version__ = "0.0"
for _name in ("datasets", "models", "models.feature_extraction", "ops", "ops.misc", "transforms", "utils"):
    sys.modules[f"{__name__}.{_name}"] = _Module(_name)
sys.modules[f"{__name__}.transforms.functional"] = _Module("functional")
datasets, models, ops, transforms, utils = (
    sys.modules[f"{__name__}.{name}"] for name in ("datasets", "models", "ops", "transforms", "utils")
)
