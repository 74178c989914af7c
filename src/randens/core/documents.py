"""Documents on disk: the content of a file is validated against a model before it is used.

`Document` is the base of all models: strict types (no text for a number, no true for 1) and finite numbers.
Unknown entries are ignored, so that a file of a later version can be read. Depth and size are limited by
`randens.core.files.read_json`. A document that does not fit is a `FileError` that names the file and the entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from randens.core.errors import FileError
from randens.core.files import check_seal, read_json

__all__ = [
    "Digest",
    "Document",
    "Kind",
    "Probabilities",
    "RunManifest",
    "ThreatDocument",
    "fitted",
    "first_fault",
    "read_document",
]

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Probabilities = Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=100_000)]


class Document(BaseModel):
    """The base of everything read from disk."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return self.model_dump(mode="json")


class ThreatDocument(Document):
    """A threat as `randens.Threat.to_dict` writes it."""

    norm: str
    eps: Annotated[float, Field(gt=0)]
    bounds: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    parts: Annotated[list[ThreatDocument], Field(min_length=1, max_length=100)] | None = None

    def plain(self) -> dict[str, Any]:
        """The dictionary that was read."""
        return self.model_dump(exclude_unset=True)


class RunManifest(Document):
    """The required entries of manifest.json; commands add their own."""

    created: str | None = None
    command: list[str] | None = None
    versions: dict[str, str] | None = None
    git_commit: str | None = None
    kind: str | None = None
    seed: int | None = None
    recipe: dict[str, Any] | None = None
    earlier_recipes: list[dict[str, Any]] | None = None
    chosen_on: dict[str, str] | None = None


Kind = TypeVar("Kind", bound=BaseModel)


def fitted(kind: type[Kind], value: Any, source: str | os.PathLike[str]) -> Kind:
    """Validate `value`, plain JSON values, as a document of this kind; `source` is named in the error."""
    try:
        return kind.model_validate(value)
    except (ValidationError, RecursionError) as error:
        raise FileError(f"{source} is damaged or of another version: {first_fault(error)}") from error


def read_document(path: str | os.PathLike[str], kind: type[Kind]) -> Kind:
    """The document in a file, its checksum verified if it has one."""
    value = read_json(path)
    check_seal(value, path)
    return fitted(kind, value, path)


def first_fault(error: Exception, whole: str = "the document") -> str:
    """Return the first error, as ``entry: reason``, without the values; `whole` is the name of the whole."""
    if not isinstance(error, ValidationError):
        return "it is nested too deep"
    found: Iterable[Mapping[str, Any]] = error.errors(
        include_url=False, include_input=False, include_context=False
    )
    # Another format explains all other errors.
    first = min(found, key=lambda fault: fault["loc"] != ("format",))
    where = ".".join(str(part)[:40] for part in first["loc"]) or whole
    return f"{where}: {first['msg'][:200]}"
