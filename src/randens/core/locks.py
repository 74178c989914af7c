"""One writer per folder: a lock that ends with its process, on local and on network file systems.

The lock is the file ``.NAME.lock`` beside the folder NAME. It names the writing process and is held by flock,
which the kernel releases when the process ends. Where flock does not work (some network mounts, other
systems), the file's content decides: a process of this machine is looked up by its number and start time; a
process of another machine counts as alive while the file is younger than ten minutes. The holder renews the
file every minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from randens.core.errors import FileError
from randens.core.files import parse_json

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this system
    fcntl = None  # type: ignore[assignment]

__all__ = ["RENEWED_SECONDS", "STALE_SECONDS", "lock_of", "only_writer"]

RENEWED_SECONDS = 60.0
"""How often a holder renews its lock file."""

STALE_SECONDS = 600.0
"""When the lock of another machine counts as left behind."""


def lock_of(folder: str | os.PathLike[str]) -> Path:
    """The lock file of a folder."""
    path = Path(folder).absolute()
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def only_writer(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of `folder`; if another process holds it, raise an error that names it.

    Raises
    ------
    FileError
        The folder is being written by another process, or the lock cannot be written.
    """
    path = lock_of(folder)
    handle = _take(path, Path(folder))
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(handle, ended), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        # Removed while it is held, so that no other process has taken this file.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _take(path: Path, folder: Path) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error
        try:
            holder = _read(handle)
            taken = _flock(handle)
            if taken is False or _alive(holder, handle, decided=taken is True):
                since = f" since {holder['since']}" if "since" in holder else ""
                who = f"process {holder.get('pid', '(unknown)')} on {holder.get('host', '(unknown)')}"
                raise FileError(
                    f"{folder} is being written by {who}{since}; wait until it ends, or choose another folder"
                )
            # The file may have been removed by its last holder between opening and locking it.
            if _same_file(handle, path):
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(_identity()).encode(), 0)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _flock(handle: int) -> bool | None:
    """Whether the lock could be taken; None if flock is not available."""
    if fcntl is None:  # pragma: no cover - not on this system
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _alive(holder: dict[str, Any], handle: int, decided: bool) -> bool:
    """Whether the process that the file names may still be writing.

    If `decided`, flock has been taken, so no process of this machine holds it.
    """
    here = _identity()
    if not isinstance(holder.get("pid"), int) or "host" not in holder:
        return False
    if holder["host"] != here["host"]:
        return time.time() - os.fstat(handle).st_mtime < STALE_SECONDS
    if decided:
        return False
    started = _started(holder["pid"])
    return started is not None and started == holder.get("started")


def _identity() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _started(pid: int) -> str | None:
    """Return the start time of a process of this machine, to detect reused process numbers; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:  # pragma: no cover - not on this system
        os.kill(pid, 0)
    except ProcessLookupError:  # pragma: no cover
        return None
    except OSError:  # pragma: no cover
        pass
    return ""  # pragma: no cover


def _read(handle: int) -> dict[str, Any]:
    try:
        found = parse_json(os.pread(handle, 4096, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _renew(handle: int, ended: threading.Event) -> None:
    while not ended.wait(RENEWED_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(handle)
