"""The paper's two figures of measurements: cost against robustness, and what training with ARC does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from paper.reproduce.tables import Found, Wanted, paper

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
            have = found.get(Wanted("cifar10", network, method))
            m = 1 if method == "at" else size
            together = m if method == "mrboost" else 1
            stated = paper()["sizes"]["cifar10"][network]["barre" if method == "at" else method][m - 1][1]
            ours = None
            if have is not None:
                robust = (have.deterministic if method == "mrboost" else have.randomized)[m - 1][1]
                ours = {"mflops": sum(have.flops[:together]) / 1e6, "robust": 100 * robust}
            theirs = {"mflops": paper()["mflops"][network] * together, "robust": stated}
            listed[method].append({"network": network, "members": m, "ours": ours, "paper": theirs})
    return listed


def figure1(found: Found, networks: Sequence[str]) -> Figure:
    """Robust accuracy against FLOPs per inference, ours (left) and the paper's (right)."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, side in zip(figure.subplots(1, 2), ("ours", "paper"), strict=True):
        for method, entries in points(found, networks).items():
            known = [entry[side] for entry in entries if entry[side] is not None]
            x, y = ([point[key] for point in known] for key in ("mflops", "robust"))
            (marker, color, label), size = _STYLES[method], 13 if method == "barre" else 7
            axes.semilogx(x, y, marker, markersize=size, color=color, label=label)
        axes.set(xlabel="MFLOPs per inference", ylabel="robust accuracy [%]", title=side)
        axes.legend(fontsize=7)
    figure.suptitle("Cost and robustness (Figure 1)", fontsize=10)
    return figure


def figure4(curves: Mapping[str, Sequence[tuple[int, float, float]]]) -> Figure:
    """Robust (left) and natural (right) accuracy per epoch of the second member, by training attack."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, part, what in zip(figure.subplots(1, 2), (2, 1), ("robust", "natural"), strict=True):
        for (name, curve), color in zip(curves.items(), ("#2166ac", "#b35806"), strict=False):
            axes.plot([at[0] for at in curve], [100 * at[part] for at in curve], color=color, label=name)
        axes.set(xlabel="epoch of the second member", ylabel=f"{what} accuracy [%]")
        if curves:
            axes.legend(fontsize=7)
    figure.suptitle("BARRE's second member by training attack (Figure 4)", fontsize=10)
    return figure
