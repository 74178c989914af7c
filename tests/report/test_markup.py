"""Nothing from data becomes markup."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from randens.report.charts import ticks
from randens.report.markup import Markup, element, embedded_json

_hostile = st.text(alphabet=st.sampled_from("<>&\"'/!-script \u2028\u2029éα\n\\"), max_size=40) | st.text(
    max_size=40
)


class _Reader(HTMLParser):
    """What a browser would see: the elements, their attributes, the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(text=_hostile, value=_hostile)
def test_text_and_attributes_come_out_as_they_went_in(text: str, value: str) -> None:
    text, value = text.replace("\x00", "").replace("\r", ""), value.replace("\x00", "").replace("\r", "")
    reader = _Reader()
    reader.feed(element("p", text, title=value))
    reader.close()
    assert reader.tags == [("p", {"title": value})]
    assert reader.text == text


@given(
    value=st.recursive(
        _hostile, lambda inner: st.lists(inner) | st.dictionaries(_hostile, inner), max_leaves=8
    )
)
def test_data_blocks_cannot_be_left_and_read_back_the_same(value: object) -> None:
    block = embedded_json("data-0", value)
    head, tail = '<script type="application/json" id="data-0">', "</script>"
    assert block.startswith(head)
    assert block.endswith(tail)
    inside = block[len(head) : -len(tail)]
    assert not set("<>&\u2028\u2029") & set(inside)
    assert json.loads(inside) == value


def test_markup_inside_markup_stays() -> None:
    assert element("p", element("b", "x"), None, 3) == "<p><b>x</b>3</p>"
    assert element("input", checked=True, disabled=False, value="") == '<input checked value=""/>'
    assert isinstance(element("p"), Markup)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.3, 0.52, [0.3, 0.35, 0.4, 0.45, 0.5]), (2.0, 2.0, [2.0])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)
