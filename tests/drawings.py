"""What an SVG drawn by matplotlib says: its texts, its parts, and where their lines run.

Coordinates differ in their last digits, and contours in the corners they pass through, from one processor to the
next; what is seen does not. So drawings are compared by what is visible: every text is the
same, every part is there, and no line or marker is further than a fraction of a point from its counterpart.
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["Drawing", "difference"]

Segments = NDArray[np.float64]

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass
class Part:
    """What one named group draws itself: strokes as their segments [n, 2, 2], markers by their places."""

    strokes: list[Segments] = field(default_factory=list)
    markers: list[tuple[float, float]] = field(default_factory=list)
    colours: list[str] = field(default_factory=list)
    images: list[NDArray[np.uint8]] = field(default_factory=list)


class Drawing:
    """An SVG by its texts, in order, and its parts by matplotlib's names for them ("line2d_3")."""

    def __init__(self, svg: bytes) -> None:
        self.texts: list[str] = []
        self.parts: dict[str, Part] = {}
        builder = ElementTree.TreeBuilder(insert_comments=True)
        self._read(ElementTree.fromstring(svg, ElementTree.XMLParser(target=builder)), "")

    def _read(self, element: ElementTree.Element, part: str) -> None:
        for child in element:
            if not isinstance(child.tag, str):  # a comment: how text drawn as outlines is given
                self.texts.append((child.text or "").strip())
                continue
            tag = child.tag.removeprefix(_SVG)
            if tag in ("defs", "metadata"):  # shapes of glyphs and markers, and clipping
                continue
            name = child.get("id") if tag == "g" else None
            inside = self.parts.setdefault(name or part, Part())
            if tag == "text":
                self.texts.append("".join(child.itertext()).strip())
            elif tag == "path":
                inside.strokes.append(_segments(child.get("d", "")))
            elif tag == "use" and "x" in child.attrib:
                inside.markers.append((float(child.attrib["x"]), float(child.attrib["y"])))
            elif tag == "image":
                stored = base64.b64decode(child.attrib[_HREF].partition(",")[2])
                inside.images.append(np.asarray(Image.open(io.BytesIO(stored)).convert("RGB")))
            if tag in ("path", "use"):
                inside.colours += re.findall(r"(?:fill|stroke): (\S+?)(?:;|$)", child.get("style", ""))
            self._read(child, name or part)


def difference(one: Drawing, other: Drawing, *, points: float = 0.5, pixels: float = 0.01) -> str:
    """What sets two drawings apart, in words; empty if nothing that can be seen does.

    points: how far lines and markers may be from each other. pixels: the share of pixels that may differ.
    """
    if one.texts != other.texts:
        return f"texts {sorted(set(one.texts) ^ set(other.texts)) or 'in another order'}"
    if list(one.parts) != list(other.parts):
        return f"parts {sorted(set(one.parts) ^ set(other.parts))}"
    for name, a in one.parts.items():
        b = other.parts[name]
        if a.colours != b.colours:
            return f"the colours of {name}"
        if len(a.strokes) != len(b.strokes) or len(a.markers) != len(b.markers):
            return f"the number of lines or markers of {name}"
        if not np.allclose(a.markers, b.markers, rtol=0, atol=points):
            return f"the markers of {name}"
        for mine, theirs in zip(a.strokes, b.strokes, strict=True):
            if max(_apart(mine, theirs), _apart(theirs, mine)) > points:
                return f"a line of {name}"
        for shown, wanted in zip(a.images, b.images, strict=True):
            if shown.shape != wanted.shape or (shown != wanted).any(axis=-1).mean() > pixels:
                return f"the image of {name}"
    return ""


def _segments(path: str) -> Segments:
    """The pieces that a path joins; of curves, those between their control points."""
    pieces = [np.zeros((0, 2, 2))]
    for stroke in path.split("M")[1:]:
        points = np.array([float(n) for n in _NUMBER.findall(stroke)]).reshape(-1, 2)
        if len(points) == 1 or "z" in stroke:
            points = np.concatenate([points, points[:1]])
        pieces.append(np.stack([points[:-1], points[1:]], axis=1))
    return np.concatenate(pieces)


def _apart(stroke: Segments, other: Segments) -> float:
    """The largest distance of a corner of the first stroke from the second."""
    if not len(stroke) or not len(other):
        return 0.0 if len(stroke) == len(other) else np.inf
    start, along = other[:, 0], other[:, 1] - other[:, 0]
    length = np.maximum((along**2).sum(axis=1), 1e-12)
    worst = 0.0
    for point in stroke.reshape(-1, 2):
        share = np.clip(((point - start) * along).sum(axis=1) / length, 0, 1)
        nearest = start + share[:, None] * along
        worst = max(worst, float(np.sqrt(((point - nearest) ** 2).sum(axis=1)).min()))
    return worst
