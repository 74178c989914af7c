"""Models of this room's documents; an invalid document is refused before it is used."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from randens.core.documents import Digest, Document, Probabilities, ThreatDocument

__all__ = ["ConflictNote", "EvaluationDocument", "SamplingDocument"]

Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Word = Annotated[str, Field(pattern=r"^[01]*$")]


class _Cost(Document):
    forwards: Count
    backwards: Count
    seconds: float


class _Points(Document):
    clean: list[Word]
    worst: list[Word]
    foolable: list[Word]
    source_names: list[str]
    sources: list[Count]
    deterministic_clean: Word | None
    deterministic_worst: Word | None


class _Conflict(Document):
    reach: float | None
    pairs: list[list[float | None]]
    unusable: list[float]
    n: Count


class _Passes(Document):
    forwards: Count
    backwards: Count


class ConflictNote(Document):
    """The entry of a witness store about the members' gradients."""

    conflict: _Conflict
    cost: _Passes

    @model_validator(mode="after")
    def _square(self) -> ConflictNote:
        members = len(self.conflict.unusable)
        if [len(row) for row in self.conflict.pairs] != [members] * members or self.conflict.n > 10**8:
            raise ValueError(f"pairs must be a table of {members} × {members}, on at most 10^8 inputs")
        return self


class _Summary(Document):
    """Measured numbers that cannot be computed again from the verdicts."""

    conflict: _Conflict | None = None


class _Flags(Document):
    unstable: Annotated[float, Field(ge=0, le=1)] = 0.0
    gradients: dict[str, dict[str, list[Annotated[float, Field(ge=0, le=1)]]]] = Field(default_factory=dict)


class EvaluationDocument(Document):
    """evaluation.json."""

    version: str
    ensemble: Digest
    probs: Probabilities
    also: dict[str, Probabilities]
    data: str
    split: str
    classes: Annotated[int, Field(ge=1)]
    chosen_on: dict[str, str]
    threat: ThreatDocument
    attacks: list[dict[str, Any]]
    flops: list[Count]
    cost: _Cost
    confidence: Annotated[float, Field(gt=0, lt=1)]
    flags: _Flags
    summary: _Summary = _Summary()
    notes: list[str] = Field(default_factory=list)
    profile: dict[str, Any]
    points: _Points

    @model_validator(mode="after")
    def _agree(self) -> EvaluationDocument:
        members, points = len(self.probs), self.points
        n = len(points.clean)
        if any(len(probs) != members for probs in self.also.values()):
            raise ValueError(f"also: every entry must have {members} probabilities")
        if len(self.flops) != members:
            raise ValueError(f"flops: there must be {members}, one for each member")
        if n < 1 or len(points.worst) != n or len(points.foolable) != n or len(points.sources) != n:
            raise ValueError("points: there must be as many inputs in every list, at least one")
        if any(
            len(word) != members for words in (points.clean, points.worst, points.foolable) for word in words
        ):
            raise ValueError(f"points: every input must have {members} verdicts")
        if any(source >= len(points.source_names) for source in points.sources):
            raise ValueError("points: a source has no name")
        for word in (points.deterministic_clean, points.deterministic_worst):
            if word is not None and len(word) != n:
                raise ValueError(f"points: there must be {n} verdicts of the deterministic ensemble")
        if (points.deterministic_clean is None) != (points.deterministic_worst is None):
            raise ValueError(
                "points: the deterministic ensemble has verdicts with and without attack, or none"
            )
        return self


class SamplingDocument(Document):
    """The entries of sampling.json that evaluations use."""

    probs: Probabilities
    split: str = "unknown"
