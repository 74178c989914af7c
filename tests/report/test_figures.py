"""Figures for papers: every name in every format, from the same numbers as the page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image
from tests.report.made_runs import chosen_evaluation, chosen_run

from randens.core.errors import FileError, InputError
from randens.report import FIGURES, write_figure
from randens.report.load import load_run
from randens.report.tables import inferences

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def whole_run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained run with a training run inside, so that there is something for every figure."""
    folder = tmp_path_factory.mktemp("figures") / "run"
    shutil.copytree(trained_run, folder)
    chosen_run(folder / "members", None, epochs=6)
    return folder


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_in_some_format(whole_run: Path, tmp_path: Path, name: str) -> None:
    kind = ("png", "svg", "pdf")[list(FIGURES).index(name) % 3]
    path = write_figure(name, whole_run, tmp_path / f"{name}.{kind}")
    assert path.read_bytes().startswith(MAGIC[kind])
    assert path.stat().st_size > 2_000


@pytest.mark.parametrize("kind", MAGIC)
def test_every_format_and_the_same_bytes_twice(tmp_path: Path, kind: str) -> None:
    run = chosen_run(tmp_path / "r", chosen_evaluation(2))
    first = write_figure("landscape", run, tmp_path / f"a.{kind}").read_bytes()
    assert first.startswith(MAGIC[kind])
    assert write_figure("landscape", run, tmp_path / f"b.{kind}").read_bytes() == first
    if kind == "png":
        assert Image.open(tmp_path / "a.png").size[0] > 500


def test_text_in_svg_is_text(tmp_path: Path) -> None:
    result = chosen_evaluation(3)
    run = chosen_run(tmp_path / "r", result)
    text = write_figure("cofooling", run, tmp_path / "c.svg").read_text()
    shown = re.findall(r">(\d+\.\d)</text>", text)
    assert f"{100 * result.profile.jointly(0, 1):.1f}" in shown
    assert f"{100 * result.member_risks[2]:.1f}" in shown


def test_default_place_is_the_run_folder(tmp_path: Path) -> None:
    run = chosen_run(tmp_path / "r", chosen_evaluation(5))
    assert write_figure("sets", run) == run / "sets.pdf"
    assert write_figure("landscape", run).exists()


def test_flops_of_randomized_and_deterministic(tmp_path: Path) -> None:
    result = chosen_evaluation(4, flops=500)
    run = load_run(chosen_run(tmp_path / "r", result))
    points = {one.kind: one for one in inferences([run])}
    assert points["randomized"].flops == 500
    assert points["deterministic"].flops == 2000
    assert result.deterministic is not None
    assert points["deterministic"].accuracy == result.deterministic


def test_bad_input(tmp_path: Path) -> None:
    run = chosen_run(tmp_path / "r", chosen_evaluation(1))
    with pytest.raises(InputError, match="unknown figure 'landscap'; did you mean landscape"):
        write_figure("landscap", run)
    with pytest.raises(InputError, match=r"must be one of \.png, \.svg, \.pdf"):
        write_figure("flops", run, tmp_path / "x.gif")
    with pytest.raises(InputError, match="needs at least two"):
        write_figure("landscape", run)
    with pytest.raises(FileError, match=r"randens report .* --measure"):
        write_figure("radius", run)
    with pytest.raises(FileError, match="randens train"):
        write_figure("training", run)
    empty = chosen_run(tmp_path / "empty", None)
    with pytest.raises(FileError, match="randens evaluate"):
        write_figure("flops", empty)
