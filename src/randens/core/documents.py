"""Documents on disk: the content of a file is validated against a model before it is used.

Types are strict (no text for a number, no true for 1) and numbers finite. Unknown entries are ignored, so that a file
of a later version can be read.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from randens.core.errors import FileError

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Probabilities = Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=100_000)]
Kind = TypeVar("Kind", bound=BaseModel)


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


class RunManifest(Document):
    """The entries of manifest.json that are read; commands add their own."""

    created: str | None = None
    command: list[str] | None = None
    versions: dict[str, str] | None = None
    git_commit: str | None = None
    kind: str | None = None
    seed: int | None = None
    recipe: dict[str, Any] | None = None
    earlier_recipes: list[dict[str, Any]] | None = None
    chosen_on: dict[str, str] | None = None


def fitted(kind: type[Kind], value: Any, source: str | os.PathLike[str]) -> Kind:
    """Validate `value`, plain JSON values, as a document of this kind; `source` is named in the error."""
    try:
        return kind.model_validate(value)
    except (ValidationError, RecursionError) as error:
        raise FileError(f"{source} is damaged or of another version: {first_fault(error)}") from error


def first_fault(error: Exception) -> str:
    """The first error, as ``entry: reason``, without the values."""
    if not isinstance(error, ValidationError):
        return "it is nested too deep"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"]) or "the document"
    return f"{where}: {first['msg'].partition(', unable')[0][:200]}"
