"""The witness store: a folder that keeps all witnesses, so that no search is made twice.

A store consists of segments, files that are written once and never changed. A segment holds perturbed inputs
with the verdicts of some members, or later verdicts on perturbed inputs of other segments, and the searches
that were made.

Everything is addressed by content: an input by its values and label, a member by its weights and structure, a
point by its input and values. Each combination of norm, box and shape has its own folder. So a store can be
used for any subset of its members and inputs and for every radius that is at least a witness's distance, and
cannot mix them up.

A segment's name is the digest of its content, and it appears whole or not at all. Two processes may write at once:
neither changes what the other has written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens._version import __version__
from randens.core.documents import Kind, read_document
from randens.core.errors import FileError, InputError
from randens.core.files import seal, tensor_checksum, write_atomic, write_json
from randens.threat import Threat
from randens.witness.pool import WitnessPool, read_tensors
from randens.witness.stored_files import KEY_BYTES as _BYTES
from randens.witness.stored_files import (
    QuestionDocument,
    SegmentDocument,
    StoreDocument,
    question_text,
    segment_document,
)

__all__ = [
    "Asked",
    "KeptAnswer",
    "Question",
    "Recalled",
    "Work",
    "WitnessStore",
    "as_store",
    "input_keys",
    "member_key",
    "rounded",
]

_FORMAT = "randens-witness-store-1"
_LIMIT = 4 * 2**30
_SAME, _LOW, _HIGH, _OTHER = range(4)  # how a coordinate of a perturbed input is written

Keys = NDArray[np.uint8]


def input_keys(x: Tensor, y: Tensor) -> Keys:
    """Return content addresses [n, 16] of inputs: values, precision, shape and label, but no name."""
    rows = x.detach().cpu().contiguous()
    kind = f"{rows.dtype} {tuple(rows.shape[1:])} ".encode()
    words = [
        hashlib.blake2b(kind + str(label).encode() + b" " + row.tobytes(), digest_size=_BYTES).digest()
        for row, label in zip(rows.numpy(), y.tolist(), strict=True)
    ]
    return np.frombuffer(b"".join(words), dtype=np.uint8).reshape(-1, _BYTES)


def member_key(member: nn.Module) -> str:
    """Content address of a classifier: the types and plain attributes of its modules, its weights and its buffers."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for name, module in member.named_modules():
        kind = type(module)
        plain = {k: v for k, v in sorted(vars(module).items()) if k != "training" and _is_plain(v)}
        digest.update(f"{name} {kind.__module__}.{kind.__qualname__} {plain!r}\n".encode())
    tensors = {**member.state_dict(), **dict(member.named_buffers())}
    digest.update(tensor_checksum({k: v for k, v in tensors.items() if isinstance(v, Tensor)}).encode())
    return digest.hexdigest()


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))


@dataclass(frozen=True)
class Question:
    """The key of a search: the attack and its options, the radius, the attacked members and their probabilities.

    alone: whether it started from the unperturbed inputs only, or from known witnesses. The version is part
    of the key, because an attack may find more in another version.
    """

    attack: str
    options: Mapping[str, Any]
    eps: float
    members: tuple[str, ...]
    probs: tuple[float, ...]
    alone: bool = False
    version: str = __version__

    @cached_property
    def text(self) -> str:
        """As canonical JSON."""
        return json.dumps({**vars(self), "options": dict(self.options)}, sort_keys=True, default=repr)

    @cached_property
    def key(self) -> str:
        """Its digest."""
        return hashlib.blake2b(self.text.encode(), digest_size=_BYTES).hexdigest()


@dataclass(frozen=True)
class Asked:
    """A search in the store: its key, and the question as it was written."""

    key: str
    about: QuestionDocument

    @property
    def members(self) -> tuple[str, ...]:
        """The members under attack."""
        return tuple(self.about.members)

    @property
    def probs(self) -> tuple[float, ...]:
        """Their probabilities."""
        return tuple(self.about.probs)


