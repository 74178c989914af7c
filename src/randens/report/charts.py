"""Charts as SVG, drawn here: small, crisp in print, in the page's colours, with words for those who cannot see them.

Series differ in dashes and marks as well as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from randens.report.markup import Markup, Node, element

__all__ = ["Mark", "Series", "bars", "lines", "matrix", "scatter", "ticks", "upset"]

_W, _H = 440.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 14.0, 28.0, 46.0
_DASHES = ("", " dashed", " dotted")


@dataclass(frozen=True)
class Series:
    """A named line: points (x, y), and for each (low, high) of its interval if known."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float]] | None = None


@dataclass(frozen=True)
class Mark:
    """A named point of a scatter plot with the interval of its y; `kind` is dot, star, diamond or small."""

    name: str
    x: float
    y: float
    low: float
    high: float
    kind: str
    series: int = 0


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * k for k in (1, 2, 2.5, 5, 10) if size * k >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    found = []
    while first * step <= high + 1e-9 * step:
        found.append(round(first * step, 12) + 0.0)
        first += 1
    return found


def lines(
    series: Sequence[Series],
    *,
    label: str,
    x_title: str,
    y_title: str,
    percent: bool = True,
    rule: tuple[float, str] | None = None,
    breaks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Lines over x. rule: a vertical line with a name. breaks: vertical lines where something new begins."""
    xs = [x for s in series for x, _ in s.points] + ([rule[0]] if rule else [])
    ys = [y for s in series for _, y in s.points] + [v for s in series for i in s.intervals or () for v in i]
    frame = _Frame.around(xs, ys, zero=percent)
    parts: list[Node] = [*frame.axes(x_title, y_title, percent)]
    for at, name in ([rule] if rule else []) + list(breaks):
        x = frame.x(at)
        parts.append(element("line", class_="rule", x1=x, x2=x, y1=_TOP, y2=_H - _BOTTOM))
        end = x > _W - 70
        parts.append(
            element(
                "text",
                name,
                x=x + (-4 if end else 4),
                y=_TOP + 11,
                class_="soft",
                text_anchor="end" if end else None,
            )
        )
    for number, one in enumerate(series):
        style = _style(number)
        for (x, _), (low, high) in zip(one.points, one.intervals or (), strict=False):
            parts.append(
                element(
                    "line",
                    class_=f"whisker c{number % 6}",
                    x1=frame.x(x),
                    x2=frame.x(x),
                    y1=frame.y(low),
                    y2=frame.y(high),
                )
            )
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in one.points)
        parts.append(element("polyline", class_=f"line {style}", points=path))
        if len(one.points) <= 12:
            parts += [
                _shape(_KINDS[number % 4], frame.x(x), frame.y(y), number, _said(one.name, x, y, percent))
                for x, y in one.points
            ]
    return element("div", _svg(label, parts), _legend([s.name for s in series]))


def scatter(marks: Sequence[Mark], *, label: str, x_title: str, y_title: str) -> Markup:
    """Points with intervals over a logarithmic x axis, each with its name beside it."""
    exponents = [math.log10(m.x) for m in marks]
    low, high = min(exponents), max(exponents)
    pad = max(0.15, 0.25 * (high - low))
    frame = _Frame.around(
        [low - pad, high + pad], [v for m in marks for v in (m.low, m.high)], zero=False, tight=True
    )
    parts: list[Node] = [*frame.axes(x_title, y_title, True, names=_log_ticks(low - pad, high + pad))]
    placed: list[tuple[float, float]] = []
    for mark, exponent in sorted(zip(marks, exponents, strict=True), key=lambda pair: -pair[0].y):
        x, y = frame.x(exponent), frame.y(mark.y)
        parts.append(
            element(
                "line",
                class_=f"whisker c{mark.series % 6}",
                x1=x,
                x2=x,
                y1=frame.y(mark.low),
                y2=frame.y(mark.high),
            )
        )
        said = f"{mark.name}: {mark.y:.1%} ({mark.low:.1%} to {mark.high:.1%})"
        parts.append(_shape(mark.kind, x, y, mark.series, said))
        if mark.kind == "small":
            continue
        left = x > _W * 0.55
        at = y + 4
        while any(abs(at - other) < 14 and abs(x - where) < 150 for where, other in placed):
            at += 14
        placed.append((x, at))
        parts.append(
            element(
                "text", mark.name, x=x - 11 if left else x + 11, y=at, text_anchor="end" if left else "start"
            )
        )
    return _svg(label, parts)


def bars(
    rows: Sequence[tuple[str, float, tuple[float, float] | None, str]], *, label: str, percent: bool = True
) -> Markup:
    """Horizontal bars: (name, value, interval, words at the end)."""
    most = max([v for _, v, _, _ in rows] + [i[1] for _, _, i, _ in rows if i] + [1e-9])
    longest = max(len(name) for name, _, _, _ in rows)
    name_width, height = min(170.0, 14 + 6.9 * longest), 26.0
    scale = (_W - name_width - 96) / most
    parts: list[Node] = []
    for number, (name, value, interval, words) in enumerate(rows):
        y = number * height + 4
        parts.append(
            element(
                "text", _cut(name, 23), element("title", name), x=name_width - 8, y=y + 15, text_anchor="end"
            )
        )
        parts.append(
            element(
                "rect", class_="f0", x=name_width, y=y + 3, width=max(0.5, value * scale), height=height - 10
            )
        )
        end = value * scale
        if interval is not None:
            low, high = (name_width + v * scale for v in interval)
            middle = y + height / 2 - 2
            parts.append(element("line", class_="error", x1=low, x2=high, y1=middle, y2=middle))
            end = max(end, interval[1] * scale)
        shown = f"{value:.1%}" if percent else f"{value:,.0f}"
        parts.append(element("text", f"{shown} {words}".strip(), x=name_width + end + 6, y=y + 15))
    return _svg(label, parts, height=len(rows) * height + 8)


def matrix(values: NDArray[np.float64], *, label: str, other: bool = False) -> Markup:
    """A square table of shares as shades, with numbers while they fit. Rows and columns are members."""
    count = len(values)
    size = min(58.0, (_W - 36) / count)
    parts: list[Node] = []
    for i in range(count):
        if count <= 24 or i % 8 == 0:
            middle = 30 + (i + 0.5) * size
            parts.append(element("text", str(i), x=22, y=middle + 4, text_anchor="end"))
            parts.append(element("text", str(i), x=middle, y=20, text_anchor="middle"))
        for j in range(count):
            share = float(values[i, j])
            x, y = 30 + j * size, 30 + i * size
            parts.append(
                element(
                    "rect",
                    element("title", f"members {i} and {j}: {share:.2%}"),
                    class_="cell other" if other else "cell",
                    x=x,
                    y=y,
                    width=size,
                    height=size,
                    fill_opacity=round(0.6 * min(1.0, max(0.0, share)), 3),
                )
            )
            if size >= 34:
                parts.append(
                    element(
                        "text", f"{100 * share:.1f}", x=x + size / 2, y=y + size / 2 + 4, text_anchor="middle"
                    )
                )
    return _svg(label, parts, height=30 + count * size + 6, width=max(30 + count * size + 6, 200.0))


def upset(
    sets: Sequence[tuple[tuple[int, ...], int]], members: Sequence[int], total: int, *, label: str
) -> Markup:
    """How often exactly these members fall together: bars above, the members of each set as joined dots below."""
    column, row, left, top = 30.0, 20.0, 84.0, 110.0
    most = max([count for _, count in sets] + [1])
    place = {member: index for index, member in enumerate(members)}
    parts: list[Node] = []
    width = left + column * len(sets) + 10
    for index, member in enumerate(members):
        y = top + 22 + index * row
        parts.append(element("text", f"member {member}", x=left - 12, y=y + 4, text_anchor="end"))
        if index % 2 == 0:
            parts.append(
                element(
                    "rect",
                    class_="faint",
                    x=left - 6,
                    y=y - row / 2,
                    width=width - left,
                    height=row,
                    fill_opacity=0.6,
                )
            )
    for number, (fooled, count) in enumerate(sets):
        x = left + column * (number + 0.5)
        height = 90.0 * count / most
        said = f"{_members(fooled)}: {count} inputs ({count / total:.1%})"
        parts.append(
            element(
                "rect",
                element("title", said),
                class_="f0",
                x=x - 9,
                y=top - height,
                width=18,
                height=max(height, 0.5),
            )
        )
        parts.append(element("text", str(count), x=x, y=top - height - 4, text_anchor="middle"))
        ys = [top + 22 + place[m] * row for m in fooled]
        if len(ys) > 1:
            parts.append(element("line", class_="c0", x1=x, x2=x, y1=min(ys), y2=max(ys), stroke_width=2.5))
        for member in members:
            inside = member in fooled
            parts.append(
                element(
                    "circle",
                    class_="f0" if inside else "hollow c5",
                    cx=x,
                    cy=top + 22 + place[member] * row,
                    r=5.5 if inside else 4,
                    stroke_opacity=None if inside else 0.35,
                )
            )
    return _svg(label, parts, height=top + 22 + len(members) * row + 4, width=max(width, 240.0))


_KINDS = ("dot", "diamond", "square", "star")


@dataclass(frozen=True)
class _Frame:
    """The rectangle of a chart: data coordinates in, picture coordinates out."""

    left: float
    right: float
    bottom: float
    top: float

    @staticmethod
    def around(xs: Sequence[float], ys: Sequence[float], *, zero: bool, tight: bool = False) -> _Frame:
        low, high = min(ys), max(ys)
        pad = 0.06 * (high - low) or 0.02
        bottom = 0.0 if zero and low >= 0 else low - pad
        top = min(1.0, high + pad) if (zero or tight) and high <= 1 else high + pad
        left, right = min(xs), max(xs)
        if left == right:
            left, right = left - 0.5, right + 0.5
        return _Frame(left, right, max(0.0, bottom) if low >= 0 else bottom, top)

    def x(self, value: float) -> float:
        return _LEFT + (value - self.left) / (self.right - self.left) * (_W - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _TOP + (self.top - value) / (self.top - self.bottom) * (_H - _TOP - _BOTTOM)

    def axes(
        self, x_title: str, y_title: str, percent: bool, names: Sequence[tuple[float, str]] | None = None
    ) -> list[Node]:
        parts: list[Node] = []
        for value in ticks(self.bottom, self.top):
            y = self.y(value)
            parts.append(element("line", class_="grid", x1=_LEFT, x2=_W - _RIGHT, y1=y, y2=y))
            shown = f"{100 * value:g} %" if percent else f"{value:g}"
            parts.append(element("text", shown, x=_LEFT - 6, y=y + 4, text_anchor="end"))
        for value, name in (
            names if names is not None else [(v, f"{v:g}") for v in ticks(self.left, self.right, 6)]
        ):
            x = self.x(value)
            parts.append(element("line", class_="axis", x1=x, x2=x, y1=_H - _BOTTOM, y2=_H - _BOTTOM + 4))
            parts.append(element("text", name, x=x, y=_H - _BOTTOM + 18, text_anchor="middle"))
        parts.append(
            element("line", class_="axis", x1=_LEFT, x2=_W - _RIGHT, y1=_H - _BOTTOM, y2=_H - _BOTTOM)
        )
        parts.append(element("text", x_title, x=(_LEFT + _W - _RIGHT) / 2, y=_H - 8, text_anchor="middle"))
        parts.append(element("text", y_title, x=4, y=10, class_="soft"))
        return parts


def _svg(label: str, parts: Sequence[Node], height: float = _H, width: float = _W) -> Markup:
    wide = "chart wide" if width > _W * 1.3 else "chart"
    return element(
        "svg",
        parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=label,
        class_=wide,
        width=round(1.35 * width),
    )


def _legend(names: Sequence[str]) -> Markup:
    if len(names) < 2:
        return Markup()
    entries = []
    for number, name in enumerate(names):
        sample = element(
            "svg",
            element("line", class_=f"line {_style(number)}", x1=1, x2=27, y1=5, y2=5),
            _shape(_KINDS[number % 4], 14, 5, number, None),
            viewBox="0 0 28 10",
            class_="sample",
            aria_hidden="true",
        )
        entries.append(element("span", sample, name))
    return element("p", entries, class_="legend")


def _style(number: int) -> str:
    return f"c{number % 6}{_DASHES[number // 2 % 3]}"


def _shape(kind: str, x: float, y: float, series: int, said: str | None) -> Markup:
    title = None if said is None else element("title", said)
    colour = f"f{series % 6}"
    if kind == "dot":
        return element("circle", title, class_=colour, cx=x, cy=y, r=4.5)
    if kind == "small":
        return element("circle", title, class_=f"hollow c{series % 6}", cx=x, cy=y, r=3.5)
    if kind == "square":
        return element("rect", title, class_=colour, x=x - 4, y=y - 4, width=8, height=8)
    corners = {"diamond": [(0, 6.5), (6.5, 0), (0, -6.5), (-6.5, 0)]}.get(kind) or [
        (
            (4 if i % 2 else 9.5) * math.sin(i * math.pi / 5),
            -(4 if i % 2 else 9.5) * math.cos(i * math.pi / 5),
        )
        for i in range(10)
    ]
    return element(
        "polygon", title, class_=colour, points=" ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners)
    )


def _said(name: str, x: float, y: float, percent: bool) -> str:
    return f"{name} at {x:g}: {f'{y:.1%}' if percent else f'{y:.4g}'}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _members(fooled: Sequence[int]) -> str:
    return "none" if not fooled else "only " + ", ".join(f"member {m}" for m in fooled)


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    found = []
    for exponent in range(math.floor(low), math.ceil(high) + 1):
        for digit in (1, 2, 5):
            at = exponent + math.log10(digit)
            if low <= at <= high:
                value = digit * 10.0**exponent
                unit, size = next(
                    ((u, s) for u, s in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if value >= s), ("", 1.0)
                )
                found.append((at, f"{value / size:g} {unit}".strip()))
    return found[:: max(1, len(found) // 6)]
