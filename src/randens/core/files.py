"""Files: read only what is regular and not too large; write so that a crash or a full disk damages nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from randens.core.errors import FileError, InputError, ModelError, RandensError

AnyPath = str | os.PathLike[str]
_LARGEST_DOCUMENT = 256 << 20


@contextlib.contextmanager
def file_errors(doing: str, path: AnyPath) -> Iterator[None]:
    """Whatever the system or a decoder of damaged content raises becomes one sentence that names the path."""
    try:
        yield
    except RandensError:
        raise
    except Exception as error:
        name = str(path) if str(path).isprintable() else ascii(str(path))
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise FileError(f"cannot {doing} {name:.200}: {reason:.300}") from error


@contextlib.contextmanager
def open_file(path: AnyPath, largest: int) -> Iterator[BinaryIO]:
    """Open a regular file (no folder, pipe or device) of at most `largest` bytes; everything is read through here."""
    with file_errors("read", path):
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise ValueError("it is no regular file")
            if about.st_size > largest:
                raise ValueError(f"it has {about.st_size} bytes; at most {largest} are read")
            yield file


def read_file(path: AnyPath, largest: int) -> bytes:
    """The content of a regular file of at most `largest` bytes."""
    with open_file(path, largest) as file:
        return file.read()


def onnx_session(source: str | bytes, name: AnyPath, threads: int) -> Any:
    """ONNX Runtime's session on the CPU of a file or of its content, called `name` in errors."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        raise ModelError(f"{name} needs ONNX Runtime; run `pip install '.[runtime]'` in a clone") from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    # ONNX Runtime's exceptions have no public base class.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"{name} is not an ONNX file that ONNX Runtime can read ({reason})") from error


def read_json(path: AnyPath) -> Any:
    """Read JSON; a missing, truncated or altered file is named in the error."""
    with file_errors("read", path):
        return parse_json(read_file(path, _LARGEST_DOCUMENT))


def parse_json(content: str | bytes) -> Any:
    """JSON with finite numbers; anything else, or what is nested too deep, is a ValueError."""
    try:
        return json.loads(content, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON ({error})") from error


def write_atomic(path: AnyPath, content: bytes) -> None:
    """Write `content` under a temporary name, flush it to disk, then rename it: readers never see a part of it."""
    target = Path(path)
    with file_errors("write", path):
        if target.exists() and not target.is_file():
            raise ValueError("it is no regular file")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: AnyPath, value: Any) -> None:
    """Write `value` as indented, key-sorted JSON, atomically. NaN is refused: it is not JSON."""
    write_atomic(path, encoded(value, path, indent=2, sort_keys=True))


def encoded(value: Any, path: AnyPath, **options: Any) -> bytes:
    """A line, or lines, of JSON for the file `path`."""
    try:
        return (json.dumps(value, allow_nan=False, ensure_ascii=False, **options) + "\n").encode()
    # Lone surrogates, which no encoding has, are ValueErrors.
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot write {str(path)!r:.200}: its content is not JSON ({error})") from error


@contextlib.contextmanager
def atomic_folder(path: AnyPath, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder to fill, which becomes `path` if no error occurs; an existing one stays until then."""
    target = Path(path).absolute()
    if os.path.exists(target) and not overwrite:  # noqa: PTH110 - Path.exists raises for names that are too long
        raise FileError(f"{path} exists already; choose another folder or remove it first")
    fresh, old = (target.with_name(f".{target.name}.{end}") for end in ("tmp", "old"))
    with only_writer(path):
        remove(fresh)  # a killed process leaves it behind
        try:
            with file_errors("write", path):
                if target.exists() and not target.is_dir():
                    raise ValueError("it is no folder")
                fresh.mkdir(parents=True)
            yield fresh
            with file_errors("write", path):
                if target.exists():
                    remove(old)
                    os.replace(target, old)
                os.replace(fresh, target)
        finally:
            remove(fresh)
        remove(old)


def remove(path: Path) -> None:
    """Remove a file, link or pipe (which rmtree would wait for), or a folder with its content, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def only_writer(folder: AnyPath) -> Iterator[None]:
    """Hold the lock file ``.NAME.lock`` beside `folder`; `FileError` if another process does."""
    from filelock import FileLock, Timeout

    path = Path(folder).absolute()
    lock = FileLock(path.with_name(f".{path.name}.lock"), blocking=False)
    with file_errors("lock", lock.lock_file):
        try:
            lock.acquire()
        except Timeout:
            message = f"{folder} is being written by another process; wait, or choose another"
            raise FileError(message) from None
    try:
        yield
    finally:
        # The library takes no lock on a file that was removed meanwhile.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


class Plain:
    """Base of value objects whose JSON holds all of their fields."""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {name: plain(value) for name, value in vars(self).items()}


def plain(value: Any) -> Any:
    """`value` as JSON has it: by its own `to_json` or `to_dict` if it has one, else by its parts."""
    for method in ("to_json", "to_dict", "tolist"):
        if hasattr(value, method):
            return getattr(value, method)()
    if dataclasses.is_dataclass(value):
        return {name: plain(part) for name, part in vars(value).items()}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, os.PathLike) else value


def sha256(content: bytes) -> str:
    """Hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number
