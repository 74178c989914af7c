"""One writer per folder: a lock that the kernel releases when its process ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from randens.core.errors import FileError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock: two runs in one folder are not noticed there
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def only_writer(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock file ``.NAME.lock`` beside `folder`, which stays; `FileError` if another process holds it."""
    path = Path(folder).absolute()
    path = path.with_name(f".{path.name}.lock")
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A link in the lock's place is refused: it could point to any file.
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            stack.callback(os.close, handle)
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"{folder} is being written by another process; wait until it ends, or choose another folder"
            ) from None
        except OSError as error:
            raise FileError(f"cannot lock {path}: {error.strerror or error}") from error
        yield
