"""Figures by matplotlib in one style, 540 pixels wide: images of the page, and PNG, SVG or PDF for papers."""

from __future__ import annotations

import base64
import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from randens.core.errors import FileError, InputError, unknown
from randens.core.files import write_atomic
from randens.evaluation import Curve, Evaluation
from randens.evaluation.tables import count, labeled
from randens.report.runs import LoadedRun, load_run
from randens.risk import RiskProfile, Sampling, candidates, optimal_sampling
from randens.risk.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLORS", "FIGURES", "compute", "points", "styled", "write_figure"]

COLORS = ("#0067a5", "#b84a00", "#00745a", "#9b3f77", "#6b5900", "#4b4b4b")
QUIET, GRID = "#50606e", "#e3e8ec"
WIDTH = 5.6  # inches
FORMATS = ("png", "svg", "pdf")
MOST_SOLVED = 16  # members; up to so many a report finds the optimum itself
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "D", "s", "*")
_ATTEMPTS = (1, 2, 3, 5, 10, 20, 50, 100)
_FINE = 120  # points along each side of the triangle
_KINDS = {
    "member": (".", 60, COLORS[5], COLORS[5]),
    "single": ("s", 45, COLORS[2], COLORS[2]),
    "best": ("o", 50, COLORS[5], COLORS[5]),
    "sampled": ("*", 170, COLORS[0], COLORS[0]),
    "retried": ("*", 170, COLORS[0], "white"),
    "subset": ("D", 45, COLORS[1], "white"),
    "deterministic": ("D", 45, COLORS[1], COLORS[1]),
    "network": ("s", 50, COLORS[2], COLORS[2]),
}
# Text stays text, also where it holds a dollar sign, and the same run gives the same bytes.
_STYLE: dict[str, Any] = {
    "font.size": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "randens",
    "pdf.fonttype": 42,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Line:
    """A named curve; values that are estimates have intervals."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Point:
    """A classifier: what one inference costs, and its robust accuracy. kind: see `_KINDS`."""

    name: str
    flops: float
    robust: Estimate
    kind: str


def write_figure(
    name: str, run: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> Path:
    """Draw one of `FIGURES` about a run, as .pdf, .svg or .png; by default NAME.pdf in the run folder.

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
        endings = ", ".join(f".{ending}" for ending in FORMATS)
        raise InputError(f"output is {str(target)!r}; its ending must be one of {endings}")
    with styled():
        write_atomic(target, drawn(FIGURES[name](loaded), kind))
    return target


@contextmanager
def styled() -> Iterator[None]:
    """The style of all figures, within which they are made and written."""
    from matplotlib import rc_context

    style: Any = _STYLE  # the stubs list every key
    with rc_context(style), warnings.catch_warnings():
        # A browser has the letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


def drawn(figure: Figure, kind: str = "svg") -> bytes:
    """The content of a file of this kind."""
    labeled(figure)
    stream = io.BytesIO()
    dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None, "Creator": None}, "png": {}}
    figure.savefig(stream, format=kind, dpi=200, metadata=dates[kind], bbox_inches="tight")
    return stream.getvalue()


def data_uri(draw: Callable[..., Figure], *shown: Any) -> str:
    """A figure of what is `shown`, as the source of an image."""
    with styled():
        return "data:image/svg+xml;base64," + base64.b64encode(drawn(draw(*shown))).decode("ascii")


def lines(
    series: Sequence[Line],
    x_title: str,
    y_title: str,
    *,
    percent: bool = True,
    log: bool = False,
    rules: Sequence[tuple[float, str]] = (),
) -> Figure:
    """Lines over x, with bands for intervals. rules: vertical lines with their names."""
    figure = _figure(3.3)
    axes = figure.add_subplot()
    times = 100 if percent else 1
    for number, line in enumerate(series):
        style: dict[str, Any] = {"color": COLORS[number % 6], "linestyle": _DASHES[number % 4]}
        if len(line.x) <= 12:
            style["marker"] = _MARKERS[number % 4]
        axes.plot(line.x, [times * float(y) for y in line.y], label=line.name, **style)
        if all(isinstance(y, Estimate) for y in line.y) and number < 2:
            ends = [(times * y.low, times * y.high) for y in line.y if isinstance(y, Estimate)]
            axes.fill_between(line.x, *np.array(ends).T, color=COLORS[number % 6], alpha=0.13, linewidth=0)
    for at, name in rules:
        axes.axvline(at, color=QUIET, linewidth=0.8, linestyle=":", zorder=1)
        axes.annotate(f" {name}", (at, 1), xycoords=("data", "axes fraction"), va="top", color=QUIET)
    if log:
        axes.set_xscale("log")
        axes.set_xticks(series[0].x, [f"{x:g}" for x in series[0].x])
        axes.minorticks_off()
    axes.set(xlabel=x_title, ylabel=f"{y_title} (%)" if percent else y_title)
    axes.grid(axis="y")
    if len(series) > 1:
        _legend(figure, axes)
    return figure


