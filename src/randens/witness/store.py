"""Witnesses on disk: one SQLite file, which every command of a run reads and extends.

points    a perturbed input: its input, the norm and box, its distance, its bits, the attack that found it
verdicts  whether a point fools a member
searches  the risk that a search (attack, options, radius, members, α) reached on an input, and what it took
notes     other results, by what they are about

Everything is addressed by content: other members, inputs or boxes are simply not matched. A point answers for
every radius from its distance on, and for every ensemble that has members with verdicts on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randens.core.errors import FileError, PathLike, typed
from randens.core.files import parse_json
from randens.threat import Threat
from randens.witness.fingerprints import digest

__all__ = ["Scope", "Spent", "WitnessStore"]

_SCHEMA = (
    "CREATE TABLE points (id BLOB UNIQUE NOT NULL, input BLOB NOT NULL, threat TEXT NOT NULL, "
    "distance REAL NOT NULL, bits BLOB NOT NULL, source TEXT NOT NULL)",
    "CREATE INDEX points_of_input ON points (input)",
    "CREATE TABLE verdicts (point BLOB, member BLOB, fooled INTEGER NOT NULL, PRIMARY KEY (point, member)) "
    "WITHOUT ROWID",
    "CREATE TABLE searches (input BLOB, search BLOB, risk REAL NOT NULL, forwards REAL NOT NULL, "
    "backwards REAL NOT NULL, flags TEXT NOT NULL, PRIMARY KEY (input, search)) WITHOUT ROWID",
    "CREATE TABLE notes (key BLOB PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)
Noted = TypeVar("Noted")
_WAIT = 120.0  # seconds that a process waits for the transaction of another one


@dataclass(frozen=True)
class Scope:
    """What a question to the store is about: inputs with their keys, the keys of the members in order, the threat."""

    x: Tensor
    inputs: Sequence[bytes]
    members: Sequence[bytes]
    threat: Threat


@dataclass(frozen=True)
class Spent:
    """A search of some inputs (by row): the risks that it reached, its passes, and flags by name and member."""

    rows: NDArray[np.int64]
    risks: NDArray[np.float64]
    forwards: float = 0.0
    backwards: float = 0.0
    flags: Mapping[str, Sequence[float]] = field(default_factory=dict)


class WitnessStore:
    """Witnesses and searches of earlier calls, in ``witnesses.sqlite`` of a folder.

    Several processes may use it at once. Every batch is added in one transaction, so a killed process loses at most the
    batch under way. `path` is a folder, or a file that ends in ``.sqlite``; it is made when it is first used. With
    `fresh`, what is stored is ignored; with `verify`, evaluations score it again by forward passes of the members.
    """

    @typed(path=PathLike)
    def __init__(self, path: str | os.PathLike[str], *, fresh: bool = False, verify: bool = False) -> None:
        given = Path(path)
        self.path = given if given.suffix == ".sqlite" else given / "witnesses.sqlite"
        self.fresh, self.verify = fresh, verify

    def load(self, scope: Scope) -> tuple[NDArray[np.int64], NDArray[np.int8], Tensor, list[str]]:
        """Rows, verdicts (-1: unknown), points and sources of all that fools any member within the threat."""
        found: list[tuple[bytes, int, bytes, str]] = []
        known: dict[bytes, list[int]] = {}
        points = around = scope.x[:0]
        if not self.fresh:
            with self._open(scope.inputs) as db:
                known = self._known(db, scope)
                found = db.execute(
                    "SELECT id, row, bits, source FROM wanted JOIN points USING (input) WHERE threat = ? AND "
                    "distance <= ? AND EXISTS (SELECT 1 FROM verdicts WHERE point = id AND fooled) "
                    "ORDER BY points.rowid, row",
                    (_family(scope.threat), scope.threat.eps),
                ).fetchall()
                around = scope.x[[entry[1] for entry in found]]
                points = _unpack([entry[2] for entry in found], around)
        # The query compares distances; the box is checked here.
        legal = scope.threat.contains(points, around).numpy()
        nothing = [-1] * len(scope.members)
        verdicts = np.array([known.get(entry[0], nothing) for entry in found], dtype=np.int8)
        rows = np.array([entry[1] for entry in found], dtype=np.int64)
        sources = [str(entry[3]) for entry, good in zip(found, legal, strict=True) if good]
        verdicts = verdicts.reshape(-1, len(nothing))[legal]
        return rows[legal], verdicts, points[torch.from_numpy(legal)], sources

    def verdicts(self, scope: Scope, rows: NDArray[np.int64], x_adv: Tensor) -> NDArray[np.int8]:
        """What is stored about points [k, ...] of some inputs: int8 [k, M], -1 where nothing is."""
        nothing = [-1] * len(scope.members)
        known: dict[bytes, list[int]] = {}
        if not self.fresh:
            with self._open(scope.inputs) as db:
                known = self._known(db, scope)
        found = [known.get(point, nothing) for point in _point_keys(scope, rows, x_adv)]
        return np.array(found, dtype=np.int8).reshape(-1, len(nothing))

    def searched(self, scope: Scope) -> dict[bytes, Spent]:
        """What every search that met these inputs has reached and taken there."""
        lines: dict[bytes, list[tuple[Any, ...]]] = {}
        found: dict[bytes, Spent] = {}
        if self.fresh:
            return found
        with self._open(scope.inputs) as db:
            columns = "search, row, risk, forwards, backwards, flags"
            for search, *line in db.execute(f"SELECT {columns} FROM wanted JOIN searches USING (input)"):
                lines.setdefault(search, []).append(tuple(line))
            for search, entries in lines.items():
                rows, *numbers, flags = zip(*entries, strict=True)
                reached, forwards, backwards = np.array(numbers, dtype=np.float64)
                if not all(0 <= number <= 1 << 53 for column in numbers for number in column):
                    raise ValueError("it holds numbers that no search has")
                shares = [parse_json(text) for text in flags]
                mean = {name: np.mean([part[name] for part in shares], axis=0).tolist() for name in shares[0]}
                found[search] = Spent(np.array(rows), reached, sum(forwards), sum(backwards), mean)
        return found

    def add(
        self,
        scope: Scope,
        rows: NDArray[np.int64],
        x_adv: Tensor,
        verdicts: NDArray[np.bool_],
        sources: Sequence[str],
        search: bytes = b"",
        spent: Spent | None = None,
    ) -> None:
        """Add points [k, ...] of some inputs with the verdicts [k, M] of all members, and the search behind them."""
        around = scope.x[torch.from_numpy(rows)]
        keys, inputs = _point_keys(scope, rows, x_adv), [scope.inputs[row] for row in rows.tolist()]
        families, distances = [_family(scope.threat)] * len(rows), scope.threat.distance(x_adv, around)
        points = zip(keys, inputs, families, distances.tolist(), _pack(x_adv, around), sources, strict=True)
        lines = [
            (key, member, int(fooled))
            for key, line in zip(keys, verdicts.tolist(), strict=True)
            for member, fooled in zip(scope.members, line, strict=True)
        ]
        with self._open() as db:
            db.executemany("INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?, ?, ?)", points)
            db.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", lines)
            if spent is not None:
                count, flags = max(1, len(spent.rows)), json.dumps(dict(spent.flags))
                taken = (spent.forwards / count, spent.backwards / count, flags)
                reached = zip(spent.rows.tolist(), spent.risks.tolist(), strict=True)
                entries = [(scope.inputs[row], search, risk, *taken) for row, risk in reached]
                db.executemany("INSERT OR REPLACE INTO searches VALUES (?, ?, ?, ?, ?, ?)", entries)

    def note(self, key: bytes, read: Callable[[Any], Noted]) -> Noted | None:
        """What `read` makes of the JSON value that was noted under a key; None if there is none."""
        if self.fresh:
            return None
        with self._open() as db:
            found = db.execute("SELECT value FROM notes WHERE key = ?", (key,)).fetchone()
            return None if found is None else read(parse_json(found[0]))

    def add_note(self, key: bytes, value: Any) -> None:
        """Note a JSON value."""
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (key, json.dumps(value)))

    @contextlib.contextmanager
    def _open(self, inputs: Sequence[bytes] = ()) -> Iterator[sqlite3.Connection]:
        """A connection in one transaction, with a table of the `inputs` in question; what is wrong is one sentence."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for file in (self.path, Path(f"{self.path}-journal"), Path(f"{self.path}-wal")):
                if file.exists() and not file.is_file():  # SQLite would wait for a pipe's writer
                    raise ValueError(f"{file.name} is no regular file")
            with contextlib.closing(sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                own = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
                found = [row[0] for row in db.execute(own)]
                # No view or trigger either: from elsewhere they could run for ever.
                if found and found != list(_SCHEMA):
                    raise ValueError("its tables are not those that this version of randens makes")
                for statement in () if found else _SCHEMA:
                    db.execute(statement)
                db.execute("CREATE TEMP TABLE wanted (row INTEGER PRIMARY KEY, input BLOB)")
                db.executemany("INSERT INTO wanted VALUES (?, ?)", enumerate(inputs))
                yield db
                db.execute("COMMIT")
        except Exception as error:  # altered entries make nearly anything fail
            raise FileError(f"{self.path} cannot be used as a witness store: {error}") from error

    def _known(self, db: sqlite3.Connection, scope: Scope) -> dict[bytes, list[int]]:
        """The verdicts of the members on all points of the inputs; -1 where one of them is not stored."""
        columns: dict[bytes, list[int]] = {}  # equal members share a key
        for column, key in enumerate(scope.members):
            columns.setdefault(key, []).append(column)
        found: dict[bytes, list[int]] = {}
        query = (
            "SELECT DISTINCT point, member, fooled FROM wanted JOIN points USING (input) JOIN verdicts ON point = id "
            f"WHERE member IN ({', '.join('?' * len(columns))})"
        )
        for point, member, fooled in db.execute(query, tuple(columns)):
            line = found.setdefault(point, [-1] * len(scope.members))
            for column in columns[member]:
                line[column] = int(bool(fooled))
        return found


def _family(threat: Threat) -> str:
    """A threat without its radius."""
    return f"{threat.norm} {threat.bounds}"


def _point_keys(scope: Scope, rows: NDArray[np.int64], x_adv: Tensor) -> list[bytes]:
    points = zip(rows.tolist(), x_adv.detach().cpu().contiguous().numpy(), strict=True)
    return [digest(scope.inputs[row], point.tobytes()) for row, point in points]


def _bits(values: Tensor) -> NDArray[Any]:
    """Floating-point numbers [k, ...] as whole numbers [k, d]: neighbors differ by one."""
    flat = values.detach().cpu().contiguous().flatten(1).numpy()
    return flat.view(f"i{flat.dtype.itemsize}")


def _pack(x_adv: Tensor, x: Tensor) -> list[bytes]:
    """Points as compressed differences to their inputs, byte by byte: the high bytes are mostly zero."""
    apart = _bits(x_adv.to(x.dtype)) - _bits(x)
    octets = apart.view(np.uint8).reshape(*apart.shape, apart.dtype.itemsize)
    return [zlib.compress(np.ascontiguousarray(point.T).tobytes(), 3) for point in octets]


def _unpack(packed: Sequence[bytes], x: Tensor) -> Tensor:
    """Inverse of `_pack`."""
    start = _bits(x)
    width, size = start.shape[1], start.dtype.itemsize
    # Bounded, because a few bytes may unpack to gigabytes.
    octets = [zlib.decompressobj().decompress(point, size * width) for point in packed]
    parts = [np.frombuffer(point, dtype=np.uint8).reshape(size, width).T for point in octets]
    apart = np.array(parts, dtype=np.uint8).reshape(len(x), width * size).view(start.dtype)
    return torch.from_numpy((start + apart).view(x.numpy().dtype)).reshape(x.shape)
