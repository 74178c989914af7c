"""Examples in short docstrings get the heading that NumPy's style has for them, so that they are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """A heading above the first ``>>>`` of a docstring without one."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring before it is parsed."""
        del kwargs
        if obj.docstring and "Examples\n---" not in obj.docstring.value:
            heading = r"Examples\n--------\n>>>"
            obj.docstring.value = re.sub(r"^>>>", heading, obj.docstring.value, count=1, flags=re.MULTILINE)