def compute(shown: Sequence[Point]) -> Figure:
    """Robust accuracy with intervals against FLOPs, on a logarithmic axis; points of equal cost stand side by side."""
    figure = _figure(3.6)
    axes = figure.add_subplot()
    shown = [replace(point, flops=max(point.flops, 1.0)) for point in shown]
    costs = sorted({point.flops for point in shown})
    step = 0.05 * max(math.log(costs[-1] / costs[0]), 0.7)
    named: set[str] = set()
    for cost in costs:
        side = [point for point in shown if point.flops == cost and point.kind != "member"]
        for point in shown:
            if point.flops != cost:
                continue
            marker, size, color, face = _KINDS[point.kind]
            place = side.index(point) - (len(side) - 1) / 2 if point in side else -(len(side) + 1) / 2
            x = cost * math.exp(step * place)
            robust = point.robust
            if point in side:
                axes.vlines(x, 100 * robust.low, 100 * robust.high, color=color, linewidth=1.2)
            label = None if point.name in named else point.name
            named.add(point.name)
            style: dict[str, Any] = {"color": face, "edgecolors": color, "zorder": 3, "label": label}
            axes.scatter([x], [100 * robust], marker=marker, s=size, **style)
    axes.set_xscale("log")
    far = [cost for i, cost in enumerate(costs) if not i or math.log(cost / costs[i - 1]) > 0.1]
    axes.set_xticks(far, [count(cost) for cost in far])
    axes.minorticks_off()
    axes.set_xlim(costs[0] * math.exp(-5 * step), costs[-1] * math.exp(5 * step))
    axes.set(xlabel="FLOPs of one answer", ylabel="robust accuracy (%)")
    axes.grid(axis="y")
    _legend(figure, axes)
    return figure


def points(result: Evaluation, name: str = "") -> list[Point]:
    """What an evaluation measured, for `compute`: also the sampled answer after 10 attempts."""
    title = f"{name}: " if name else ""
    best = int(np.argmin(result.member_risks))
    found = []
    for place, row in enumerate(result.rows()):
        robust = row.accuracy.robust
        if row.kind == "single":
            found.append(Point(name or "one network", row.flops, robust, "single"))
        elif row.kind == "member":
            words = f"{title}best member, {place}" if place == best else f"{title}other members"
            found.append(Point(words, row.flops, robust, "best" if place == best else "member"))
        elif row.kind == "randomized":
            found.append(Point(f"{title}sampled, 1 attempt", row.flops, robust, "sampled"))
            found.append(Point(f"{title}sampled, 10 attempts", row.flops, result.after(10), "retried"))
        elif row.kind == "deterministic":
            found.append(Point(title + row.name, row.flops, robust, "deterministic"))
    return sorted(found, key=lambda point: list(_KINDS).index(point.kind))


def fooled_sets(result: Evaluation) -> tuple[list[tuple[tuple[int, ...], int]], list[int]]:
    """The 12 most frequent sets that the inputs' worst perturbations fool, with their counts; the members to draw."""
    counts = Counter(tuple(np.flatnonzero(row).tolist()) for row in result.errors)
    listed = sorted(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0]))[:12]
    return listed, sorted({member for fooled, _ in listed for member in fooled}) or [0]


