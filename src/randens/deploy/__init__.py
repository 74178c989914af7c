"""Deploy an ensemble: `Bundle` and `Predictor` need no torch (extra ``runtime``); `export` loads it on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from randens.deploy.predictor import Bundle, Prediction, Predictor

if TYPE_CHECKING:
    from randens.deploy.exporting import export

__all__ = ["Bundle", "Prediction", "Predictor", "export"]


def __getattr__(name: str) -> Any:
    if name == "export":
        from randens.deploy.exporting import export

        return export
    raise AttributeError(f"module 'randens.deploy' has no attribute {name!r}")
