"""Inputs as pictures: clean, perturbed, and their amplified difference."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from randens.core.errors import InputError
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.result import worst_inputs
from randens.report.load import Example, Gallery, measured_on
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = ["choose", "draw", "make_gallery", "to_png"]

_LARGEST_SIDE = 96


def make_gallery(
    rec: RandomizedEnsemble, data: Data, pool: WitnessPool, threat: Threat, count: int = 12
) -> Gallery:
    """Draw worst perturbations, of as many kinds as possible, of `count` inputs that every member classified correctly.

    pool: witnesses of the same inputs, with the perturbed inputs.
    """
    if len(data.shape) != 3:
        raise InputError(
            f"inputs have shape {data.shape}; a gallery needs pictures, [channels, height, width]"
        )
    if pool.n != len(data):
        raise InputError(f"pool describes {pool.n} inputs; data has {len(data)}")
    right = ~rec.errors(data.x.to(rec.device), data.y.to(rec.device)).cpu().any(dim=1)
    chosen = choose(pool, rec.probs.cpu().numpy(), right.numpy(), count)
    drawn = draw(rec, data, chosen, pool.take(chosen), threat)
    worst = worst_inputs(pool, rec.probs, data.x)[chosen]
    before, after = (rec.verdicts(x.to(rec.device)).tolist() for x in (data.x[chosen], worst))
    examples = [
        example.model_copy(update={"before": before[j], "after": after[j]})
        for j, example in enumerate(drawn.examples)
    ]
    return drawn.model_copy(update={"examples": examples})


def draw(
    rec: RandomizedEnsemble, data: Data, chosen: Sequence[int], pool: WitnessPool, threat: Threat
) -> Gallery:
    """Draw the worst perturbations of the inputs `chosen`; no member is run.

    pool: witnesses of the chosen inputs, renumbered in their order, with the perturbed inputs.
    """
    probs = rec.probs.cpu().numpy()
    risks, rows = pool.best(probs)
    x, y = data[list(chosen)]
    worst = worst_inputs(pool, probs, x)
    change = worst - x
    largest = float(change.abs().max()) if len(chosen) else 0.0
    amplified = 0.5 / largest if largest > 0 else 1.0
    low, high = threat.bounds or (float(data.x.min()), float(data.x.max()))
    examples = [
        Example(
            index=index,
            label=int(y[j]),
            risk=float(risks[j]),
            source=pool.sources[int(rows[j])],
            clean=to_png((x[j] - low) / (high - low)),
            perturbed=to_png((worst[j] - low) / (high - low)),
            difference=to_png(0.5 + amplified * change[j]),
            fooled=np.flatnonzero(pool.fooled[rows[j]]).tolist(),
        )
        for j, index in enumerate(chosen)
    ]
    return Gallery(
        **measured_on(rec, data, threat),
        amplified=amplified,
        classes=list(rec.classes or data.classes),
        examples=examples,
    )


def choose(
    pool: WitnessPool, probs: NDArray[np.float64], able: NDArray[np.bool_], count: int = 12
) -> list[int]:
    """Choose `count` inputs among those that are `able` [n] and fooled.

    A kind is a set of fooled members; the kinds alternate, the most frequent first.
    """
    risks, rows = pool.best(probs)
    kinds: dict[bytes, list[int]] = defaultdict(list)
    for index in np.flatnonzero((risks > 0) & able).tolist():
        kinds[pool.fooled[rows[index]].tobytes()].append(index)
    queues = sorted(kinds.values(), key=len, reverse=True)
    chosen: list[int] = []
    turn = 0
    while len(chosen) < count and any(turn < len(queue) for queue in queues):
        chosen += [queue[turn] for queue in queues if turn < len(queue)]
        turn += 1
    return sorted(chosen[:count])


def to_png(image: Tensor) -> str:
    """A picture [channels, height, width] with values in [0, 1] as a PNG data URI; large ones are made smaller."""
    values = torch.round(image.detach().float().clamp(0, 1) * 255).to(torch.uint8).cpu().numpy()
    if len(values) == 3:
        picture = Image.fromarray(np.ascontiguousarray(values.transpose(1, 2, 0)))
    else:
        picture = Image.fromarray(values.mean(axis=0).round().astype(np.uint8))
    if max(picture.size) > _LARGEST_SIDE:
        picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    target = io.BytesIO()
    picture.save(target, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(target.getvalue()).decode("ascii")
