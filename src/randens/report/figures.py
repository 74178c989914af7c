"""Figures by matplotlib, from the same functions: SVG inside the page, and PNG, SVG or PDF for papers."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from randens.core.errors import FileError, InputError, unknown
from randens.core.files import write_atomic
from randens.evaluation import Evaluation
from randens.evaluation.tables import count
from randens.report import tables
from randens.report.landscape import solve
from randens.report.load import LoadedRun, load_run
from randens.report.tables import Inference, Line
from randens.risk import candidates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FIGURES",
    "FORMATS",
    "bars",
    "inline",
    "lines",
    "matrix",
    "scatter",
    "upset",
    "write_figure",
]

FORMATS = ("png", "svg", "pdf")
_COLOURS = ("#0067a5", "#b84a00", "#00745a", "#9b3f77", "#6b5900", "#4b4b4b")
_QUIET, _GRID = "#50606e", "#e3e8ec"
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "D", "s", "*")
_KINDS = {
    "single": ("o", 30, "one network"),
    "randomized": ("*", 90, "randomized ensemble"),
    "deterministic": ("D", 26, "deterministic ensemble"),
    "member": (".", 24, "members alone"),
}
_FINE = 120  # points along each side of the triangle

# Text stays text, also where it holds a dollar sign, and the same run gives the same bytes.
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "randens",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
}
_PAPER: dict[str, Any] = {**_SETTINGS, "font.size": 9, "legend.fontsize": 7}
_PAGE: dict[str, Any] = {**_SETTINGS, "font.size": 7, "legend.fontsize": 6.5, "axes.linewidth": 0.5}
_SCALE = 1.9  # pixels of the page for each unit of a figure

# The page's own colours, so that its figures follow the light scheme, the dark scheme and the print layout.
_VARIABLES = {
    "#000000": "var(--ink)",
    "black": "var(--ink)",
    "#ffffff": "var(--ground)",
    _QUIET: "var(--quiet)",
    _GRID: "var(--grid)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(_COLOURS)},
}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONG = re.compile(r"(\d+\.\d{2})\d+")
_REFERENCE = re.compile(r"(?:url\(#|^#)([^)]+)")


def write_figure(
    name: str, run: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> Path:
    """Draw one figure about a run.

    Parameters
    ----------
    name : str
        One of `FIGURES`.
    run : path
        A run folder with the results that the figure shows.
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
    loaded = load_run(run)
    target = loaded.run.path / f"{name}.pdf" if output is None else Path(output)
    kind = target.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise InputError(
            f"output is {str(target)!r}; its ending must be one of {', '.join('.' + f for f in FORMATS)}"
        )
    dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    content = _drawn(
        partial(FIGURES[name], loaded),
        _PAPER,
        format=kind,
        dpi=200,
        metadata=dates[kind],
        bbox_inches="tight",
    )
    write_atomic(target, content)
    return target


