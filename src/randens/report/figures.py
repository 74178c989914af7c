"""Figures for papers: PNG, SVG or PDF from a run folder, drawn by matplotlib from the numbers of the page."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation

from randens.core.errors import FileError, InputError, unknown
from randens.core.files import write_atomic
from randens.evaluation import Evaluation
from randens.report import series
from randens.report.landscape import solve
from randens.report.material import Material, gather
from randens.risk import candidates

__all__ = ["FIGURES", "FORMATS", "write_figure"]

FORMATS = ("png", "svg", "pdf")
_COLOURS = ("#0067a5", "#b84a00", "#00745a", "#9b3f77")
_DASHES = ("-", "--", ":", "-.")
_KINDS = {
    "single": ("o", "#0067a5", 60, "one network"),
    "randomized": ("*", "#b84a00", 160, "randomized ensemble"),
    "deterministic": ("D", "#00745a", 55, "deterministic ensemble"),
    "member": ("o", "#9a9a9a", 22, "members alone"),
}
_FINE = 120  # points along each side of the triangle


def write_figure(
    name: str, run: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> Path:
    """Draw one figure about a run.

    Parameters
    ----------
    name : str
        One of `FIGURES`.
    run : path
        A run folder that holds what the figure shows.
    output : path, optional
        The file, whose ending is the format: .pdf, .svg or .png; by default NAME.pdf in the run folder.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import torch, randens
    >>> nets, x, y = [torch.nn.Linear(4, 3) for _ in range(2)], torch.rand(6, 4), torch.arange(6) % 3
    >>> run = randens.Run.create("mine")
    >>> _ = randens.evaluate(nets, (x, y), "pgd", eps=0.1).save(run.path / "evaluation.json")
    >>> write_figure("landscape", "mine", "landscape.svg").name
    'landscape.svg'
    """
    if name not in FIGURES:
        unknown("figure", name, FIGURES)
    material = gather(run)
    target = material.run.path / f"{name}.pdf" if output is None else Path(output)
    kind = target.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise InputError(
            f"output is {str(target)!r}; its ending must be one of {', '.join('.' + f for f in FORMATS)}"
        )
    # Text stays text, fonts are embedded, and the same run gives the same bytes.
    settings: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "randens", "font.size": 9}
    with rc_context(settings):
        figure = FIGURES[name](material)
        stream = io.BytesIO()
        dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
        figure.savefig(stream, format=kind, dpi=200, metadata=dates[kind], bbox_inches="tight")
    write_atomic(target, stream.getvalue())
    return target


def _landscape(one: Material) -> Figure:
    result = _evaluation(one)
    if result.members == 1:
        raise InputError(f"{one.run.path} has one member; a landscape needs at least two")
    profile, optimum = result.profile, solve(result.profile, result.points.clean.mean(axis=0))
    if result.members == 2:
        figure, axes = _axes(3.5, 2.6)
        share = np.array([0.0, 0.5, 1.0])
        risks = [profile.risk([1 - p, p]) for p in share]
        average = [(1 - p) * profile.member_risks[0] + p * profile.member_risks[1] for p in share]
        axes.plot(share, risks, color=_COLOURS[0], label="risk η(α)")
        axes.plot(share, average, "--", color=_COLOURS[1], label="Σ α_i η_i")
        axes.axhline(result.bounds.floor, color="#666666", linestyle=":", label="floor")
        assert optimum is not None  # two members are solved
        axes.plot([optimum.probs[1]], [optimum.risk], "*", color="black", markersize=11, label="optimum")
        axes.plot(
            [result.probs[1]],
            [profile.risk(result.probs)],
            "o",
            color="black",
            fillstyle="none",
            label="evaluated α",
        )
        axes.set_xlabel("probability of member 1")
        axes.set_ylabel("risk")
        axes.legend(frameon=False)
        return figure
    drawn = result.probs if optimum is None else optimum.probs
    face = sorted(np.argsort(-drawn, kind="stable")[:3].tolist())
    part = profile.restrict(face)
    grid = np.array([(i, j, _FINE - i - j) for i in range(_FINE + 1) for j in range(_FINE + 1 - i)]) / _FINE
    values = np.array([part.risk(p) for p in grid])
    figure, axes = _axes(3.7, 3.3)
    x, y = _flat(grid)
    mesh = Triangulation(x, y)
    shaded = axes.tricontourf(mesh, values, levels=24, cmap="cividis")
    axes.tricontour(mesh, values, levels=12, colors="white", linewidths=0.4, alpha=0.6)
    figure.colorbar(shaded, ax=axes, label="risk η(α)", shrink=0.8)
    corners = np.eye(3)
    axes.plot(*_flat(corners[[0, 1, 2, 0]]), color="black", linewidth=0.8)
    points = np.array([[float(p) for p in row] for row in candidates(3)])
    axes.plot(
        *_flat(points),
        "o",
        color="white",
        markeredgecolor="black",
        markersize=4,
        linestyle="none",
        clip_on=False,
        label="candidates",
    )
    if optimum is not None and optimum.probs[face].sum() > 1 - 1e-9:
        axes.plot(
            *_flat(optimum.probs[face][None]),
            "*",
            color="white",
            markeredgecolor="black",
            markersize=13,
            linestyle="none",
            clip_on=False,
            label="optimum",
        )
    if result.probs[face].sum() > 1 - 1e-9:
        axes.plot(
            *_flat(result.probs[face][None]),
            "D",
            color="#d6336c",
            markeredgecolor="white",
            markersize=6,
            linestyle="none",
            clip_on=False,
            label="evaluated α",
        )
    for place, (corner, align, shift) in enumerate(
        zip(corners, ("center", "center", "center"), (0.05, -0.09, -0.09), strict=True)
    ):
        px, py = _flat(corner[None])
        axes.text(float(px[0]), float(py[0]) + shift, f"member {face[place]}", ha=align)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(-0.12, 1.0), fontsize=7)
    return figure


def _efficiency(one: Material) -> Figure:
    _evaluation(one)
    figure, axes = _axes(3.6, 2.7)
    labelled: set[str] = set()
    for point in series.inferences([one]):
        marker, colour, size, words = _KINDS[point.kind]
        robust = point.accuracy.robust
        axes.plot([point.flops] * 2, [100 * robust.low, 100 * robust.high], color=colour, linewidth=1)
        axes.scatter(
            [point.flops],
            [100 * robust.value],
            marker=marker,
            color=colour,
            s=size,
            zorder=3,
            label=None if words in labelled else words,
        )
        labelled.add(words)
    axes.set_xscale("log")
    axes.set_xlabel("FLOPs per inference")
    axes.set_ylabel("robust accuracy (%)")
    axes.legend(frameon=False, fontsize=7)
    return figure


def _cofooling(one: Material) -> Figure:
    result = _evaluation(one)
    figure, axes = _axes(3.3, 2.8)
    table = 100 * series.cofooling(result)
    shown = axes.imshow(table, cmap="cividis", vmin=0)
    if len(table) <= 10:
        middle = table.max() / 2
        for i, j in np.ndindex(*table.shape):
            axes.text(
                j,
                i,
                f"{table[i, j]:.1f}",
                ha="center",
                va="center",
                color="white" if table[i, j] < middle else "black",
                fontsize=8,
            )
    axes.set_xticks(range(len(table)) if len(table) <= 24 else [])
    axes.set_yticks(range(len(table)) if len(table) <= 24 else [])
    axes.set_xlabel("member")
    axes.set_ylabel("member")
    figure.colorbar(shown, ax=axes, label="fooled together (% of inputs)")
    return figure


def _sets(one: Material) -> Figure:
    result = _evaluation(one)
    listed, _ = series.fooled_sets(result)
    members = sorted({m for fooled, _ in listed for m in fooled}) or [0]
    figure = Figure(figsize=(0.8 + 0.3 * len(listed), 1.8 + 0.2 * len(members)), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, max(1, 0.5 * len(members))])
    columns = np.arange(len(listed))
    drawn = top.bar(columns, [count for _, count in listed], color=_COLOURS[0])
    top.bar_label(drawn, fontsize=7)
    top.set_ylabel("inputs")
    for number, (fooled, _) in enumerate(listed):
        bottom.plot([number] * len(members), range(len(members)), "o", color="#d0d0d0", markersize=5)
        inside = [members.index(m) for m in fooled]
        bottom.plot([number] * len(inside), inside, "o-", color=_COLOURS[0], markersize=5)
    bottom.set_yticks(range(len(members)), [f"member {m}" for m in members])
    bottom.set_ylim(len(members) - 0.5, -0.5)
    bottom.set_xticks([])
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _radii(one: Material) -> Figure:
    radii = one.radii
    if radii is None:
        raise _absent(one, "radii", "the accuracy over ε", "--measure")
    figure, axes = _axes(3.6, 2.6)
    for number, line in enumerate(series.over_radius(radii)):
        x, y = np.array(line.points).T
        axes.plot(
            x,
            100 * y,
            _DASHES[number % 4],
            color=_COLOURS[number % 4],
            marker="o",
            markersize=3,
            label=line.name,
        )
        if line.intervals:
            low, high = np.array(line.intervals).T
            axes.fill_between(x, 100 * low, 100 * high, color=_COLOURS[number % 4], alpha=0.12, linewidth=0)
    axes.set_xlabel(f"{radii.norm} radius ε")
    axes.set_ylabel("robust accuracy (%)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=7)
    return figure


def _training(one: Material) -> Figure:
    if not one.curves:
        raise FileError(f"{one.run.path} has no training curves; they are produced by randens train RECIPE")
    count = len(one.curves)
    figure = Figure(figsize=(3.6 * count, 2.6), layout="constrained")
    for axes, curve in zip(np.atleast_1d(figure.subplots(1, count)).tolist(), one.curves, strict=True):
        accuracies, _, begins = series.training_lines(curve)
        for number, line in enumerate(accuracies):
            x, y = np.array(line.points).T
            axes.plot(x, 100 * y, _DASHES[number % 4], color=_COLOURS[number % 4], label=line.name)
        for at, _name in begins[1:]:
            axes.axvline(at, color="#999999", linewidth=0.6, linestyle=":")
        axes.set_title(curve.name)
        axes.set_xlabel("epoch, all members in a row")
        axes.set_ylabel("accuracy (%)")
        axes.legend(frameon=False, fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _attacks(one: Material) -> Figure:
    compared = one.attacks
    if compared is None:
        raise _absent(one, "attacks", "the comparison of attacks", "--measure")
    ordered = sorted(compared.attacks, key=lambda a: -a.robust.value)
    figure, axes = _axes(3.6, 0.8 + 0.24 * len(ordered))
    values = [100 * a.robust.value for a in ordered]
    spans = [
        [100 * max(0.0, a.robust.value - a.robust.low) for a in ordered],
        [100 * max(0.0, a.robust.high - a.robust.value) for a in ordered],
    ]
    axes.barh(range(len(ordered)), values, xerr=spans, color=_COLOURS[0], error_kw={"linewidth": 1})
    axes.set_yticks(range(len(ordered)), [a.name for a in ordered])
    axes.set_xlabel("robust accuracy left (%)")
    return figure


FIGURES: dict[str, Callable[[Material], Figure]] = {
    "landscape": _landscape,
    "flops": _efficiency,
    "cofooling": _cofooling,
    "sets": _sets,
    "radius": _radii,
    "training": _training,
    "attacks": _attacks,
}
"""What `write_figure` draws, by name."""


def _axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _flat(probs: Any) -> tuple[Any, Any]:
    """Triangle coordinates of points of the simplex [k, 3]: member 0 at the top."""
    points = np.asarray(probs)
    return 0.5 * points[:, 0] + points[:, 2], np.sqrt(0.75) * points[:, 0]


def _evaluation(one: Material) -> Evaluation:
    if one.evaluation is None:
        raise FileError(
            f"{one.run.path} has no evaluation.json; it is produced by randens evaluate {one.run.path}"
        )
    return one.evaluation


def _absent(one: Material, part: str, what: str, option: str) -> FileError:
    problem = one.problems.get(part)
    return FileError(
        problem or f"{one.run.path} lacks {what}; it is produced by randens report {one.run.path} {option}"
    )
