"""Small parts that sections are made of: figures, tables, numbers in words, notes on what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from randens.evaluation import Estimate
from randens.report.documents import Interval
from randens.report.markup import Markup, Node, element
from randens.report.material import Material

__all__ = ["figure", "fooled", "interval", "missing", "percent", "probs", "shown_difference", "table"]


def missing(one: Material, verb: str, part: str | None = None) -> Markup:
    """A note that names the command which produces what is missing, or what is wrong with what is there."""
    path = shlex.quote(str(one.run.path))
    commands = {
        "evaluate": f"randens evaluate {path}",
        "sample": f"randens sample {path}",
        "audit": f"randens audit {path}",
        "advise": f"randens advise {path}",
        "measure": f"randens report {path} --measure",
        "train": "randens train RECIPE",
    }
    problem = one.problems.get(part or verb)
    why = f"{problem}. Make it again with " if problem else "Not there yet; it is produced by "
    return element("p", why, element("code", commands[verb]), ".", class_="missing")


def figure(picture: Markup, caption: str, numbers: Markup | None = None) -> Markup:
    """A picture with its caption, and its numbers for those who would rather read them."""
    more = None if numbers is None else element("details", element("summary", "the numbers"), numbers)
    return element("figure", element("div", picture, class_="scroll"), element("figcaption", caption), more)


def table(heads: Sequence[str], body: Sequence[Node], caption: str | None = None) -> Markup:
    """A table that scrolls by itself on narrow screens."""
    head = (
        element("thead", element("tr", [element("th", h, scope="col") for h in heads]))
        if any(heads)
        else None
    )
    return element(
        "div",
        element("table", element("caption", caption) if caption else None, head, element("tbody", body)),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption or ", ".join(h for h in heads if h) or "facts",
    )


def shown_difference(found: Estimate | None) -> Node:
    """A difference in points with its interval, coloured where the interval leaves out 0."""
    if found is None:
        return "not comparable"
    clear = found.low > 0 or found.high < 0
    kind = ("good" if found.value > 0 else "bad") if clear else None
    return element(
        "span", f"{100 * found.value:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})", class_=kind
    )


def fooled(members: Sequence[int]) -> str:
    """A set of members in words."""
    if not members:
        return "none"
    return ("member " if len(members) == 1 else "members ") + ", ".join(str(m) for m in members)


def probs(values: ArrayLike) -> str:
    """Probabilities as a vector, or with many members those that are drawn."""
    numbers = np.asarray(values, dtype=np.float64).tolist()
    if len(numbers) > 10:
        used = [f"{i}: {p:.3g}" for i, p in enumerate(numbers) if p > 0]
        return "(" + ", ".join(used[:10]) + (", …)" if len(used) > 10 else ")")
    return "(" + ", ".join(f"{p:.3g}" for p in numbers) + ")"


def interval(estimate: Estimate | Interval) -> str:
    """From low to high, in per cent."""
    return f"{percent(estimate.low)} – {percent(estimate.high)}"


def percent(share: float) -> str:
    """A share as per cent with one digit."""
    return f"{100 * share:.1f} %"
