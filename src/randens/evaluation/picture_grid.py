"""A grid of pictures: clean, perturbed, and the difference amplified so that it can be seen."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from randens.core.errors import InputError
from randens.core.files import write_atomic
from randens.threat import Threat

__all__ = ["save_grid"]


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
