"""Inputs as pictures: clean, perturbed, and their amplified difference."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from randens.attacks import create
from randens.core.errors import RandensError
from randens.data import Data, as_data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import Evaluation
from randens.evaluation.evaluate import Witnesses
from randens.evaluation.inputs import Case, run_data
from randens.report.runs import LoadedRun
from randens.threat import Threat
from randens.witness import WitnessPool, WitnessStore

__all__ = ["Example", "choose", "draw", "gallery", "to_png"]

_LARGEST_SIDE = 96


@dataclass(frozen=True)
class Example:
    """One input as PNG data URIs, and what happens there. said: the answers of the fooled members."""

    index: int
    label: str
    risk: float
    source: str
    clean: str
    perturbed: str
    difference: str
    amplified: float
    fooled: list[int]
    said: list[str]


def gallery(one: LoadedRun, result: Evaluation) -> list[Example] | str:
    """Worst perturbations of a dozen inputs, read from the run's witness store; or why there are none."""
    rec = one.rec
    if rec is None or not (one.run.path / "witnesses.sqlite").is_file():
        return "this run has no stored witnesses (an evaluation of the run folder stores them)"
    chosen = choose(result)
    if not chosen:
        return "no perturbation fools a member on inputs that all members classify correctly"
    about = result.about
    try:
        name = run_data(one.run) if one.recipe.get("data") else about.data
        data = as_data(name, split=None if about.split == "unknown" else about.split, limit=about.n)
        if len(data.shape) != 3 or len(data) <= chosen[-1]:
            return f"inputs of shape {data.shape} are not the pictures that were evaluated"
        few = data.subset(torch.tensor(chosen))
        attack = create("fgsm", result.threat)  # only the threat matters: nothing is attacked
        pool = Witnesses(Case(rec, few, (attack,), store=WitnessStore(one.run.path))).pool
        return draw(rec.with_probs(result.probs), few, pool, result.threat, chosen)
    except RandensError as error:
        return str(error)


def choose(result: Evaluation, count: int = 12) -> list[int]:
    """Inputs that all members classify correctly and an attack fools; the sets of fooled members alternate."""
    kinds: dict[bytes, list[int]] = defaultdict(list)
    for index in np.flatnonzero((result.risk > 0) & ~result.clean.any(axis=1)).tolist():
        kinds[result.errors[index].tobytes()].append(index)
    queues = sorted(kinds.values(), key=len, reverse=True)
    turns = range(max(map(len, queues), default=0))
    chosen = [queue[turn] for turn in turns for queue in queues if turn < len(queue)]
    return sorted(chosen[:count])


def draw(
    rec: RandomizedEnsemble, data: Data, pool: WitnessPool, threat: Threat, names: list[int]
) -> list[Example]:
    """Draw the worst perturbation in the pool of every input that has one. names: the inputs' numbers."""
    risks, rows = pool.best(rec.probs.cpu().numpy())
    worst = torch.from_numpy(pool.worst(rec.probs, data.x.numpy()))
    after = rec.verdicts(worst.to(rec.device)).tolist()
    classes = list(rec.classes or data.classes)
    low, high = threat.bounds or (float(data.x.min()), float(data.x.max()))

    def called(label: int) -> str:
        return classes[label] if 0 <= label < len(classes) else f"class {label}"

    found = []
    for j in np.flatnonzero(risks > 0).tolist():
        change = worst[j] - data.x[j]
        amplified = 0.5 / max(float(change.abs().max()), 1e-9)
        fooled = np.flatnonzero(pool.fooled[rows[j]]).tolist()
        clean, perturbed = (to_png((x[j] - low) / (high - low)) for x in (data.x, worst))
        found.append(
            Example(
                index=names[j],
                label=called(int(data.y[j])),
                risk=float(risks[j]),
                source=pool.sources[int(rows[j])],
                clean=clean,
                perturbed=perturbed,
                difference=to_png(0.5 + amplified * change),
                amplified=amplified,
                fooled=fooled,
                said=[called(after[j][i]) for i in fooled],
            )
        )
    return found


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
