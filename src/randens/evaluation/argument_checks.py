"""Checks of what evaluations are given: inputs and a threat that fit the ensemble, and the ensemble's fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from randens.core.errors import InputError
from randens.data import Data, as_data
from randens.ensemble import RandomizedEnsemble, evaluating
from randens.random_model import RandomizedModel
from randens.threat import Threat

__all__ = ["DataLike", "as_image_data", "check_shapes", "class_count", "fingerprint", "labelled", "threat_of"]

DataLike: TypeAlias = Data | tuple[Any, Any] | Iterable[tuple[Any, Any]]
"""Images that know their split, a pair (x, y), a loader of such pairs, or anything else that `as_data` takes."""


def labelled(data: DataLike, rec: RandomizedEnsemble) -> Data:
    """`data` as tensors that fit `rec`; inputs of other shapes and other class counts are refused.

    A loader is read once, so that every sweep over the inputs has the same order.
    """
    if not isinstance(rec, RandomizedEnsemble):
        raise InputError(f"rec is a {type(rec).__name__}; give a RandomizedEnsemble")
    found = as_data(data).float()
    check_shapes(rec, shape := tuple(found.x.shape[1:]))
    try:
        classes = class_count(rec, found)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"data has inputs of shape {shape}, which the members do not take: {reason}"
        ) from error
    if found.classes and len(found.classes) != classes:
        raise InputError(f"data has {len(found.classes)} classes; the members tell {classes} apart")
    low, high = int(found.y.min()), int(found.y.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"data has labels from {low} to {high}; the members have {classes} classes, from 0 on"
        )
    return found


def as_image_data(data: DataLike, rec: RandomizedEnsemble) -> Data:
    """`data` with class names: the ensemble's own, or numbers."""
    if isinstance(data, Data) and data.classes:
        return data
    found = labelled(data, rec)
    names = rec.classes or tuple(map(str, range(class_count(rec, found))))
    return replace(found, classes=names)


def threat_of(model: RandomizedEnsemble | RandomizedModel, threat: Threat | None) -> Threat:
    """The given threat, or the model's own."""
    chosen = model.threat if threat is None else threat
    if chosen is None:
        raise InputError("threat is None and the model names none; give one, e.g. Threat('linf', 8/255)")
    if not isinstance(chosen, Threat):
        raise InputError(f"threat is {chosen!r}; give a Threat, e.g. Threat('linf', 8/255)")
    return chosen


def fingerprint(rec: RandomizedEnsemble) -> str:
    """SHA-256 over the members' weights: two ensembles with the same fingerprint give the same answers."""
    digest = hashlib.sha256()
    for index, member in enumerate(rec.members):
        for key, value in member.state_dict().items():
            digest.update(f"{index} {key} {tuple(value.shape)} {value.dtype}\n".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_shapes(rec: RandomizedEnsemble, shape: tuple[int, ...]) -> None:
    """Refuse inputs of another shape than a member says it takes."""
    for index, member in enumerate(rec.members):
        wanted = getattr(member, "input_shape", None)
        if wanted is not None and tuple(wanted) != shape:
            raise InputError(f"data has inputs of shape {shape}; member {index} takes {tuple(wanted)}")


def class_count(rec: RandomizedEnsemble, data: Data) -> int:
    """How many classes the members tell apart, by their logits of the first input."""
    with evaluating(rec), torch.no_grad():
        return int(rec.logits(data.x[:1].to(rec.device)).shape[2])
