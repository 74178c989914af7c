"""Files: read only what is regular and not too large; write so that a crash or a full disk damages nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import stat
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from randens.core.errors import FileError, InputError, RandensError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST_DOCUMENT = 256 << 20
_LARGEST_TOML = 1 << 14  # a dotted key takes memory by the square of its length


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of data sets: `folder`, else RANDENS_DATA, else the platform's cache folder.

    Parameters
    ----------
    folder : str or path, optional
        Used unchanged.

    Returns
    -------
    Path
        Need not exist.

    Examples
    --------
    >>> data_folder("here").name
    'here'
    """
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

    A reader of `path` sees the old content or the new one, never a part.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot write {_shown(target)}: {getattr(error, 'strerror', None) or error}"
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}; nothing was changed") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    # The rename itself must reach the disk; some file systems do not let folders be synced.
    with contextlib.suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented, key-sorted JSON, atomically. NaN is refused: it is not JSON."""
    try:
        text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
        content = (text + "\n").encode()
    # Lone surrogates, which no encoding has, are ValueErrors.
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot write {_shown(path)}: its content is not JSON ({error})") from error
    write_atomic(path, content)


def plain(value: Any) -> Any:
    """`value` as JSON has it: by its own `to_json` or `to_dict` if it has one, else by its parts.

    >>> plain({"probs": (0.5, 0.5), "path": Path("here")})
    {'probs': [0.5, 0.5], 'path': 'here'}
    """
    for method in ("to_json", "to_dict", "tolist"):
        if hasattr(value, method):
            return getattr(value, method)()
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, os.PathLike) else value


class Plain:
    """Base of value objects whose JSON holds all of their fields."""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {name: plain(value) for name, value in vars(self).items()}


class Saved(ABC):
    """Base of results that are saved as JSON."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON, atomically."""
        write_json(path, self.to_json())
        return Path(path)


def picked(owner: Any, names: str) -> dict[str, Any]:
    """The attributes of `owner` with these names, separated by blanks, as JSON has them."""
    return {name: plain(getattr(owner, name)) for name in names.split()}


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str], largest: int) -> Iterator[BinaryIO]:
    """Open a regular file of at most `largest` bytes for reading: everything that is read from disk goes through here.

    A folder, pipe or device in its place is refused, so that none blocks or never ends.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise FileError(f"cannot read {_shown(path)}: it is no regular file")
            if about.st_size > largest:
                raise FileError(f"{_shown(path)} has {about.st_size} bytes; at most {largest} are read")
            yield file
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {_shown(path)}: {error.strerror or error}") from error
    except ValueError as error:
        # A name with a zero byte, or with characters that no file system has.
        if isinstance(error, RandensError):
            raise
        raise FileError(f"cannot read {_shown(path)}: {error}") from error


def read_file(path: str | os.PathLike[str], largest: int) -> bytes:
    """The content of a regular file of at most `largest` bytes."""
    with open_file(path, largest) as file:
        # Not more than its size: `read` takes memory for all that it is asked for.
        return file.read(os.fstat(file.fileno()).st_size)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read JSON; a missing, truncated or altered file is named in the error."""
    content = read_file(path, _LARGEST_DOCUMENT)
    try:
        return parse_json(content)
    except ValueError as error:
        raise FileError(f"{path} is not valid JSON ({error}); it is truncated or was altered") from error


def parse_json(content: bytes) -> Any:
    """JSON with finite numbers; anything else, or what is nested too deep, is a ValueError."""
    try:
        return json.loads(content, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read TOML; a missing or damaged file is named in the error."""
    content = read_file(path, _LARGEST_TOML)
    try:
        return parse_toml(content.decode())
    except ValueError as error:
        raise FileError(f"{path} is not valid TOML ({error})") from error


def parse_toml(text: str) -> dict[str, Any]:
    """TOML; anything else, or what is too long or nested too deep, is a ValueError."""
    if len(text) > _LARGEST_TOML:
        raise ValueError(f"it has {len(text)} characters; at most {_LARGEST_TOML} are read")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_tensors(
    path: str | os.PathLike[str], largest: int = 1 << 36
) -> tuple[dict[str, Any], dict[str, str]]:
    """The torch tensors and the metadata of a safetensors file, which holds numbers and names and no code."""
    # Theory and runtime, which use this module, do without torch.
    import safetensors.torch

    content = read_file(path, largest)
    try:
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        return tensors, json.loads(content[8 : 8 + length]).get("__metadata__", {})
    # Unknown types raise others than SafetensorError.
    except Exception as error:
        raise FileError(f"{path} is damaged or no safetensors file ({error})") from error


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its checksum under "checksum"."""
    return {**document, "checksum": document_checksum(document)}


def check_seal(document: Any, source: str | os.PathLike[str]) -> None:
    """Refuse a document that does not match its checksum; one without a checksum is of an earlier version."""
    stated = document.get("checksum") if isinstance(document, dict) else None
    if stated is not None and stated != document_checksum(document):
        raise FileError(f"{source} does not match its checksum; it was altered or damaged")


def sha256(content: bytes) -> str:
    """Hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def document_checksum(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON document, of everything in it except its own entry "checksum"; the order of keys does not
    matter.
    """
    content = {key: value for key, value in document.items() if key != "checksum"}
    try:
        text = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the document has no checksum: its content is not JSON ({error})") from error
    return sha256(text.encode())


def tensor_checksum(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> str:
    """SHA-256 of the content of a tensor file: names, dtypes, shapes, metadata and bytes.

    A header of all names, dtypes, shapes and sizes comes first, so that no two different contents give the same
    stream of bytes. Equal NumPy arrays and torch tensors have equal checksums. The entry "checksum" of the file's
    `metadata` is left out, because it holds the result.
    """
    notes = {key: value for key, value in (metadata or {}).items() if key != "checksum"}
    names = sorted(tensors)
    raw = [_raw(tensors[name]) for name in names]
    header = [[name, *described] for name, (described, _) in zip(names, raw, strict=True)]
    digest = hashlib.sha256(json.dumps([notes, header], sort_keys=True, ensure_ascii=True).encode())
    for _, content in raw:
        digest.update(content)
    return digest.hexdigest()


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Create a new folder; an existing one is refused, so that no run overwrites another."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise FileError(f"{folder} exists already; choose another folder or remove it first") from None
    except OSError as error:
        raise FileError(f"cannot create {folder}: {error.strerror or error}") from error
    return folder


def _raw(tensor: Any) -> tuple[tuple[str, list[int], int], Any]:
    """dtype, shape and size of an array in bytes; and a flat view of its bytes, little-endian, in C order."""
    # Not needed to write and read JSON.
    import numpy as np

    dtype = str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, np.ndarray):
        flat = np.ascontiguousarray(tensor).reshape(-1)
        dtype, flat = flat.dtype.newbyteorder("=").name, flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        content = flat.view(np.uint8)
    else:
        # There is a tensor, so torch is loaded; theory and runtime, which use this module, do without it.
        byte = sys.modules["torch"].uint8
        content = tensor.detach().cpu().contiguous().reshape(-1).view(byte).numpy()
    return (dtype, list(tensor.shape), int(content.size)), content


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


def _shown(path: str | os.PathLike[str]) -> str:
    """A path in a message: what cannot be printed is escaped, and what is too long is cut."""
    return ascii(text)[1:-1][:200] if not (text := str(path)).isprintable() else text[:200]
