"""HTML and SVG built from values, escaped by construction: text from data can never become markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

__all__ = ["Markup", "Node", "element", "embedded_json", "join"]


class Markup(str):
    """Text that is markup already. Only this module makes it from values; everything else is escaped."""

    __slots__ = ()


Node = str | int | float | Markup | None
"""A child of an element: text (escaped), a number, markup, or None for nothing."""

_VOID = frozenset(
    {"br", "hr", "img", "input", "meta", "link", "line", "circle", "rect", "path", "polygon", "use"}
)


def element(
    name: str, /, *children: Node | Iterable[Node], **attributes: str | int | float | bool | None
) -> Markup:
    """<name attributes>children</name>. In attribute names `_` stands for `-` and a trailing one is dropped.

    True writes the attribute alone, None and False leave it out.

    >>> element("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    text = [f"<{name}"]
    for key, value in attributes.items():
        label = key.rstrip("_").replace("_", "-")
        if value is True:
            text.append(f" {label}")
        elif value is not None and value is not False:
            text.append(
                f' {label}="{_number(value) if isinstance(value, float) else html.escape(str(value))}"'
            )
    inside = "".join(join(children))
    if not inside and name in _VOID:
        return Markup("".join(text) + "/>")
    return Markup("".join(text) + f">{inside}</{name}>")


def join(children: Iterable[Node | Iterable[Node]]) -> Markup:
    """Children one after the other, each escaped unless it is markup."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(str(child))
        elif isinstance(child, str | int | float):
            parts.append(html.escape(str(child)))
        else:
            parts.append(str(join(child)))
    return Markup("".join(parts))


def embedded_json(identifier: str, value: Any) -> Markup:
    """A data block that scripts of the page read; no text in it can end the block or start another one."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json" id="{html.escape(identifier)}">{text}</script>')


def _number(value: float) -> str:
    """Coordinates need no more than two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
