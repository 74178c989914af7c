"""Models of the files behind a card of the zoo; an entry with invalid files is refused when it is opened."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from randens.core.documents import Document, Probabilities

__all__ = ["EntryManifest", "EntryTraining"]

_Count = Annotated[int, Field(ge=0, lt=1 << 53)]
_Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Named(Document):
    name: _Name


class _Radius(Document):
    norm: _Name
    eps: Annotated[float, Field(gt=0)]


class _Optimizer(Document):
    lr: float
    later_lr: float | None = None
    weight_decay: float


class _Adversary(_Named):
    steps: _Count


class _Sampling(Document):
    floor: Annotated[float, Field(ge=0)]


class _Validation(Document):
    size: _Count | None = None


class _Recipe(Document):
    method: _Name
    members: Annotated[int, Field(ge=1, le=100_000)]
    epochs: _Count
    later_epochs: _Count | None = None
    batch_size: Annotated[int, Field(ge=1, lt=1 << 31)]
    ema: float
    start: str
    first: _Name | list[_Name] | None = None
    model: _Named
    data: _Named
    threat: _Radius
    optimizer: _Optimizer
    adversary: _Adversary
    loss: _Named
    schedule: _Named
    sampling: _Sampling
    validation: _Validation


class EntryManifest(Document):
    """manifest.json of an entry: the recipe with every default written out, and what it was made with."""

    recipe: _Recipe
    versions: dict[str, str]
    command: list[str] | None = None
    seed: int | None = None
    git_commit: str | None = None


class _Cost(Document):
    forwards: _Count
    backwards: _Count
    seconds: Annotated[float, Field(ge=0)]


class _Validated(Document):
    images: _Count
    attack: str


class EntryTraining(Document):
    """training.json of an entry."""

    members: Annotated[int, Field(ge=1, le=100_000)]
    probs: Probabilities
    cost: _Cost
    validation: _Validated
