"""Models of the files of a witness store: metadata of segments, and the shapes of their arrays.

A checksum detects a damaged file. These models check that a file with a valid checksum is a segment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from randens.core.documents import Document, fitted
from randens.core.errors import FileError
from randens.core.files import parse_json

__all__ = [
    "KEY_BYTES",
    "PoolDocument",
    "QuestionDocument",
    "SegmentDocument",
    "StoreDocument",
    "pool_document",
    "question_text",
    "segment_document",
]

KEY_BYTES = 16
"""Bytes of a content address: enough that two contents never have the same."""
_MEMBERS = 100_000
_POINTS = ("codes", "rest", "others", "kind", "distance")

_Passes = Annotated[int, Field(ge=0, lt=1 << 62)]
_Names = Annotated[list[str], Field(max_length=_MEMBERS)]


class StoreDocument(Document):
    """store.json."""

    format: str


class QuestionDocument(Document):
    """A question, as `Question.text` writes it."""

    attack: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    eps: Annotated[float, Field(gt=0)] | None = None
    alone: bool = False
    members: _Names
    probs: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(max_length=_MEMBERS)]


class _Spent(Document):
    forwards: _Passes
    backwards: _Passes
    seconds: Annotated[float, Field(ge=0)]
    flags: dict[str, Annotated[list[float], Field(max_length=_MEMBERS)]]


class SegmentDocument(Document):
    """The metadata of a segment."""

    made: Annotated[int, Field(ge=0, lt=1 << 64)]
    members: _Names
    eps: Annotated[float, Field(gt=0)]
    sources: _Names
    question: str | None = None
    asked: str | None = None
    work: _Spent | None = None


class PoolDocument(Document):
    """The metadata of a pool in one file, with the names of its sources in their order."""

    n: Annotated[int, Field(ge=0, lt=1 << 40)]
    members: Annotated[int, Field(ge=1, le=_MEMBERS)]
    sources: list[str]


def pool_document(
    tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str], source: Path
) -> PoolDocument:
    """Return the metadata of a pool after comparing it with its arrays; a `FileError` names the file."""
    try:
        names = [metadata[f"source.{i}"] for i in range(sum(k.startswith("source.") for k in metadata))]
        counts = {key: _parsed(metadata[key]) for key in ("n", "members")}
    except KeyError as error:
        raise FileError(f"{source} is damaged or of another version: it has no entry {error}") from error
    found = fitted(PoolDocument, {**counts, "sources": names}, source)
    rows = _rows(tensors, "points")
    try:
        _expect(tensors, "points", np.int64, (rows,))
        _expect(tensors, "fooled", np.uint8, (rows, found.members))
        _places(tensors, "source", rows, len(names), np.int64)
        if rows and not (tensors["points"].min() >= 0 and tensors["points"].max() < found.n):
            raise FileError(f"points must be numbers of its {found.n} inputs")
        if "located" in tensors:
            _expect(tensors, "located", np.uint8, (rows,))
        if "x_adv" in tensors and (tensors["x_adv"].dtype.kind != "f" or _rows(tensors, "x_adv") != rows):
            raise FileError(f"x_adv must be {rows} perturbed inputs of floating-point type")
    except FileError as error:
        raise FileError(f"{source} is damaged or of another version: {error}") from None
    return found


def question_text(text: str) -> QuestionDocument:
    """A question from its canonical JSON, whose options may hold infinite numbers."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError("a question of the witness store is not JSON") from error
    return fitted(QuestionDocument, plain, "a question of the witness store")


def segment_document(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> SegmentDocument:
    """The metadata of a segment, compared with its arrays; a `FileError` says what is wrong."""
    json_keys = ("members", "sources", "work", "made", "eps")
    plain = {key: _parsed(text) if key in json_keys else text for key, text in metadata.items()}
    found = fitted(SegmentDocument, plain, "a segment of the witness store")
    if found.asked is not None:
        question_text(found.asked)
    rows, width, names = _rows(tensors, "ids"), len(found.members), len(found.sources)
    _expect(tensors, "ids", np.uint8, (rows, KEY_BYTES))
    _expect(tensors, "inputs", np.uint8, (rows, KEY_BYTES))
    _expect(tensors, "fooled", np.uint8, (rows, width))
    _expect(tensors, "checked", np.uint8, (rows,))
    _places(tensors, "source", rows, names)
    if any(name in tensors for name in _POINTS):
        _points(tensors, rows)
    if any(name in tensors for name in ("proof.inputs", "proof.safe")):
        proofs = _rows(tensors, "proof.inputs")
        _expect(tensors, "proof.inputs", np.uint8, (proofs, KEY_BYTES))
        _expect(tensors, "proof.safe", np.uint8, (proofs, width))
    if found.work is not None:
        if found.asked is None or found.question is None:
            raise FileError("a segment tells what was spent, but not on which question")
        asked = len(question_text(found.asked).members)
        spent = _rows(tensors, "work.inputs")
        _expect(tensors, "work.inputs", np.uint8, (spent, KEY_BYTES))
        _expect(tensors, "work.outcome", np.uint8, (spent, asked))
        _places(tensors, "work.source", spent, names)
        if any(len(values) != asked for values in found.work.flags.values()):
            raise FileError(f"flags of a segment must have {asked} numbers, one per member")
    return found


def _points(tensors: Mapping[str, NDArray[Any]], rows: int) -> None:
    _expect(tensors, "distance", np.float64, (rows,))
    _expect(tensors, "others", np.int64, (rows,))
    for name in ("codes", "rest"):
        _expect(tensors, name, np.uint8, (_rows(tensors, name),))
    if tensors["others"].size and tensors["others"].min() < 0:
        raise FileError("a segment counts fewer than no coordinates")
    kind = tensors.get("kind")
    if kind is None or kind.dtype.kind != "f" or kind.dtype.itemsize not in (2, 4, 8):
        raise FileError("a segment does not say in which floating-point type its points are")


def _places(
    tensors: Mapping[str, NDArray[Any]], name: str, rows: int, names: int, dtype: Any = np.int32
) -> None:
    _expect(tensors, name, dtype, (rows,))
    if rows and not (tensors[name].min() >= 0 and tensors[name].max() < names):
        raise FileError(f"{name} must hold places in its list of {names} sources")


def _rows(tensors: Mapping[str, NDArray[Any]], name: str) -> int:
    found = tensors.get(name)
    return 0 if found is None or found.ndim == 0 else len(found)


def _expect(tensors: Mapping[str, NDArray[Any]], name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    found = tensors.get(name)
    if found is None or found.dtype != dtype or found.shape != shape:
        said = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
        raise FileError(f"{name} {said}; it must be {np.dtype(dtype).name} {list(shape)}")


def _parsed(text: str) -> Any:
    try:
        return parse_json(text.encode())
    except ValueError as error:
        raise FileError(f"a segment of the witness store holds {text[:40]!r}, which is not JSON") from error
