"""The paper's two figures of measurements: cost against robustness, and what training with ARC does."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from paper.reproduce.measure import Measured
from paper.reproduce.tables import Found, Wanted, paper
from randens.core.files import write_atomic

_STYLES = {
    "at": ("o", "#4c4c4c", "AT"),
    "mrboost": ("D", "#b35806", "MRBoost, deterministic"),
    "barre": ("*", "#2166ac", "BARRE, randomized"),
}


def points(found: Found, networks: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Figure 1 as data: for AT, MRBoost and BARRE the cost (MFLOPs) and robust accuracy (%), ours and the paper's.

    MRBoost and BARRE with the most members that both have, up to the paper's 4, and the paper's numbers at that size.
    """
    listed: dict[str, list[dict[str, Any]]] = {method: [] for method in _STYLES}
    for network in networks:
        pair = [found.get(Wanted("cifar10", network, method)) for method in ("mrboost", "barre")]
        size = min([4, *(have.members for have in pair if have is not None)])
        for method in _STYLES:
            run = Wanted("cifar10", network, method)
            have = found.get(run)
            m = 1 if method == "at" else size
            stated = paper()["sizes"]["cifar10"][network]["barre" if method == "at" else method][m - 1][1]
            cost = paper()["mflops"][network] * (m if method == "mrboost" else 1)
            ours = None if have is None else _ours(have, method, m)
            theirs = {"mflops": cost, "robust": stated}
            listed[method].append({"network": network, "members": m, "ours": ours, "paper": theirs})
    return listed


def _ours(have: Measured, method: str, m: int) -> dict[str, float]:
    if method == "mrboost":
        return {"mflops": sum(have.flops[:m]) / 1e6, "robust": 100 * have.deterministic[m - 1][1]}
    return {"mflops": have.flops[0] / 1e6, "robust": 100 * have.randomized[m - 1][1]}


def figure1(found: Found, networks: Sequence[str], title: str) -> Figure:
    """Robust accuracy against FLOPs per inference, ours (left) and the paper's (right)."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, side in zip(figure.subplots(1, 2), ("ours", "paper"), strict=True):
        for method, entries in points(found, networks).items():
            known = [entry[side] for entry in entries if entry[side] is not None]
            if not known:
                continue
            x, y = ([point[key] for point in known] for key in ("mflops", "robust"))
            (marker, color, label), size = _STYLES[method], 130 if method == "barre" else 55
            axes.scatter(x, y, s=size, marker=marker, color=color, label=label)
        axes.set_xlabel("MFLOPs per inference")
        axes.set_ylabel("robust accuracy [%]")
        axes.set_title(side, fontsize=9)
        if axes.collections:
            axes.set_xscale("log")
        _finish(axes, bool(axes.collections))
    figure.suptitle(title, fontsize=10)
    return figure


def figure4(curves: Mapping[str, Sequence[tuple[int, float, float]]], title: str) -> Figure:
    """Robust (left) and natural (right) accuracy per epoch of the second member, by training attack."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, curve), color in zip(curves.items(), ("#2166ac", "#b35806"), strict=False):
        epochs = [epoch for epoch, _, _ in curve]
        left.plot(epochs, [100 * robust for _, _, robust in curve], color=color, label=name)
        right.plot(epochs, [100 * natural for _, natural, _ in curve], color=color, label=name)
    for axes, what in ((left, "robust"), (right, "natural")):
        axes.set_xlabel("epoch of the second member")
        axes.set_ylabel(f"{what} accuracy [%]")
        _finish(axes, bool(curves))
    figure.suptitle(title, fontsize=10)
    return figure


def _finish(axes: Any, filled: bool) -> None:
    if not filled:
        axes.text(0.5, 0.5, "no runs yet", ha="center", va="center", transform=axes.transAxes)
        return
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, atomically."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomic(path, buffer.getvalue())
