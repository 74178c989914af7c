"""report from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.made_runs import chosen_evaluation, chosen_run

from randens.cli.main import run


def test_report_says_what_it_found_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = chosen_run(tmp_path / "one", chosen_evaluation(3, share=0.2))
    two = chosen_run(tmp_path / "two", chosen_evaluation(2, share=0.7))
    assert run(["report", str(one), str(two)]) == 0
    said = capsys.readouterr().out
    assert "points more robust than two (95% interval" in " ".join(said.split())
    assert str(one / "report.html") in said
    assert run(["report", str(one), "--output", str(tmp_path / "x.html"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["report"] == str(tmp_path / "x.html")
    assert document["bytes"] == (tmp_path / "x.html").stat().st_size
    figure = ["--figure", "compute", "--output", str(tmp_path / "f.svg"), "--json"]
    assert run(["report", str(one), *figure]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == (tmp_path / "f.svg").stat().st_size
    for words, wrong in (
        (["nowhere"], "is no run folder"),
        (["nowhere", "--figure", "landscap"], "did you mean"),
    ):
        assert run(["report", *words]) == 2
        assert wrong in capsys.readouterr().err