def sets(listed: Sequence[tuple[tuple[int, ...], int]], members: Sequence[int]) -> Figure:
    """How often exactly these members are fooled: bars above, the members of each set as joined dots."""
    figure = _figure(2.2 + 0.22 * len(members))
    top, bottom = figure.subplots(
        2, 1, sharex=True, height_ratios=(2, 0.24 * len(members)), gridspec_kw={"hspace": 0.02}
    )
    bars = top.bar(range(len(listed)), [count for _, count in listed], color=COLORS[0], width=0.65)
    top.bar_label(bars)
    top.margins(y=0.12)
    top.set_ylabel("inputs")
    for number, (fooled, _) in enumerate(listed):
        bottom.plot([number] * len(members), range(len(members)), "o", color=GRID)
        inside = [members.index(member) for member in fooled]
        bottom.plot([number] * len(inside), inside, "o-", color=COLORS[0])
    bottom.set_yticks(range(len(members)), [f"member {member}" for member in members])
    bottom.set_ylim(len(members) - 0.5, -0.5)
    bottom.spines[:].set_visible(False)
    for axes in (top, bottom):
        axes.tick_params(bottom=False, labelbottom=False, left=axes is top)
    return figure


def attempts(result: Evaluation) -> Figure:
    """Robust accuracy after so many attempts: both kinds of draw, the best member, the average of all."""
    best = int(np.argmin(result.member_risks))
    series = [Line("sampled per query", _ATTEMPTS, [result.after(q) for q in _ATTEMPTS])]
    constant = [(f"best member, {best}", result.member_accuracies[best].robust)]
    if result.deterministic is not None:
        constant.append((f"average of all {result.members}", result.deterministic.robust))
    for name, robust in constant:
        series.append(Line(name, _ATTEMPTS, [robust] * len(_ATTEMPTS)))
    series.insert(2, Line("sampled per client", _ATTEMPTS, [result.after(q, "client") for q in _ATTEMPTS]))
    return lines(series, "attempts of the attacker", "robust accuracy", log=True)


def curve(result: Curve, rules: Sequence[tuple[float, str]] = ()) -> Figure:
    """Robust accuracy over ε of the sampled answer, the best member and the average of all."""
    radii = [point.eps for point in result.points]
    best = max(range(len(result.points[0].members)), key=lambda i: sum(p.members[i] for p in result.points))
    names = {"model": "model", "sampled": "sampled", f"member {best}": f"best member, {best}"}
    names["average"] = "average of all"
    shown = [Line(names[name], radii, values) for name, values in result.lines.items() if name in names]
    return lines(shown, f"radius ε in {result.about.threat['norm']}", "robust accuracy", rules=rules)


def training(epochs: Sequence[Any], loss: bool = False) -> Figure:
    """Accuracies, or the mean loss, over the epochs; dotted lines where the next member begins."""
    names = {
        "natural": "natural, validation",
        "robust": "robust, validation",
        "accuracy": "under the training attack",
    }
    number = range(1, len(epochs) + 1)
    begins = [
        (n, "")
        for n, a, b in zip(number, [{}, *epochs], epochs, strict=False)
        if a and a.get("member") != b.get("member")
    ]
    words = "epoch" + (", all members in a row" if begins else "")
    if loss:
        means = [(n, float(np.mean(e["loss"]))) for n, e in zip(number, epochs, strict=True) if e.get("loss")]
        return lines(
            [Line("loss", *zip(*means, strict=True))], words, "training loss", percent=False, rules=begins
        )
    series = []
    for key, name in names.items():
        known = [(n, float(e[key])) for n, e in zip(number, epochs, strict=True) if e.get(key) is not None]
        if known:
            series.append(Line(name, *zip(*known, strict=True)))
    return lines(series, words, "accuracy", rules=begins)


