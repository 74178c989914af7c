"""Fooled sets as text for JSON: a string of zeros and ones, member 0 first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from randens.core.errors import InputError
from randens.risk.sets import Masks, unpack

__all__ = ["from_words", "to_words"]


def to_words(masks: Masks, members: int) -> list[str]:
    """One string per mask."""
    text = (unpack(masks, members).astype(np.uint8) + ord("0")).tobytes().decode("ascii")
    return [text[i : i + members] for i in range(0, len(text), members)]


def from_words(document: str, words: Sequence[object], members: int) -> NDArray[np.bool_]:
    """Boolean matrix [k, M] of the strings; `document` is named if one of them is not a set."""
    for word in words:
        if not isinstance(word, str) or len(word) != members or not set(word) <= {"0", "1"}:
            raise InputError(f"{document} holds the set {word!r}; a set is {members} characters, each 0 or 1")
    text = "".join(str(word) for word in words).encode("ascii")
    bits: NDArray[np.bool_] = np.frombuffer(text, dtype=np.uint8) == ord("1")
    return bits.reshape(len(words), members)
