"""The teaching page: the risk landscape of numbers typed by hand."""

from __future__ import annotations

import os
from pathlib import Path

from randens.core.files import write_atomic
from randens.report.page import fill
from randens.risk import candidates

__all__ = ["EXAMPLES", "write_explorer"]

EXAMPLES: dict[str, str] = {
    "two that conflict at 6 of 10 inputs": "0.6: 10 01\n0.4: 00",
    "any one of three but never two": "0.6: 100 010 001\n0.4: 000",
    "any two of three but not all": "0.5: 110 101 011\n0.5: 000",
    "a strong member and two weak ones": "0.3: 100 010 001\n0.5: 010 001\n0.2: 000",
    "a robust member beside a broken one": "0.45: 10 01\n0.55: 01",
}
"""Configurations to start from, as the page takes them."""


def write_explorer(output: str | os.PathLike[str]) -> Path:
    """Write the page; its numbers are changed in it.

    Examples
    --------
    >>> write_explorer("explorer.html").name
    'explorer.html'
    """
    start = {"candidates": {str(m): [[str(p) for p in row] for row in candidates(m)] for m in (2, 3)}}
    text = fill(
        "explore.html",
        title="Risk landscapes by hand",
        data={"start": start},
        scripts=["landscape.js", "explore.js"],
        examples=EXAMPLES,
    )
    write_atomic(output, text.encode())
    return Path(output)
