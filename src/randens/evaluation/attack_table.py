"""Several attacks on the same data, each alone and then combined."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from randens.attacks import Attack, Cost
from randens.attacks.base import as_ensemble
from randens.attacks.dataset import Found, attack_data
from randens.core.errors import InputError
from randens.core.files import picked, write_atomic
from randens.core.progress import Progress
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore

__all__ = ["Attacked", "attack_all", "draw_worst", "save_grid"]

_PICTURES = 8


@dataclass(frozen=True)
class Attacked:
    """The result of one attack on an ensemble, or of all together (the worst case of each input).

    Accuracies are exact expectations; `member_risks` are those of each member under any witness of this row.
    """

    name: str
    inputs: int
    natural: float
    robust: float
    member_risks: tuple[float, ...]
    forwards: int
    backwards: int
    sources: dict[str, int]
    warnings: tuple[str, ...]
    found: Found | None

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = "inputs natural robust member_risks forwards backwards warnings"
        return {"attack": self.name, "found_by": self.sources, **picked(self, names)}


def attack_all(
    rec: RandomizedEnsemble,
    data: Data,
    attacks: Sequence[Attack],
    store: WitnessStore | None,
    progress: Progress,
) -> list[Attacked]:
    """Attack `data` with each attack alone; the last row holds the worst case of each input over all attacks.

    store: attacks made before are read from it, and new ones are added.
    """
    probs = rec.probs.cpu().numpy()
    rows: list[Attacked] = []
    pool: WitnessPool | None = None
    for attack in attacks:
        found = attack_data(attack, as_ensemble(rec), data, store=store, inputs=True, progress=progress)
        pool = found.pool if pool is None else pool.merge(found.pool)
        natural = 1.0 - float((found.clean_errors.double() @ rec.probs.cpu()).mean())
        rows.append(_row(attack.name, found.pool, probs, natural, found.cost, found))
    if pool is not None and len(rows) > 1:
        cost = Cost(sum(row.forwards for row in rows), sum(row.backwards for row in rows))
        rows.append(_row("all together", pool, probs, rows[0].natural, cost))
    return rows


def draw_worst(
    path: str | os.PathLike[str], data: Data, result: Attacked, rec: RandomizedEnsemble, threat: Threat
) -> Path:
    """Draw a grid of the inputs with the largest risk."""
    found = result.found
    if found is None:
        raise InputError("pictures show one attack at a time; give a single --attack")
    harm = found.risk - found.clean_errors.double() @ rec.probs.cpu()
    chosen = harm.argsort(descending=True, stable=True)[:_PICTURES]
    names = rec.classes or data.classes
    titles = [
        f"{names[int(data.y[j])]}: fools "
        + (" ".join(str(i) for i in found.errors[j].nonzero().flatten().tolist()) or "none")
        for j in chosen.tolist()
    ]
    return save_grid(path, data.x[chosen], found.x_adv[chosen], titles, threat)


def save_grid(
    path: str | os.PathLike[str], x: Tensor, x_adv: Tensor, titles: Sequence[str], threat: Threat
) -> Path:
    """Write one column per input, [n, channels, h, w], as a PNG; `titles` stand above the perturbed inputs."""
    target = Path(path)
    if target.suffix.lower() != ".png":
        raise InputError(f"path is {str(target)!r}; pictures are written as PNG, e.g. worst.png")
    if x.dim() != 4 or x.shape[1] not in (1, 3) or x.shape != x_adv.shape:
        raise InputError(
            f"x has shape {tuple(x.shape)} and x_adv {tuple(x_adv.shape)}; "
            "pictures need [n, 1 or 3, height, width] for both"
        )
    if not len(x):
        raise InputError("x is empty; there is nothing to draw")
    low, high = threat.bounds or (float(x.min()), float(x.max()))
    change = x_adv - x
    gain = 0.5 / max(float(change.abs().max()), 1e-12)
    rows = (
        ("clean", (x - low) / (high - low)),
        ("perturbed", (x_adv - low) / (high - low)),
        (f"difference ×{gain * (high - low):.0f}", 0.5 + gain * change),
    )
    figure = Figure(figsize=(1.3 * len(x) + 0.9, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, len(x), squeeze=False)
    for line, (name, images) in enumerate(rows):
        for column, image in enumerate(images):
            axis = axes[line, column]
            pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
            axis.imshow(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
            if line == 1:
                axis.set_title(titles[column], fontsize=8)
        axes[line, 0].set_ylabel(name, fontsize=9)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    write_atomic(target, stream.getvalue())
    return target


def _row(
    name: str, pool: WitnessPool, probs: Any, natural: float, cost: Cost, found: Found | None = None
) -> Attacked:
    risks, best = pool.best(probs)
    return Attacked(
        name,
        pool.n,
        natural,
        1.0 - float(risks.mean()),
        tuple(pool.foolable.mean(axis=0).tolist()),
        cost.forwards,
        cost.backwards,
        dict(Counter(pool.sources[row] if row >= 0 else "no attack" for row in best.tolist())),
        _warnings(name, found) if found is not None else (),
        found,
    )


def _warnings(name: str, found: Found) -> tuple[str, ...]:
    texts = {"zero_gradient": "a gradient that is exactly zero", "nan_gradient": "NaN gradients"}
    return tuple(
        f"{name}: member {index} has {text} on {share:.1%} of the inputs; a weak attack is not a strong defence"
        for key, text in texts.items()
        for index, share in enumerate(found.flags[key])
        if share > 0.01
    )
