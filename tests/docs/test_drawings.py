"""Drawings are told apart by what can be seen, and by nothing else."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.drawings import Drawing, difference


def _drawn(fonts: str = "none", **changes: Any) -> Drawing:
    """A line, markers, a filled area, a bar and an image, with something about them changed."""
    seen: dict[str, Any] = {
        "marker": 0.0,
        "area": 0.0,
        "title": "a title",
        "colour": "#0067a5",
        "corners": 20,
        "pixel": 1.0,
    } | changes
    with matplotlib.rc_context({"svg.fonttype": fonts, "svg.hashsalt": "randens"}):
        figure = Figure(figsize=(4, 3))
        axes = figure.subplots()
        x = np.linspace(0, 1, int(seen["corners"]) + 1)
        axes.plot(x, x / 2, color=seen["colour"])
        axes.plot([0.2, 0.7], [0.3, 0.6 + seen["marker"]], "o")
        axes.fill_between([0, 0.5, 1], [0.8, 0.9 + seen["area"], 0.8], 1)
        axes.bar([0.1], [0.2], 0.1)
        pixels = np.tile(np.linspace(0, 1, 8), (8, 1))
        pixels[:, 3:6] *= seen["pixel"]
        axes.imshow(pixels, extent=(0.5, 0.9, 0.0, 0.2), aspect="auto")
        axes.set(xlim=(0, 1), ylim=(0, 1), title=seen["title"])
        content = io.BytesIO()
        figure.savefig(content, format="svg")
    return Drawing(content.getvalue())


@pytest.mark.parametrize("fonts", ["none", "path"])
def test_what_cannot_be_seen_does_not_count(fonts: str) -> None:
    drawn = _drawn(fonts)
    assert "a title" in drawn.texts
    assert difference(drawn, _drawn(fonts)) == ""
    # A line through other points of the same line, and a hundredth of a point aside.
    assert difference(drawn, _drawn(fonts, corners=13, marker=3e-5, area=3e-5)) == ""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"title": "another"}, "texts"),
        ({"colour": "#b84a00"}, "colours"),
        ({"marker": 0.02}, "the markers of line2d"),
        ({"area": 0.02}, "FillBetween"),
        ({"pixel": 0.5}, "image"),
        ({"corners": 0}, "a line of line2d"),
    ],
)
@pytest.mark.parametrize("fonts", ["none", "path"])
def test_what_can_be_seen_does(changes: dict[str, Any], told: str, fonts: str) -> None:
    assert told in difference(_drawn(fonts), _drawn(fonts, **changes))
    assert told in difference(_drawn(fonts, **changes), _drawn(fonts))
