"""Checks before an evaluation: inputs with labels, and the ensemble's fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from randens.core.errors import InputError
from randens.data import ImageData
from randens.ensemble import RandomizedEnsemble, evaluating

__all__ = ["Data", "Labelled", "as_image_data", "fingerprint", "labelled"]

Data: TypeAlias = ImageData | tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
"""Images that know their split, a pair (x, y), or a loader of such pairs."""

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Labelled:
    """n inputs with labels in memory. `split` is "unknown" for data that do not say where they come from."""

    x: Tensor
    y: Tensor
    name: str
    split: str

    def __len__(self) -> int:
        return len(self.y)


def labelled(data: Data, rec: RandomizedEnsemble) -> Labelled:
    """Convert `data` to tensors that fit `rec`; other shapes or class counts, or missing labels, are refused.

    A loader is read once, so that every sweep over the inputs has the same order.
    """
    if not isinstance(rec, RandomizedEnsemble):
        raise InputError(f"rec is a {type(rec).__name__}; give a RandomizedEnsemble")
    if isinstance(data, ImageData):
        found = Labelled(data.x, data.y, data.name, data.split)
    elif isinstance(data, tuple):
        found = Labelled(*_pair(data, "data"), "tensors", UNKNOWN)
    else:
        found = _read(data)
    if len(found.x) != len(found.y):
        raise InputError(
            f"data has {len(found.x)} inputs and {len(found.y)} labels; there must be as many of both"
        )
    if not len(found):
        raise InputError("data is empty; give at least one input")
    _fits(found, rec, len(data.classes) if isinstance(data, ImageData) else None)
    return found


def as_image_data(data: Data, rec: RandomizedEnsemble) -> ImageData:
    """`data` with class names: the ensemble's own, or numbers."""
    if isinstance(data, ImageData):
        return data
    found = labelled(data, rec)
    with evaluating(rec), torch.no_grad():
        count = rec.logits(found.x[:1].to(rec.device)).shape[2]
    return ImageData(found.x, found.y, rec.classes or tuple(map(str, range(count))), found.name, found.split)


def fingerprint(rec: RandomizedEnsemble) -> str:
    """SHA-256 over the members' weights: two ensembles with the same fingerprint give the same answers."""
    digest = hashlib.sha256()
    for index, member in enumerate(rec.members):
        for key, value in member.state_dict().items():
            digest.update(f"{index} {key} {tuple(value.shape)} {value.dtype}\n".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _pair(item: Any, what: str) -> tuple[Tensor, Tensor]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise InputError(
            f"{what} is a {type(item).__name__}; it must be a pair (x, y), inputs with their labels"
        )
    x, y = item
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InputError(f"{what} holds {type(x).__name__} and {type(y).__name__}; both must be tensors")
    if y.dim() != 1 or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(f"{what} has labels of shape {tuple(y.shape)} and type {y.dtype}; give integers [n]")
    return x.detach().cpu(), y.detach().cpu().to(torch.int64)


def _read(loader: Any) -> Labelled:
    try:
        batches = iter(loader)
    except TypeError:
        kind = type(loader).__name__
        raise InputError(
            f"data is a {kind}; give ImageData, a pair (x, y) or a loader of such pairs"
        ) from None
    parts = [_pair(batch, f"batch {number} of data") for number, batch in enumerate(batches)]
    if not parts:
        raise InputError("data is an empty loader; give at least one batch")
    inner = getattr(loader, "dataset", None)
    split = inner.split if isinstance(inner, ImageData) else UNKNOWN
    name = inner.name if isinstance(inner, ImageData) else "loader"
    return Labelled(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), name, split)


def _fits(found: Labelled, rec: RandomizedEnsemble, named: int | None) -> None:
    shape = tuple(found.x.shape[1:])
    for index, member in enumerate(rec.members):
        wanted = getattr(member, "input_shape", None)
        if wanted is not None and tuple(wanted) != shape:
            raise InputError(f"data has inputs of shape {shape}; member {index} takes {tuple(wanted)}")
    try:
        with evaluating(rec), torch.no_grad():
            classes = rec.logits(found.x[:1].to(rec.device)).shape[2]
    except InputError:
        raise
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"data has inputs of shape {shape}, which the members do not take: {reason}"
        ) from error
    if named is not None and named != classes:
        raise InputError(f"data has {named} classes; the members tell {classes} apart")
    low, high = int(found.y.min()), int(found.y.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"data has labels from {low} to {high}; the members have {classes} classes, from 0 on"
        )