@dataclass(frozen=True)
class Work:
    """The record of one search on some inputs: verdicts [k, m] at the worst point, sources, passes, flags."""

    question: Question
    inputs: Keys
    outcome: NDArray[np.bool_]
    sources: Sequence[str]
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    flags: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptAnswer:
    """The stored result of a search on n inputs.

    done: bool [n], the inputs that were attacked. outcome: bool [n, m], the verdicts there. sources [n].
    Passes and seconds are those of these inputs; flags are sums over them.
    """

    done: NDArray[np.bool_]
    outcome: NDArray[np.bool_]
    sources: list[str]
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0
    flags: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recalled:
    """Stored points of n inputs within a radius: row r is a perturbed input of `points[r]`.

    verdicts: int8 [k, M], 1 fooled, 0 not, −1 unknown (a member that was added later). clean: rows that are
    unperturbed inputs. checked: confirmed by `rec.errors`. distance [k]: from the input, in the threat's
    norm.
    """

    points: NDArray[np.int64]
    x_adv: Tensor
    verdicts: NDArray[np.int8]
    checked: NDArray[np.bool_]
    clean: NDArray[np.bool_]
    sources: tuple[str, ...]
    distance: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, eq=False)
class _Segment:
    """A segment: its metadata, and its arrays without the points, which stay on disk until they are needed."""

    path: Path
    about: SegmentDocument
    arrays: Mapping[str, NDArray[Any]]

    def sources(self, array: str) -> list[str]:
        """The names behind an array of places in the list of sources."""
        return [self.about.sources[place] for place in self.arrays[array].tolist()]


