"""Figures for papers: every name, the same numbers as the library, the same bytes twice."""

from __future__ import annotations

import base64
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from tests.report.made_runs import chosen_evaluation, chosen_run

from randens.core.errors import FileError, InputError, printable
from randens.report import FIGURES, write_figure
from randens.report.figures import Line, attempts, compute, data_uri, lines, points, styled

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure(trained_run: Path, tmp_path: Path, name: str) -> None:
    path = write_figure(name, trained_run, tmp_path / f"{name}.svg")
    width = float(ElementTree.fromstring(path.read_bytes()).attrib["viewBox"].split()[2])
    assert 330 < width < 480  # points: readable in a column of 700 pixels


@pytest.mark.parametrize(("members", "kind"), [(2, "png"), (5, "svg"), (17, "pdf")])
def test_the_same_bytes_twice(tmp_path: Path, members: int, kind: str) -> None:
    run = chosen_run(tmp_path / "r", chosen_evaluation(members, n=40))
    first = write_figure("landscape", run, tmp_path / f"a.{kind}").read_bytes()
    assert first.startswith(MAGIC[kind])
    assert write_figure("landscape", run, tmp_path / f"b.{kind}").read_bytes() == first
    if kind == "png":
        assert Image.open(tmp_path / "a.png").size[0] > 700
    assert write_figure("sets", run) == run / "sets.pdf"


def test_attempts_are_the_evaluation_s() -> None:
    result = chosen_evaluation(3, probs=[0.5, 0.25, 0.25])
    with styled():
        axes = attempts(result).axes[0]
    drawn: dict[str, dict[float, float]] = {
        str(line.get_label()): dict(np.asarray(line.get_xydata()).tolist()) for line in axes.lines
    }
    for draw in ("query", "client"):
        for tries in (1, 2, 10, 100):
            assert drawn[f"sampled per {draw}"][tries] == pytest.approx(100 * result.after(tries, draw))
    best = max(result.member_accuracies, key=lambda accuracy: accuracy.robust)
    assert result.deterministic is not None
    constant = {name: set(values.values()) for name, values in drawn.items() if "sampled" not in name}
    assert sorted(constant.values(), key=min) == sorted(
        [{100 * float(best.robust)}, {100 * float(result.deterministic.robust)}], key=min
    )


def test_compute_shows_what_one_answer_costs() -> None:
    result = chosen_evaluation(4)
    found = {point.kind: point for point in points(result)}
    assert found["sampled"].flops == found["retried"].flops == 1000
    assert found["deterministic"].flops == 4000
    assert found["retried"].robust == result.after(10)
    assert found["best"].robust == max(accuracy.robust for accuracy in result.member_accuracies)
    with styled():
        names = [text.get_text() for text in compute(list(found.values())).legends[0].get_texts()]
    assert names[-1] == "average of all 4"


@pytest.mark.parametrize("name", ["<script>x</script>", "$\\frac{$ & ]]>", "a\x1b[31m\x00\ud800b", "文字 🙂"])
def test_names_in_figures_are_text(name: str) -> None:
    line = Line(name, [0, 1], [0.1, 0.5])
    content = data_uri(lambda: lines([line, line], "x", "y"))
    root = ElementTree.fromstring(base64.b64decode(content.partition(",")[2]))
    texts = {node.text for node in root.iter() if node.text}
    assert printable(name) in texts
    assert not [node for node in root.iter() if node.tag.endswith("script")]


def test_bad_input(tmp_path: Path) -> None:
    run = chosen_run(tmp_path / "r", chosen_evaluation(1))
    with pytest.raises(InputError, match="unknown figure 'landscap'; did you mean landscape"):
        write_figure("landscap", run)
    with pytest.raises(InputError, match=r"must be one of \.png, \.svg, \.pdf"):
        write_figure("compute", run, tmp_path / "x.gif")
    with pytest.raises(InputError, match="at least two"):
        write_figure("landscape", run)
    with pytest.raises(FileError, match="--eps"):
        write_figure("radius", run)
    with pytest.raises(FileError, match="randens train"):
        write_figure("training", run)
    with pytest.raises(FileError, match="randens evaluate"):
        write_figure("compute", chosen_run(tmp_path / "empty", None))