def landscape(result: Evaluation) -> Figure:
    """The risk for every α: a curve for two members; for more the triangle of the three that matter most."""
    profile, optimum = result.profile, solve(result.profile, result.clean.mean(axis=0))
    attacked = [result.probs, *result.also.values()]
    note = "Attacked: the corners and the rings. Between them the risk shown is a lower bound."
    if result.members == 2:
        share = np.array([0.0, 0.5, 1.0])
        alphas = np.stack([1 - share, share], axis=1)
        figure = lines(
            [
                Line("risk η(α)", share.tolist(), [profile.risk(a) for a in alphas]),
                Line("mean risk of the members", share.tolist(), (alphas @ profile.member_risks).tolist()),
                Line("floor (Theorem 3)", [0, 1], [result.bounds.floor] * 2),
            ],
            "probability of member 1",
            "risk",
            percent=False,
        )
        axes = figure.axes[0]
        place = [(float(alpha[1]), profile.risk(alpha)) for alpha in [*attacked, *np.eye(2)]]
        axes.plot(
            *zip(*place, strict=True), "o", color="black", fillstyle="none", markersize=9, clip_on=False
        )
        figure.text(0.02, -0.12, note, color=QUIET, fontsize=9)
        return figure
    from matplotlib.ticker import MaxNLocator
    from matplotlib.tri import Triangulation

    most = result.probs if optimum is None else optimum.probs
    face = sorted(np.argsort(-(result.probs + 1e-3 * most), kind="stable")[:3].tolist())
    part = profile.restrict(face)
    grid = np.array([(i, j, _FINE - i - j) for i in range(_FINE + 1) for j in range(_FINE + 1 - i)]) / _FINE
    figure = _figure(4.2)
    axes = figure.add_subplot()
    shaded = axes.tricontourf(
        Triangulation(*_flat(grid)), [part.risk(p) for p in grid], levels=16, cmap="Blues"
    )
    figure.colorbar(shaded, ax=axes, label="risk η(α)", shrink=0.8, ticks=MaxNLocator(5))
    axes.plot(*_flat(np.eye(3)[[0, 1, 2, 0]]), color=QUIET, linewidth=1)
    light: dict[str, Any] = {"linestyle": "none", "clip_on": False, "markeredgecolor": "black"}
    ten = np.array([[float(p) for p in row] for row in candidates(3)])
    axes.plot(*_flat(ten), "o", markersize=4, color="white", label="candidates (Theorem 2)", **light)
    rings = np.array([alpha[face] for alpha in attacked if alpha[face].sum() > 1 - 1e-9])
    if len(rings):
        ring = {**light, "markeredgewidth": 1.8, "fillstyle": "none"}
        axes.plot(*_flat(rings), "o", markersize=11, label="attacked", color="black", **ring)
    if optimum is not None and optimum.probs[face].sum() > 1 - 1e-9:
        axes.plot(
            *_flat(optimum.probs[face][None]),
            "*",
            markersize=14,
            color=COLORS[1],
            label="optimum here",
            **light,
        )
    for member, corner, (dx, dy) in zip(
        face, np.eye(3), ((0, 0.06), (-0.02, -0.1), (0.02, -0.1)), strict=True
    ):
        (x,), (y,) = _flat(corner[None])
        axes.text(x + dx, y + dy, f"member {member}: {profile.member_risks[member]:.3f}", ha="center")
    axes.set_aspect("equal")
    axes.axis("off")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.25, 1.02))
    figure.text(0.03, -0.02, note, color=QUIET, fontsize=9)
    return figure


def solve(profile: RiskProfile, clean_risks: Any = None) -> Sampling | None:
    """The proven optimum on this profile; None for one member, and for many, where it may take minutes."""
    if not 2 <= profile.members <= MOST_SOLVED:
        return None
    return optimal_sampling(profile, method="exact", clean_risks=clean_risks)


FIGURES: dict[str, Callable[[LoadedRun], Figure]] = {
    "attempts": lambda one: attempts(_evaluation(one, least=2)),
    "compute": lambda one: compute(points(_evaluation(one))),
    "landscape": lambda one: landscape(_evaluation(one, least=2)),
    "radius": lambda one: curve(
        _known(one, "curve", one.results.get("curve"), "evaluate {} --eps 0:16/255:9")
    ),
    "sets": lambda one: sets(*fooled_sets(_evaluation(one, least=2))),
    "training": lambda one: training(
        _known(one, "metrics", next(iter(one.epochs.values()), None), "train RECIPE")
    ),
}
"""What `write_figure` draws, by name."""


def _known(one: LoadedRun, kind: str, value: Any, command: str) -> Any:
    """`value`, or an error that says what makes it."""
    if value is None:
        made = f"{one.run.path} has none; randens {command.format(one.run.path)} makes it"
        raise FileError(one.problems.get(kind) or made)
    return value


def _evaluation(one: LoadedRun, least: int = 1) -> Evaluation:
    result: Evaluation = _known(one, "evaluation", one.evaluation, "evaluate {}")
    if result.members < least:
        raise InputError(f"{one.run.path} has one member; this figure needs at least two")
    return result


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


def _legend(figure: Figure, axes: Any) -> None:
    """Put the legend below the axes, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, names)) < 34 else 1
    figure.legend(handles, names, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=columns)


def _flat(probs: Any) -> tuple[Any, Any]:
    """Triangle coordinates of points of the simplex [k, 3]: member 0 at the top."""
    found = np.asarray(probs)
    return 0.5 * found[:, 0] + found[:, 2], np.sqrt(0.75) * found[:, 0]
