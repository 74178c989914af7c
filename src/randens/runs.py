"""Run folders, for scripts that open them."""

from randens.core.runs import Run, versions

__all__ = ["Run", "versions"]