def inline(key: str, label: str, draw: Callable[..., Figure], *shown: Any, **options: Any) -> Markup:
    """The figure draw(*shown, **options) as SVG inside a page: the page's colours, no styles of its own.

    key: begins the names inside the figure; another one for each figure of a page. label: what the figure shows, in
    words. Text in the figure is escaped by the writer of the XML.
    """
    content = _drawn(
        partial(draw, *shown, **options), _PAGE, format="svg", metadata={"Date": None}, transparent=True
    ).decode()
    source = ElementTree.fromstring(_NOT_XML.sub("", content))
    used = {
        name for node in source.iter() for value in node.attrib.values() for name in _REFERENCE.findall(value)
    }
    root = _plain(source, key, used)
    width = float(source.attrib["viewBox"].split()[2])
    root.attrib = {
        "class": "chart",
        "viewBox": source.attrib["viewBox"],
        "width": str(round(_SCALE * width)),
        "role": "img",
        "aria-label": _NOT_XML.sub("", label),
        "stroke-linejoin": "round",
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def lines(
    series: Sequence[Line],
    x_title: str,
    y_title: str,
    *,
    percent: bool = True,
    rule: tuple[float, str] | None = None,
    breaks: Sequence[tuple[float, str]] = (),
) -> Figure:
    """Lines over x. rule: a vertical line with a name. breaks: vertical lines where something new begins."""
    figure, axes = _axes(3.6, 2.5)
    times = 100 if percent else 1
    for number, line in enumerate(series):
        x, y = np.array(line.points, dtype=np.float64).T
        colour = _COLOURS[number % len(_COLOURS)]
        marker = _MARKERS[number % 4] if len(x) <= 12 else None
        style = {"color": colour, "linestyle": _DASHES[number % 4], "marker": marker, "label": line.name}
        axes.plot(x, times * y, **style)
        if line.intervals:
            low, high = np.array(line.intervals, dtype=np.float64).T
            axes.vlines(x, times * low, times * high, color=colour, linewidth=0.8)
    for at, name in [*([rule] if rule else []), *breaks]:
        axes.axvline(at, color=_QUIET, linewidth=0.6, linestyle=":", zorder=1)
        axes.annotate(
            f" {name}",
            (at, 1),
            xycoords=("data", "axes fraction"),
            va="bottom",
            fontsize="small",
            color=_QUIET,
        )
    axes.set_xlabel(x_title)
    if max(at for line in series for at, _ in line.points) >= 5000:
        axes.xaxis.set_major_formatter(lambda value, _: count(value))
    axes.set_ylabel(f"{y_title} (%)" if percent else y_title)
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    if percent:
        axes.set_ylim(bottom=0)
    if len(series) > 1:
        _legend(figure, axes)
    return figure


def scatter(points: Sequence[Inference]) -> Figure:
    """Robust accuracy against FLOPs, on a logarithmic axis: the paper's Figure 1."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = _axes(3.6, 2.7)
    labelled: set[str] = set()
    several = len({point.run for point in points}) > 1
    for point in points:
        marker, size, words = _KINDS[point.kind]
        colour = _COLOURS[5] if point.kind == "member" else _COLOURS[point.run % 5]
        robust = point.accuracy.robust
        name = point.name if several and point.kind != "member" else words
        axes.vlines(point.flops, 100 * robust.low, 100 * robust.high, color=colour, linewidth=0.8)
        label = None if name in labelled else name
        axes.scatter(
            [point.flops], [100 * robust.value], marker=marker, color=colour, s=size, zorder=3, label=label
        )
        labelled.add(name)
    axes.set_xscale("log")
    flops = [point.flops for point in points]
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(flops) < 30 * min(flops) else (1,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: count(value))
    axes.set_xlabel("FLOPs per inference")
    axes.set_ylabel("robust accuracy (%)")
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.25)
    _legend(figure, axes)
    return figure


def bars(
    rows: Sequence[tuple[str, float, tuple[float, float] | None]], *, x_title: str, digits: int = 1
) -> Figure:
    """Horizontal bars: (name, value, interval), the first at the top, each with its value."""
    names = [_NOT_XML.sub("", name) for name, _, _ in rows]
    names = [name if len(name) < 41 else name[:39] + "…" for name in names]
    left = 0.2 + 0.055 * max(map(len, names))
    figure, axes = _axes(max(3.6, left + 2), 0.6 + 0.2 * len(rows), left=left, top=0.05)
    values = [value for _, value, _ in rows]
    spans = [span or (value, value) for _, value, span in rows]
    axes.barh(range(len(rows)), values, color=_COLOURS[0], height=0.6)
    for place, ((low, high), value) in enumerate(zip(spans, values, strict=True)):
        if high > low:
            axes.plot([low, high], [place, place], color="black", linewidth=0.9)
        axes.annotate(
            f"{value:,.{digits}f}",
            (max(high, value), place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel(x_title)
    return figure


def matrix(values: NDArray[np.float64], colour: int = 0) -> Figure:
    """A square table of shares as shades, in per cent, with numbers while they fit. Rows and columns are members.

    NaN is drawn as a dash without a shade.
    """
    count = len(values)
    side = min(3.0, 0.7 + 0.36 * count)
    figure, axes = _axes(side, side, bottom=0.05, top=0.4, right=0.05)
    shades = np.empty((count, count, 4))
    shades[..., :3] = [int(_COLOURS[colour][i : i + 2], 16) / 255 for i in (1, 3, 5)]
    shades[..., 3] = 0.6 * np.clip(np.nan_to_num(values), 0, 1)
    axes.imshow(shades, interpolation="none")
    if count <= 10:
        for i, j in np.ndindex(count, count):
            known = values[i, j] == values[i, j]
            axes.text(j, i, f"{100 * values[i, j]:.1f}" if known else "–", ha="center", va="center")
    places = range(0, count, 1 if count <= 24 else 8)
    axes.set_xticks(places)
    axes.set_yticks(places)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("member")
    axes.set_ylabel("member")
    return figure


def upset(sets: Sequence[tuple[tuple[int, ...], int]], members: Sequence[int]) -> Figure:
    """How often exactly these members are fooled together: bars above, the members of each set as joined dots."""
    dots = 0.18 * len(members)
    width, height = max(1.8, 0.9 + 0.26 * len(sets)), 1.6 + dots
    figure, top = _axes(width, height, left=0.75, bottom=0.1 + dots)
    bottom = figure.add_axes((0.75 / width, 0, 1 - 0.85 / width, dots / height), sharex=top)
    drawn = top.bar(range(len(sets)), [count for _, count in sets], color=_COLOURS[0], width=0.65)
    top.bar_label(drawn, fontsize="small")
    top.locator_params(axis="y", integer=True)
    top.set_ylabel("inputs")
    for number, (fooled, _) in enumerate(sets):
        bottom.plot([number] * len(members), range(len(members)), "o", color=_GRID)
        inside = [members.index(m) for m in fooled]
        bottom.plot([number] * len(inside), inside, "o-", color=_COLOURS[0])
    bottom.set_yticks(range(len(members)), [f"member {m}" for m in members])
    bottom.set_ylim(len(members) - 0.5, -0.5)
    top.tick_params(bottom=False, labelbottom=False)
    bottom.tick_params(bottom=False, labelbottom=False)
    return figure


def _landscape(one: LoadedRun) -> Figure:
    result = _evaluation(one)
    if result.members == 1:
        raise InputError(f"{one.run.path} has one member; a landscape needs at least two")
    profile, optimum = result.profile, solve(result.profile, result.clean.mean(axis=0))
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
        own = {"color": "black", "fillstyle": "none", "markersize": 6, "label": "evaluated α"}
        axes.plot([result.probs[1]], [profile.risk(result.probs)], "o", **own)
        axes.set_xlabel("probability of member 1")
        axes.set_ylabel("risk")
        axes.legend()
        return figure
    from matplotlib.tri import Triangulation

    drawn = result.probs if optimum is None else optimum.probs
    face = sorted(np.argsort(-drawn, kind="stable")[:3].tolist())
    part = profile.restrict(face)
    grid = np.array([(i, j, _FINE - i - j) for i in range(_FINE + 1) for j in range(_FINE + 1 - i)]) / _FINE
    values = np.array([part.risk(p) for p in grid])
    figure, axes = _axes(3.7, 3.3, left=0.3)
    x, y = _flat(grid)
    mesh = Triangulation(x, y)
    shaded = axes.tricontourf(mesh, values, levels=24, cmap="cividis")
    axes.tricontour(mesh, values, levels=12, colors="white", linewidths=0.4, alpha=0.6)
    figure.colorbar(shaded, ax=axes, label="risk η(α)", shrink=0.8)
    corners = np.eye(3)
    axes.plot(*_flat(corners[[0, 1, 2, 0]]), color="black", linewidth=0.8)
    points = np.array([[float(p) for p in row] for row in candidates(3)])
    light = {"color": "white", "markeredgecolor": "black", "linestyle": "none", "clip_on": False}
    axes.plot(*_flat(points), "o", markersize=4, label="candidates", **light)
    if optimum is not None and optimum.probs[face].sum() > 1 - 1e-9:
        axes.plot(*_flat(optimum.probs[face][None]), "*", markersize=13, label="optimum", **light)
    if result.probs[face].sum() > 1 - 1e-9:
        own = {**light, "color": "#d6336c", "markeredgecolor": "white", "markersize": 6}
        axes.plot(*_flat(result.probs[face][None]), "D", label="evaluated α", **own)
    for place, (corner, shift) in enumerate(zip(corners, (0.05, -0.09, -0.09), strict=True)):
        px, py = _flat(corner[None])
        axes.text(float(px[0]), float(py[0]) + shift, f"member {face[place]}", ha="center")
    axes.set_aspect("equal")
    axes.axis("off")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.12, 1.0))
    return figure


def _efficiency(one: LoadedRun) -> Figure:
    _evaluation(one)
    return scatter(tables.inferences([one]))


def _cofooling(one: LoadedRun) -> Figure:
    return matrix(tables.cofooling(_evaluation(one)))


def _sets(one: LoadedRun) -> Figure:
    listed, _ = tables.fooled_sets(_evaluation(one))
    return upset(listed, sorted({m for fooled, _ in listed for m in fooled}) or [0])


def _radii(one: LoadedRun) -> Figure:
    if one.radii is None:
        raise _absent(one, "radii", "the accuracy over ε")
    x_title = f"{one.radii.norm} radius ε"
    return lines(tables.over_radius(one.radii), x_title=x_title, y_title="robust accuracy")


def _training(one: LoadedRun) -> Figure:
    if not one.curves:
        raise FileError(f"{one.run.path} has no training curves; they are produced by randens train RECIPE")
    count = len(one.curves)
    figure = _figure(3.6 * count, 2.6)
    grid = np.atleast_1d(figure.subplots(1, count, gridspec_kw={"wspace": 0.3}))
    for axes, curve in zip(grid.tolist(), one.curves, strict=True):
        accuracies, _, begins = tables.training_lines(curve)
        for number, line in enumerate(accuracies):
            x, y = np.array(line.points).T
            axes.plot(x, 100 * y, _DASHES[number % 4], color=_COLOURS[number % 4], label=line.name)
        for at, _name in begins[1:]:
            axes.axvline(at, color="#999999", linewidth=0.6, linestyle=":")
        axes.set_title(curve.name)
        axes.set_xlabel("epoch, all members in a row")
        axes.set_ylabel("accuracy (%)")
        axes.legend()
    return figure


def _attacks(one: LoadedRun) -> Figure:
    if one.attacks is None:
        raise _absent(one, "attacks", "the comparison of attacks")
    table = one.attacks
    ordered = [
        a for a in tables.compared(table) if a.n in (None, table.n)
    ]  # comparable on the same inputs only
    rows = [(a.label, 100 * a.robust.value, (100 * a.robust.low, 100 * a.robust.high)) for a in ordered]
    return bars(rows, x_title="robust accuracy left (%)")


FIGURES: dict[str, Callable[[LoadedRun], Figure]] = {
    "landscape": _landscape,
    "flops": _efficiency,
    "cofooling": _cofooling,
    "sets": _sets,
    "radius": _radii,
    "training": _training,
    "attacks": _attacks,
}
"""What `write_figure` draws, by name."""


def _drawn(draw: Callable[[], Figure], settings: Any, **options: Any) -> bytes:
    from matplotlib import rc_context
    from matplotlib.text import Text

    stream = io.BytesIO()
    with rc_context(settings), warnings.catch_warnings():
        # A browser has the letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        figure = draw()
        for text in figure.findobj(Text):
            text.set_text(_NOT_XML.sub("", text.get_text()))
        figure.savefig(stream, **options)
    return stream.getvalue()


def _plain(node: ElementTree.Element, key: str, used: set[str]) -> ElementTree.Element:
    """A copy without namespaces and styles: a style becomes attributes, which the page's policy allows."""
    attributes: dict[str, str] = {}
    for name, value in node.attrib.items():
        name = name.rpartition("}")[2]
        if name == "style":
            for part in value.split(";"):
                what, _, said = (word.strip() for word in part.partition(":"))
                if what == "font":
                    what, said = "font-size", next(w for w in said.split() if w.endswith("px"))
                if what and what != "font-family":
                    attributes[what] = _VARIABLES.get(said, said)
        elif name == "id":
            if value in used:
                attributes["id"] = f"{key}-{value}"
        elif name == "href" and not value.startswith("#"):
            attributes[name] = "".join(value.split())
        elif name != "transform" or not value.startswith(("rotate(-0 ", "rotate(0 ")):
            attributes[name] = _LONG.sub(r"\1", " ".join(value.split()))
        if name in ("href", "clip-path") and "#" in value:
            attributes[name] = value.replace("#", f"#{key}-")
    copy = ElementTree.Element(node.tag.rpartition("}")[2], attributes)
    copy.text, copy.tail = (text if text and text.strip() else None for text in (node.text, node.tail))
    for child in node:
        if child.tag.rpartition("}")[2] not in ("metadata", "style"):
            copy.append(_plain(child, key, used))
    return copy


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _axes(
    width: float,
    height: float,
    *,
    left: float = 0.45,
    bottom: float = 0.4,
    top: float = 0.2,
    right: float = 0.1,
) -> tuple[Figure, Any]:
    """A figure with one pair of axes inside margins, in inches; finding margins would mean drawing twice."""
    figure = _figure(width, height)
    inside = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    return figure, figure.add_axes(inside)


def _legend(figure: Figure, axes: Any) -> None:
    """Put the legend in a row below the axes, where it hides no point."""
    handles, names = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, names)) < 32 else 1
    width, height = figure.get_size_inches()
    more = 0.17 * -(-len(names) // columns)
    x, y, wide, high = axes.get_position().bounds
    figure.set_size_inches(width, height + more)
    axes.set_position((x, (y * height + more) / (height + more), wide, high * height / (height + more)))
    figure.legend(handles, names, loc="lower center", ncols=columns)


def _flat(probs: Any) -> tuple[Any, Any]:
    """Triangle coordinates of points of the simplex [k, 3]: member 0 at the top."""
    points = np.asarray(probs)
    return 0.5 * points[:, 0] + points[:, 2], np.sqrt(0.75) * points[:, 0]


def _evaluation(one: LoadedRun) -> Evaluation:
    if one.evaluation is None:
        raise FileError(
            f"{one.run.path} has no evaluation.json; it is produced by randens evaluate {one.run.path}"
        )
    return one.evaluation


def _absent(one: LoadedRun, part: str, what: str) -> FileError:
    return FileError(
        one.problems.get(part)
        or f"{one.run.path} lacks {what}; it is produced by randens report {one.run.path} --measure"
    )
