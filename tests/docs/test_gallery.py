"""Every figure of the gallery can be drawn again by its command, from the runs that ship with randens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT, blocks, commands
from tests.drawings import Drawing

from randens.report import write_figure

PAGE = ROOT / "docs" / "gallery.md"
DRAWN = [
    words for block in blocks(PAGE) for words in commands(block.code) if words[:2] == ["randens", "figure"]
]


def test_every_figure_has_its_command() -> None:
    shown = set(re.findall(r"\]\((figures/\w+\.svg)\)", PAGE.read_text(encoding="utf-8")))
    assert shown == {str(Path(words[-1]).relative_to("docs")) for words in DRAWN}
    assert len(shown) >= 4


@pytest.mark.parametrize("words", DRAWN, ids=lambda words: words[2])
def test_the_command_draws_the_figure(words: list[str], tmp_path: Path) -> None:
    _, _, name, run, option, output = words
    assert option == "--output"
    drawn = Drawing(write_figure(name, ROOT / run, tmp_path / "figure.svg").read_bytes())
    kept = Drawing((ROOT / output).read_bytes())
    # Where lines go may change with the style of the figures; what is written on the axes tells which run it is.
    assert set(drawn.texts) & set(kept.texts), f"{output} shows something else: run {' '.join(words)}"
