"""The figures of the page, by matplotlib from the saved results."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paper.when_does_drawing_pay.page import WORDS, Group, axes_of_the_map, methods
from paper.when_does_drawing_pay.plan import MANY
from randens.core.files import write_atomic

__all__ = ["write_figures"]

_BLUE, _ORANGE, _GREEN, _GREY = "#0067a5", "#b84a00", "#00745a", "#8a8a8a"


def write_figures(folder: Path) -> dict[str, str]:
    """Draw what there are results for; the files' names by what they show."""
    names: dict[str, str] = {}
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "randens", "font.size": 9}
    with rc_context(settings):
        for name, figure in (("methods", _methods()), ("map", _map())):
            if figure is None:
                continue
            stream = io.BytesIO()
            figure.savefig(stream, format="svg", metadata={"Date": None}, bbox_inches="tight")
            names[name] = f"drawing-{name}.svg"
            write_atomic(folder / names[name], stream.getvalue())
    return names


def _methods() -> Figure | None:
    """One line per method: members (grey), drawn (orange), deterministic (green)."""
    found = methods(MANY) if len(methods(MANY)) > len(methods()) else methods()
    if not found:
        return None
    found = sorted(found, key=lambda one: one.drawn)
    figure = Figure(figsize=(6.2, 1.2 + 0.32 * len(found)), layout="constrained")
    axes = figure.subplots()
    for row, one in enumerate(found):
        axes.plot([one.members, one.deterministic], [row, row], color="#d0d0d0", zorder=1)
    _scatter(axes, found, "members", _GREY, "o", "members, mean")
    _scatter(axes, found, "best", _BLUE, "o", "best member")
    _scatter(axes, found, "drawn", _ORANGE, "*", "drawn evenly")
    _scatter(axes, found, "deterministic", _GREEN, "D", "deterministic (M times the compute)")
    axes.set_yticks(range(len(found)), [WORDS.get(one.label, one.label) for one in found])
    count = found[0].results[0]["members"]
    axes.set_xlabel(f"robust accuracy, % ({count} members, validation, pooled witnesses, mean over seeds)")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    axes.margins(y=0.15)
    _plain(axes)
    axes.xaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 1):g}")
    return figure


def _scatter(axes: Axes, found: Sequence[Group], value: str, colour: str, marker: str, label: str) -> None:
    size = 110 if marker == "*" else 28
    xs = [getattr(one, value) for one in found]
    axes.scatter(
        xs, range(len(found)), s=size, color=colour, marker=marker, label=label, zorder=2 + (marker == "*")
    )


def _map() -> Figure | None:
    """A panel per axis with at least two values: what drawing and averaging add to the members' mean."""
    shown = [(name, pairs) for name, pairs in axes_of_the_map() if len(pairs) > 1]
    if not shown:
        return None
    columns = -(-len(shown) // 2)
    figure = Figure(figsize=(2.4 * columns + 0.6, 4.8), layout="constrained")
    panels = figure.subplots(2, columns, squeeze=False, sharey=True).flatten().tolist()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, (name, pairs) in zip(panels[: len(shown)], shown, strict=True):
        ticks = range(len(pairs))
        for value, colour, marker, label in (
            ("drawn", _ORANGE, "*", "drawn evenly"),
            ("deterministic", _GREEN, "D", "deterministic (M times the compute)"),
        ):
            gains = [getattr(one, value) - one.members for _, one in pairs]
            axes.plot(ticks, gains, color=colour, marker=marker, label=label)
        axes.set_xticks(ticks, [tick for tick, _ in pairs], fontsize=8, rotation=45 if len(pairs) > 5 else 0)
        axes.set_xlabel(name)
        axes.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 1):g}")
        _plain(axes)
    panels[0].set_ylim(bottom=0)
    figure.supylabel("points above the members' mean", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _plain(axes: Axes) -> None:
    axes.grid(visible=True, axis="both", color="#ececec", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
