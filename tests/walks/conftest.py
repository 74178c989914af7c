"""The command line, for the walks."""

from __future__ import annotations

from tests.cli.commands import shell

__all__ = ["shell"]
