"""Memory of the process: keep what is freed while the same work is done again and again, and return it afterwards.

glibc returns large freed blocks to the operating system, which clears every page before it hands it out again. A
training step frees and takes the same blocks each time: with ResNet-20 on CPUs 45,000 pages per step of BARRE, which
took 6 % of its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator

__all__ = ["Returning", "kept_memory", "return_freed_memory"]

_TRIM, _MAPPED = -1, -3  # glibc's numbers for the two limits
_NO_LIMIT = 2**30
_USUAL = {_TRIM: 2**26, _MAPPED: 2**25}  # where glibc's own limits end up after a few large blocks were freed


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Freed memory stays with the process; on leaving, it goes back. Without glibc, nothing changes.

    Examples
    --------
    >>> with kept_memory():
    ...     pass
    """
    _limit(dict.fromkeys(_USUAL, _NO_LIMIT))
    try:
        yield
    finally:
        _limit(_USUAL)
        return_freed_memory()


def return_freed_memory() -> None:
    """Return freed memory to the operating system, if the C library can."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class Returning:
    """Call it between pieces of work: freed memory goes back, at most once in `seconds`.

    What many small pieces free lies scattered, and the C library keeps more of it with every piece.

    Examples
    --------
    >>> returning = Returning(seconds=60)
    >>> returning()
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds, self._last = seconds, time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last >= self.seconds:
            return_freed_memory()
            self._last = time.monotonic()


def _limit(sizes: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        for name, size in sizes.items():
            if not library.mallopt(name, size):
                library.mallopt(name, _USUAL[name])  # some versions refuse more
