"""Nothing from data becomes markup."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report.made_runs import chosen_evaluation, chosen_run

from randens.report import write_figure, write_report
from randens.report.figures import bars, inline, lines
from randens.report.page import fill
from randens.report.tables import Line

_hostile = st.text(alphabet=st.sampled_from("<>&\"'/!-script $\u2028\u2029éα\n\\"), max_size=40) | st.text(
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


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader


def explorer(**values: Any) -> str:
    """The teaching page's template with any values, whether or not they could be typed."""
    given: dict[str, Any] = {
        "title": "",
        "by_risks": True,
        "risks": "",
        "conflict": 1,
        "configurations": "",
        "examples": {},
        "data": {},
    }
    return fill("explore.html", scripts=[], **{**given, **values})


PLAIN = read(explorer(examples={"x": ""}))


@given(text=_hostile, value=_hostile)
@settings(deadline=None)
def test_text_and_attributes_come_out_as_they_went_in(text: str, value: str) -> None:
    text, value = text.replace("\x00", "").replace("\r", ""), value.replace("\x00", "").replace("\r", "")
    reader = read(explorer(title=text, risks=value, examples={text: ""}))
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in PLAIN.tags]
    assert next(found for tag, found in reader.tags if found.get("id") == "risks")["value"] == value
    assert next(found for tag, found in reader.tags if tag == "button")["data-example"] == text
    assert text in reader.text


@given(
    value=st.recursive(
        _hostile, lambda inner: st.lists(inner) | st.dictionaries(_hostile, inner), max_leaves=8
    )
)
@settings(deadline=None)
def test_data_blocks_cannot_be_left_and_read_back_the_same(value: object) -> None:
    page = explorer(data={"data-0": value})
    head, tail = '<script type="application/json" id="data-0">', "</script>"
    inside = page[page.index(head) + len(head) :].partition(tail)[0]
    assert not set("<>&\u2028\u2029") & set(inside)
    assert json.loads(inside) == value


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$\\frac{$ & ]]> <!--",
    "a\x1b[31m\x00\ud800b",
    "文字 🙂",
    "</svg></div>",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_figures_are_text(name: str) -> None:
    drawn = inline("k", name, bars, [(name, 3.0, None), ("other", 1.0, (0.5, 1.5))], x_title=name)
    reader = read(str(drawn))
    allowed = {"svg", "g", "path", "defs", "use", "text", "clippath", "rect"}
    assert {tag for tag, _ in reader.tags} <= allowed
    for _, attributes in reader.tags:
        assert not [key for key in attributes if key == "style" or key.startswith("on")]
    shown = "".join(sign for sign in name if sign >= " " and sign != "\ud800")
    assert dict(reader.tags)["svg"]["aria-label"] == shown
    assert shown[:29] in reader.text


def test_figures_of_a_page_do_not_share_names() -> None:
    """Clip paths and markers are found by name: a name that two figures use would mix them up."""

    def names(key: str) -> tuple[set[str], set[str]]:
        one = Line("a", [(0.0, 0.1), (1.0, 0.5)])
        tags = read(str(inline(key, "words", lines, [one, one], x_title="x", y_title="y"))).tags
        made = {found["id"] for _, found in tags if "id" in found}
        used = {
            str(value).strip("url()").lstrip("#")
            for _, found in tags
            for at, value in found.items()
            if at in ("href", "clip-path")
        }
        return {str(name) for name in made}, used

    first, second = names("a"), names("b")
    assert first[0] == first[1] != set()
    assert not first[0] & second[0]
    assert names("a") == first


@pytest.mark.parametrize("name", ['<b onclick="x">&amp;', "$x_{$", "a\nb"])
def test_hostile_folder_names_make_pages_and_figures(tmp_path: Path, name: str) -> None:
    one = chosen_run(tmp_path / name, chosen_evaluation(2, n=20))
    two = chosen_run(tmp_path / "other", chosen_evaluation(1, n=20))
    reader = read(write_report([one, two]).read_text(encoding="utf-8"))
    assert not [tag for tag, found in reader.tags if tag == "b" or "onclick" in found]
    assert name in reader.text
    assert write_figure("flops", one).exists()
