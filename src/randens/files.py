"""Writing files so that a crash, a full disk or a second run never damages what is already there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from randens.errors import FileError, InputError

__all__ = ["data_folder", "new_folder", "read_json", "sha256", "write_atomic", "write_json"]


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Where data sets are kept: `folder`, else what RANDENS_DATA says, else the platform's cache folder."""
    if folder is not None:
        return Path(folder).expanduser()
    configured = os.environ.get("RANDENS_DATA")
    if configured:
        return Path(configured).expanduser()
    # Imported here because prediction from a bundle writes files too, and is installed without it.
    import platformdirs

    return platformdirs.user_cache_path("randens") / "data"


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` under a temporary name, flush it to disk, then rename it to `path`.

    Whoever opens `path` sees the old content or the new one, never a part.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}; nothing was changed") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    _sync_folder(target.parent)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented, key-sorted JSON, atomically. NaN is refused: it is not JSON."""
    try:
        text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot write {path}: its content is not JSON ({error})") from error
    write_atomic(path, (text + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read JSON; a missing, truncated or altered file is named in the error."""
    source = Path(path)
    try:
        return json.loads(source.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read {source}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"{source} is not valid JSON ({error}); it is truncated or was altered") from error


def sha256(content: bytes) -> str:
    """Hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder that did not exist before; a second run never overwrites a first one silently."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise FileError(f"{folder} exists already; choose another folder or remove it first") from None
    except OSError as error:
        raise FileError(f"cannot create {folder}: {error.strerror or error}") from error
    return folder


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    # The rename itself must reach the disk; some file systems do not let folders be synced.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