class WitnessStore:
    """Witnesses on disk, in `folder`.

    Parameters
    ----------
    folder : path
        The folder of the segments; it is created by the first write.
    limit : int
        The largest size of the store in bytes. Beyond it the oldest segments are deleted completely: their
        witnesses and the record of their searches, so that these searches are made again when needed.
    fresh : bool
        Ignore the existing segments; new witnesses are still added.
    verify : bool
        Check the verdicts of all stored witnesses when the store is read, not only of a random sample.

    Examples
    --------
    >>> import torch, randens
    >>> net, x, y = torch.nn.Linear(4, 3), torch.rand(6, 4), torch.arange(6) % 3
    >>> store = randens.WitnessStore("witnesses")
    >>> first = randens.evaluate(net, (x, y), "pgd", eps=0.1, folder=store)
    >>> again = randens.evaluate(net, (x, y), "pgd", eps=0.1, folder=store)
    >>> again.now.backwards, float(again.robust) == float(first.robust)
    (0, True)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        limit: int = _LIMIT,
        fresh: bool = False,
        verify: bool = False,
    ) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InputError(f"limit is {limit!r}; it must be a whole number of bytes ≥ 1")
        self.folder = Path(folder)
        self.limit = limit
        self._fresh = fresh
        self.verify = verify
        self.notes: list[str] = []
        self._segments: dict[str, _Segment] = {}
        self._cached: tuple[Any, dict[bytes, NDArray[np.int8]], dict[bytes, bool]] | None = None
        self._ignored = {path.name for _, _, path in self._files()} if fresh else set()
        note = self.folder / "store.json"
        if note.exists():
            found = read_document(note, StoreDocument).format
            if found != _FORMAT:
                raise FileError(
                    f"{self.folder} is a witness store of format {found!r}; this version reads {_FORMAT}"
                )

    def __len__(self) -> int:
        """Return the number of segments that this process has read or written."""
        return len(self._segments)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(bytes_ for _, bytes_, _ in self._files())

    def refresh(self, threat: Threat, x: Tensor) -> None:
        """Read the segments that were written since the last call, by this process or another one."""
        space = self._space(threat, x)
        for path in sorted(space.glob("*.safetensors")) if space.is_dir() else ():
            if path.name not in self._segments and path.name not in self._ignored:
                segment = self._read(path)
                if segment is not None:
                    self._segments[path.name] = segment

    def recall(
        self,
        members: Sequence[str],
        keys: Keys,
        x: Tensor,
        threat: Threat,
        *,
        question: Question | Asked | None = None,
        inputs: bool = True,
    ) -> Recalled:
        """The stored points of inputs x with addresses `keys` that lie within the threat.

        Points without a verdict of any of `members` are left out. question: only points found by this search.
        Without `inputs` the verdicts are read and the perturbed inputs stay on disk.
        """
        places = _places(keys)
        verdicts, sure = self._verdicts(tuple(members))
        rows: list[tuple[int, NDArray[np.int8], bool, str, float]] = []
        parts: list[Tensor] = []
        seen: set[tuple[int, bytes]] = set()
        for segment in self._ordered(threat, x):
            far = segment.arrays.get("distance")
            if far is None or (question is not None and segment.about.question != question.key):
                continue
            chosen: list[tuple[int, int]] = []
            sources = segment.sources("source")
            for row in np.flatnonzero(far <= threat.eps).tolist():
                name = segment.arrays["ids"][row].tobytes()
                known = verdicts.get(name)
                if known is None:
                    continue
                for place in places.get(segment.arrays["inputs"][row].tobytes(), ()):
                    if (place, name) in seen:
                        continue
                    seen.add((place, name))
                    chosen.append((row, place))
                    rows.append((place, known, sure[name], sources[row], far[row]))
            if chosen and inputs:
                parts.append(self._points(segment, [r for r, _ in chosen], x[[p for _, p in chosen]], threat))
        points, told, checked, found_by, distance = zip(*rows, strict=True) if rows else ((),) * 5
        return Recalled(
            np.array(points, dtype=np.int64),
            torch.cat(parts) if parts else x[:0].detach().cpu(),
            np.array(told, dtype=np.int8).reshape(-1, len(members)),
            np.array(checked, dtype=bool),
            np.array(found_by, dtype=object) == "clean",
            found_by,
            np.array(distance, dtype=np.float64),
        )

    def answer(self, question: Question | Asked, keys: Keys, threat: Threat, x: Tensor) -> KeptAnswer:
        """Return the stored result of a search, and the inputs on which it was made."""
        width = len(question.members)
        done, outcome = np.zeros(len(keys), dtype=bool), np.zeros((len(keys), width), dtype=bool)
        sources = [""] * len(keys)
        spent = np.zeros(3)
        flags: dict[str, NDArray[np.float64]] = {}
        places = _places(keys)
        for segment in self._ordered(threat, x):
            work = segment.about.work
            if segment.about.question != question.key or work is None:
                continue
            shared, inputs, found_by = 0, segment.arrays["work.inputs"], segment.sources("work.source")
            for row, key in enumerate(inputs):
                new = [place for place in places.get(key.tobytes(), ()) if not done[place]]
                for place in new:
                    done[place], outcome[place] = True, segment.arrays["work.outcome"][row]
                    sources[place] = found_by[row]
                shared += bool(new)
            share = shared / max(1, len(inputs))
            spent += share * np.array([work.forwards, work.backwards, work.seconds])
            for name, values in work.flags.items():
                flags[name] = flags.get(name, np.zeros(width)) + shared * np.asarray(values)
        return KeptAnswer(
            done, outcome, sources, round(float(spent[0])), round(float(spent[1])), float(spent[2]), flags
        )

    def asked(self, threat: Threat, x: Tensor) -> list[Asked]:
        """Return all stored searches, in order."""
        found = (segment.about for segment in self._ordered(threat, x))
        texts = {about.question: about.asked for about in found if about.question and about.asked}
        return [Asked(key, question_text(text)) for key, text in texts.items()]

    def passes(self, members: Sequence[str], keys: Keys, threat: Threat, x: Tensor) -> float:
        """The passes of all stored searches on these inputs that attacked some of these members and no others."""
        places, total = _places(keys), 0.0
        for segment in self._ordered(threat, x):
            work, asked = segment.about.work, segment.about.asked
            if work is None or asked is None:
                continue
            if set(question_text(asked).members) <= set(members):
                shared = np.mean([bytes(key) in places for key in segment.arrays["work.inputs"]] or [False])
                total += float(shared) * (work.forwards + work.backwards)
        return total

    def extend(
        self,
        threat: Threat,
        x: Tensor,
        keys: Keys,
        members: Sequence[str],
        pool: WitnessPool,
        *,
        clean: NDArray[np.bool_] | None = None,
        work: Work | None = None,
    ) -> None:
        """Add the result of a search on inputs x with addresses `keys`: a pool of these members, and the work.

        clean: bool [n, M], verdicts on the unperturbed inputs, which are kept even if no member is wrong.
        """
        rows = np.flatnonzero(pool.located)
        points, fooled = pool.points[rows], pool.fooled[rows]
        stored = x[:0].detach().cpu() if pool.x_adv is None else torch.from_numpy(pool.x_adv[rows])
        sources, checked = [pool.sources[r] for r in rows], pool.checked[rows]
        if clean is not None:
            points, fooled = np.concatenate([np.arange(len(x)), points]), np.concatenate([clean, fooled])
            stored = torch.cat([rounded(x, stored.dtype, threat), stored])
            sources = ["clean"] * len(x) + sources
            checked = np.concatenate([np.ones(len(x), dtype=bool), checked])
        if len(points) or work is not None:
            around = x[torch.from_numpy(points)]
            arrays = self._verdict_arrays(threat, around, keys[points], stored, fooled, checked, work is None)
            self._write(threat, x, members, arrays, sources, work)

    def judged(
        self,
        threat: Threat,
        x: Tensor,
        keys: Keys,
        members: Sequence[str],
        points: Tensor,
        fooled: NDArray[np.bool_],
        source: str,
    ) -> None:
        """Add confirmed verdicts [k, m] on `points` [k, ...] of inputs x [k, ...], instead of earlier ones."""
        arrays = self._verdict_arrays(threat, x, keys, points, fooled, np.ones(len(x), dtype=bool))
        self._write(threat, x, members, arrays, [source] * len(x), None)

    def prove(
        self, threat: Threat, x: Tensor, keys: Keys, members: Sequence[str], safe: NDArray[np.bool_]
    ) -> None:
        """Add certificates: `safe` [n, m] says which members no perturbation within the threat fools, by proof.

        An attack that failed proves nothing and does not belong here.
        """
        rows = np.flatnonzero(safe.any(axis=1) & (safe & ~self.proved(members, keys, x, threat)).any(axis=1))
        if not len(rows):
            return
        none = np.zeros((0, _BYTES), dtype=np.uint8)
        tensors: dict[str, NDArray[Any]] = {
            "ids": none,
            "inputs": none,
            "fooled": np.zeros((0, len(members)), dtype=np.uint8),
            "checked": np.zeros(0, dtype=np.uint8),
            "proof.inputs": keys[rows],
            "proof.safe": safe[rows].astype(np.uint8),
        }
        self._write(threat, x, members, tensors, (), None)

    def proved(self, members: Sequence[str], keys: Keys, x: Tensor, threat: Threat) -> NDArray[np.bool_]:
        """Bool [n, m]: members that a certificate for this radius or a larger one says cannot be fooled."""
        safe = np.zeros((len(keys), len(members)), dtype=bool)
        places = _places(keys)
        for segment in self._ordered(threat, x):
            if segment.about.eps < threat.eps or "proof.safe" not in segment.arrays:
                continue
            theirs, ours = _columns(segment.about.members, members)
            for key, proof in zip(segment.arrays["proof.inputs"], segment.arrays["proof.safe"], strict=True):
                for place in places.get(key.tobytes(), ()):
                    safe[place, ours] |= proof[theirs] == 1
        return safe

    def _verdict_arrays(
        self,
        threat: Threat,
        x: Tensor,
        keys: Keys,
        points: Tensor,
        fooled: NDArray[np.bool_],
        checked: NDArray[np.bool_],
        known: bool = True,
    ) -> dict[str, NDArray[Any]]:
        """Verdicts on `points` of inputs x; the points themselves are left out if `known` and all are stored."""
        ids = _ids(keys, points)
        arrays: dict[str, NDArray[Any]] = {
            "ids": ids,
            "inputs": keys,
            "fooled": fooled.astype(np.uint8),
            "checked": checked.astype(np.uint8),
        }
        if known:
            stored = {
                n
                for s in self._segments.values()
                if "distance" in s.arrays
                for n in map(bytes, s.arrays["ids"])
            }
            if stored.issuperset(map(bytes, ids)):
                return arrays
        around = x.detach().cpu()
        return {
            **arrays,
            "distance": threat.distance(points, around).numpy(),
            **_encode(points, around, threat),
        }

    def lookup(self, members: Sequence[str], keys: Keys, x_adv: Tensor) -> NDArray[np.int8]:
        """Verdicts int8 [k, m] on perturbed inputs x_adv [k, ...] of inputs with addresses `keys`; −1: unknown."""
        verdicts, _ = self._verdicts(tuple(members))
        unknown = np.full(len(members), -1, dtype=np.int8)
        found = [verdicts.get(name, unknown) for name in map(bytes, _ids(keys, x_adv))]
        return np.array(found, dtype=np.int8).reshape(-1, len(members))

    def note(self, asked: Mapping[str, Any], kind: type[Kind]) -> Kind | None:
        """What is kept under a question that is not an attack; None if there is nothing that fits `kind`."""
        path = self._note(asked)
        if self._fresh or not path.exists():
            return None
        try:
            return read_document(path, kind)
        except FileError:
            return None

    def keep_note(self, asked: Mapping[str, Any], value: Mapping[str, Any]) -> None:
        """Keep plain values under a question, as JSON."""
        write_json(self._note(asked), seal(value))

    def _note(self, asked: Mapping[str, Any]) -> Path:
        text = json.dumps({**asked, "version": __version__}, sort_keys=True)
        return (
            self.folder / "notes" / f"{hashlib.blake2b(text.encode(), digest_size=_BYTES).hexdigest()}.json"
        )

    # ---- segments ------------------------------------------------------------------------------------------------

    def _ordered(self, threat: Threat, x: Tensor) -> list[_Segment]:
        space = self._space(threat, x)
        mine = (s for s in self._segments.values() if s.path.parent == space)
        return sorted(mine, key=_age)

    def _verdicts(self, members: tuple[str, ...]) -> tuple[dict[bytes, NDArray[np.int8]], dict[bytes, bool]]:
        """By point: the last verdict of every member (−1: none), and whether all were confirmed."""
        state = (members, tuple(self._segments))
        if self._cached is None or self._cached[0] != state:
            self._cached = (state, *self._collected(members))
        return self._cached[1:]

    def _collected(self, members: tuple[str, ...]) -> tuple[dict[bytes, NDArray[np.int8]], dict[bytes, bool]]:
        found: dict[bytes, NDArray[np.int8]] = {}
        sure: dict[bytes, bool] = {}
        for segment in sorted(self._segments.values(), key=_age):
            theirs, ours = _columns(segment.about.members, members)
            if not ours:
                continue
            fooled, checked = segment.arrays["fooled"][:, theirs] != 0, segment.arrays["checked"]
            for name, verdict, again in zip(map(bytes, segment.arrays["ids"]), fooled, checked, strict=True):
                if name not in found:
                    found[name] = np.full(len(members), -1, dtype=np.int8)
                    sure[name] = bool(again)
                else:
                    sure[name] = bool(again) or (sure[name] and bool((found[name][ours] == verdict).all()))
                found[name][ours] = verdict
        return found, sure

    def _space(self, threat: Threat, x: Tensor) -> Path:
        described = json.dumps([_set_of(threat), threat.bounds, list(x.shape[1:]), str(x.dtype)])
        return self.folder / f"{threat.norm}-{hashlib.blake2b(described.encode(), digest_size=6).hexdigest()}"

    def _write(
        self,
        threat: Threat,
        x: Tensor,
        members: Sequence[str],
        tensors: dict[str, NDArray[Any]],
        sources: Sequence[str],
        work: Work | None,
    ) -> None:
        names = sorted({*sources, *(work.sources if work is not None else ())})
        place = {name: index for index, name in enumerate(names)}
        tensors["source"] = np.array([place[s] for s in sources], dtype=np.int32)
        metadata = {
            "format": _FORMAT,
            "made": str(time.time_ns()),
            "members": json.dumps(list(members)),
            "eps": repr(threat.eps),
            "sources": json.dumps(names),
        }
        if work is not None:
            tensors["work.inputs"] = work.inputs
            tensors["work.outcome"] = work.outcome.astype(np.uint8)
            tensors["work.source"] = np.array([place[s] for s in work.sources], dtype=np.int32)
            metadata["question"], metadata["asked"] = work.question.key, work.question.text
            spent = {"forwards": work.forwards, "backwards": work.backwards, "seconds": work.seconds}
            flags = {name: list(values) for name, values in work.flags.items()}
            metadata["work"] = json.dumps({**spent, "flags": flags})
        # Copies, because safetensors writes the whole buffer behind a view.
        tensors = {name: np.array(array, order="C") for name, array in tensors.items()}
        checksum = metadata["checksum"] = tensor_checksum(tensors, metadata)
        if not (self.folder / "store.json").exists():
            write_json(self.folder / "store.json", {"format": _FORMAT})
        path = self._space(threat, x) / f"{checksum[:32]}.safetensors"
        write_atomic(path, safetensors.numpy.save(tensors, metadata))
        self._segments[path.name] = _segment(path, tensors, metadata)
        self._drop_oldest(path)

    def _read(self, path: Path) -> _Segment | None:
        """Read a segment and check it; a damaged one is renamed, and a message is kept."""
        try:
            tensors, metadata = read_tensors(path, "witnesses")
        except FileError:
            if not path.exists():
                return None  # dropped by another process since the folder was listed
            tensors, metadata = {}, {}
        found = metadata.get("format", "")
        if found.startswith("randens-witness-store-") and found != _FORMAT:
            raise FileError(f"{path} was written by a newer version, as {found}; this one reads {_FORMAT}")
        if found == _FORMAT and metadata.get("checksum") == tensor_checksum(tensors, metadata):
            with contextlib.suppress(FileError):
                return _segment(path, tensors, metadata)
        with contextlib.suppress(OSError):
            os.replace(path, path.with_suffix(".damaged"))
        self.notes.append(
            f"{path} was damaged and is set aside; what it held is found again when it is asked for"
        )
        return None

    def _points(self, segment: _Segment, rows: list[int], x: Tensor, threat: Threat) -> Tensor:
        tensors, _ = read_tensors(segment.path, "witnesses")
        return _decode(tensors, rows, x.detach().cpu(), threat.with_radius(segment.about.eps))

    def _files(self) -> list[tuple[float, int, Path]]:
        """(time written, bytes, path) of every segment on disk."""
        found = []
        for path in self.folder.glob("*/*.safetensors"):
            with contextlib.suppress(FileNotFoundError):
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
        return sorted(found)

    def _drop_oldest(self, newest: Path) -> None:
        files = self._files()
        over = sum(bytes_ for _, bytes_, _ in files) - self.limit
        for _, bytes_, path in files:
            if over <= 0:
                return
            if path != newest:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                self._segments.pop(path.name, None)
                over -= bytes_


def as_store(folder: WitnessStore | str | os.PathLike[str] | None) -> WitnessStore | None:
    """The store that a function was given, or the store in the folder that it was given."""
    return folder if isinstance(folder, WitnessStore) or folder is None else WitnessStore(folder)


def _segment(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> _Segment:
    about = segment_document(tensors, metadata)
    points = ("codes", "rest", "others", "kind")
    return _Segment(path, about, {name: array for name, array in tensors.items() if name not in points})


def _age(segment: _Segment) -> tuple[int, str]:
    return segment.about.made, segment.path.name


def _columns(theirs: Sequence[str], ours: Sequence[str]) -> tuple[list[int], list[int]]:
    """The columns of members that both know: theirs, and ours in the same order."""
    common = [(theirs.index(name), index) for index, name in enumerate(ours) if name in theirs]
    return [one for one, _ in common], [other for _, other in common]


def _places(keys: Keys) -> dict[bytes, list[int]]:
    """By address: where it is among `keys`; an input may be there several times."""
    places: dict[bytes, list[int]] = {}
    for position, key in enumerate(keys):
        places.setdefault(key.tobytes(), []).append(position)
    return places


def _ids(inputs: Keys, points: Tensor) -> Keys:
    """Addresses [k, 16] of perturbed inputs: of the input and of every value."""
    rows = points.detach().cpu().contiguous().numpy()
    words: Iterable[bytes] = (
        hashlib.blake2b(key.tobytes() + row.tobytes(), digest_size=_BYTES).digest()
        for key, row in zip(inputs, rows, strict=True)
    )
    return np.frombuffer(b"".join(words), dtype=np.uint8).reshape(-1, _BYTES)


# ---- perturbed inputs, to the last bit ---------------------------------------------------------------------------


def _encode(points: Tensor, x: Tensor, threat: Threat) -> dict[str, NDArray[Any]]:
    """Encode perturbed inputs [k, ...]: a coordinate is the input's own, its lowest or highest, or another value.

    Other values are stored as differences of their bits from the input's, byte by byte. Both parts are
    compressed.
    """
    values = points.flatten(1).contiguous().numpy()
    base, low, high = _corners(x, points.dtype, threat)
    bits = values.view(_integers(values))
    codes = np.full(values.shape, _OTHER, dtype=np.uint8)
    for code, corner in ((_HIGH, high), (_LOW, low), (_SAME, base)):
        codes[bits == corner] = code
    other = codes == _OTHER
    with np.errstate(over="ignore"):
        rest = np.ascontiguousarray(bits[other] - base[other])
    shuffled = rest.view(np.uint8).reshape(len(rest), -1).T if len(rest) else rest.view(np.uint8)
    return {
        "codes": np.frombuffer(zlib.compress(codes.tobytes(), 1), dtype=np.uint8),
        "rest": np.frombuffer(zlib.compress(np.ascontiguousarray(shuffled).tobytes(), 1), dtype=np.uint8),
        "others": other.sum(axis=1).astype(np.int64),
        "kind": np.zeros(0, dtype=values.dtype),
    }


def _decode(tensors: Mapping[str, NDArray[Any]], rows: Sequence[int], x: Tensor, threat: Threat) -> Tensor:
    """The inverse of `_encode` for some rows; x [k, ...] are their inputs."""
    kind = tensors["kind"].dtype
    base, low, high = _corners(x, torch.from_numpy(np.zeros(0, dtype=kind)).dtype, threat)
    counts = tensors["others"]
    codes = _inflated(tensors["codes"], counts.size * base.shape[1]).reshape(len(counts), -1)
    if not np.array_equal(counts, (codes == _OTHER).sum(axis=1)):
        raise FileError("the points of a segment do not agree with its counts; the file was altered")
    total = int(counts.sum())
    shuffled = _inflated(tensors["rest"], total * base.itemsize)
    rest = (
        np.ascontiguousarray(shuffled.reshape(-1, total).T).view(base.dtype).reshape(-1)
        if total
        else base[:0, 0]
    )
    starts = np.concatenate([[0], np.cumsum(counts)])
    chosen = codes[list(rows)]
    bits = np.select([chosen == _SAME, chosen == _LOW, chosen == _HIGH], [base, low, high])
    other = chosen == _OTHER
    wanted = [rest[starts[r] : starts[r + 1]] for r in rows]
    with np.errstate(over="ignore"):
        bits[other] = np.concatenate(wanted) + base[other]
    return torch.from_numpy(np.ascontiguousarray(bits).view(kind)).reshape(x.shape)


def _inflated(packed: NDArray[Any], size: int) -> NDArray[np.uint8]:
    """Unpack exactly `size` bytes; a forged file that unpacks to more does not use more memory."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(packed.tobytes(), size + 1)
    except zlib.error as error:
        raise FileError(
            f"the points of a segment cannot be unpacked ({error}); the file was altered"
        ) from error
    if len(found) != size:
        raise FileError(f"the points of a segment unpack to another size than {size} bytes; it was altered")
    return np.frombuffer(found, dtype=np.uint8)


def _set_of(threat: Threat) -> str | list[Any]:
    """What sets of one space have in common: the norm, and for a union the radii, too.

    Points of one ball answer for every radius that holds them; scaling a union's radii would round them.
    """
    return threat.norm


def rounded(x: Tensor, dtype: torch.dtype, threat: Threat) -> Tensor:
    """Inputs in another precision, clipped to the box, which rounding may leave."""
    moved = x.detach().cpu().to(dtype)
    return moved if threat.bounds is None or dtype == x.dtype else moved.clamp(*threat.bounds)


def _corners(
    x: Tensor, dtype: torch.dtype, threat: Threat
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The bits of the inputs in the points' precision, and of their smallest and largest legal neighbours."""
    base = rounded(x, dtype, threat)
    # The corners must come out bit for bit when they are read; those of a union scaled to its old radius would not.
    low, high = threat.interval(base)
    flat = [t.flatten(1).contiguous().numpy() for t in (base, low, high)]
    return tuple(f.view(_integers(f)) for f in flat)  # type: ignore[return-value]


def _integers(values: NDArray[Any]) -> np.dtype[Any]:
    return np.dtype(f"i{values.dtype.itemsize}")
