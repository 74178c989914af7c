"""The paper's experiments: their runs, tables and figures, next to the paper's own numbers.

``python -m paper.reproduce`` in a clone of the repository.
"""

from paper.reproduce.runs import Reproduction, reproduce

__all__ = ["Reproduction", "reproduce"]
