"""The page: its sections and numbers, missing and foreign documents, and nothing that could run or load something."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.report.conftest import HOSTILE
from tests.report.made_runs import chosen_evaluation, chosen_run, trained_ensemble

from randens.core.errors import FileError, InputError
from randens.core.files import read_json, write_json
from randens.report import write_explorer, write_report
from randens.report.runs import compare, load_run, load_runs, verdicts
from randens.risk.intervals import difference


class Reader(HTMLParser):
    """What a browser would see: the elements with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.script = "", False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.script = tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self.script else data + " "


def text_of(*runs: Path) -> str:
    page = write_report(runs).read_text(encoding="utf-8")
    return " ".join(Reader(page).text.split())


def test_a_whole_run_has_every_section(trained_run: Path) -> None:
    page = write_report([trained_run]).read_text(encoding="utf-8")
    anchors = re.findall(r'<h2 id="(\w+)"', page)
    everything = "results deploy attempts landscape together radius audit certified gallery training recipe"
    assert anchors == everything.split()
    assert page.count("data:image/svg+xml;base64,") == 7
    assert page.count("data:image/png;base64,") >= 9
    assert len(page) < 1_000_000
    assert load_run(trained_run).problems == {}


def test_numbers_are_the_evaluation_s(tmp_path: Path) -> None:
    result = chosen_evaluation(3, probs=[0.5, 0.25, 0.25])
    text = text_of(chosen_run(tmp_path / "r", result))
    assert f"{100 * result.robust:.1f} % robust accuracy" in text
    for accuracy in result.member_accuracies:
        assert f"{100 * accuracy.natural:.1f} % {100 * accuracy.robust:.1f} %" in text
    for tries in (1, 2, 10):
        query, client = (result.after(tries, draw) for draw in ("query", "client"))
        assert f"{tries} {100 * query:.1f} % ({100 * query.low:.1f} %" in text
        assert f"{100 * client:.1f} % ({100 * client.low:.1f} %" in text
    assert (
        f"0 and 2 {100 * result.profile.jointly(0, 2):.1f} % {100 * result.profile.conflict(0, 2):.1f} %"
        in text
    )


def test_one_member_and_one_sampled_member(tmp_path: Path) -> None:
    alone = text_of(chosen_run(tmp_path / "alone", chosen_evaluation(1), method="at"))
    assert "nothing to sample" in alone
    assert "landscape" not in alone
    noted = replace(chosen_evaluation(3, probs=[0, 1, 0]), notes=("Gradients are missing",))
    fixed = text_of(chosen_run(tmp_path / "fixed", noted))
    assert "α selects member 1" in fixed
    assert "Gradients are missing." in fixed
    assert "against attempts" not in fixed


@pytest.mark.parametrize("members", [2, 17, 64])
def test_any_number_of_members(tmp_path: Path, members: int) -> None:
    result = chosen_evaluation(members, n=60, share=0.2)
    page = write_report([chosen_run(tmp_path / "r", result)]).read_text(encoding="utf-8")
    block = re.search(r'id="landscape-data">(.*?)</script>', page)
    assert block is not None
    data = json.loads(block.group(1))
    assert data["members"] == members
    assert (data["optimum"] is None) is (members > 16)


def test_ten_thousand_inputs_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = chosen_run(tmp_path / "r", chosen_evaluation(5, n=10_000))
    assert write_report([run]).stat().st_size < 600_000
    monkeypatch.setattr("randens.report.page.MOST_BYTES", 10_000)
    with pytest.raises(InputError, match="at most"):
        write_report([run], tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = chosen_run(tmp_path / "fresh", None, epochs=8)
    text = text_of(path)
    assert f"randens evaluate {path}" in text
    assert "has not been evaluated" in text
    assert "Training and cost" in text
    evaluated = text_of(chosen_run(tmp_path / "r", chosen_evaluation(2)))
    for command in ("advise", "audit", "certify"):
        assert f"randens {command} {tmp_path / 'r'}" in evaluated


KINDS = ("evaluation", "sampling", "advice", "curve", "audit", "certification")


def test_documents_of_other_members_are_refused(trained_run: Path, tmp_path: Path) -> None:
    """The members in the folder decide, also where the evaluation is the foreign one."""
    folder = tmp_path / "r"
    shutil.copytree(trained_run, folder)
    for kind in KINDS:
        document = read_json(folder / f"{kind}.json")
        document["about"]["ensemble"] = "f" * 64
        write_json(folder / f"{kind}.json", document)
    text = text_of(folder)
    for kind in KINDS:
        assert f"{kind}.json is about other members" in text
    one = load_run(folder)
    assert one.evaluation is None
    assert not one.results
    assert "not been evaluated" in verdicts([one])[0]


def test_other_probabilities_are_said(trained_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(trained_run, folder)
    shutil.rmtree(folder / "ensemble")
    trained_ensemble().with_probs([0.5, 0.5, 0]).save(folder / "ensemble")
    assert "The ensemble has α = (0.5, 0.5, 0) since then" in text_of(folder)


@pytest.mark.parametrize("content", ["[1]", "{", '{"about": 3}', ""])
def test_damaged_documents_are_said(trained_run: Path, tmp_path: Path, content: str) -> None:
    folder = tmp_path / "r"
    shutil.copytree(trained_run, folder)
    for kind in KINDS:
        (folder / f"{kind}.json").write_text(content)
    assert set(load_run(folder).problems) == set(KINDS)
    text = text_of(folder)
    assert text.count(str(folder)) >= len(KINDS)
    assert "not been evaluated" in text


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("metrics.jsonl", "{}\nnot json\n", "it is not valid JSON"),
        ("metrics.jsonl", '{"event": "epoch", "natural": "high"}\n', "of another version: natural"),
        ("training.json", '{"cost": {"forwards": -1}}', "damaged or of another version"),
    ],
)
def test_a_broken_training_log_is_said(tmp_path: Path, file: str, content: str, said: str) -> None:
    path = chosen_run(tmp_path / "r", chosen_evaluation(2), epochs=2)
    (path / file).write_text(content)
    assert said in text_of(path)


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    path = chosen_run(tmp_path / "r", None)
    with pytest.raises(InputError, match="runs is empty"):
        write_report([])
    with pytest.raises(InputError, match="twice"):
        write_report([path, tmp_path / "." / "r"])
    write_json(path / "manifest.json", {"format": "randens-run-0"})
    with pytest.raises(FileError, match="randens-run-1"):
        write_report([path])
    with pytest.raises(FileError, match="is no run folder"):
        write_report([tmp_path / "nowhere"])


def test_runs_are_compared_over_the_same_inputs(tmp_path: Path) -> None:
    one, two = chosen_evaluation(3, seed=1), chosen_evaluation(2, seed=2, share=0.6)
    text = text_of(chosen_run(tmp_path / "one", one), chosen_run(tmp_path / "two", two))
    expected = difference(1 - one.risk, 1 - two.risk)
    interval = f"{100 * expected.low:+.1f} to {100 * expected.high:+.1f} points"
    assert f"one is {100 * expected:.1f} points more robust than two (95% interval {interval})" in text
    assert "other data" in str(compare(one, chosen_evaluation(2, data="mnist")))
    assert "other inputs" in str(compare(one, chosen_evaluation(2, n=one.n - 1)))


def test_training_budgets_are_compared(tmp_path: Path) -> None:
    """The passes of a run are those of its method and of what it started from, not those of a baseline inside it."""
    whole = chosen_run(tmp_path / "run", chosen_evaluation(3, share=0.2))
    alone = chosen_run(whole / "at", chosen_evaluation(1, share=0.7), method="at")

    def cost(path: Path, method: str, passes: int) -> None:
        path.mkdir(exist_ok=True)
        spent = {"forwards": passes, "backwards": passes, "seconds": 1.0}
        held = {"natural_accuracy": 0.9, "robust_accuracy": 0.5, "attack": "pgd", "images": 8}
        known = {"members": 1, "probs": [1.0], "method": method, "cost": spent, "validation": held}
        write_json(path / "training.json", known)

    cost(alone, "at", 100)
    cost(whole / "members", "barre", 210)
    said = verdicts(load_runs([whole, alone]))
    assert re.match(r"BARRE is \d+\.\d points more robust than AT \(95% interval", said[2])
    assert "AT is not an equal-budget baseline: training BARRE took 2.1 times" in said[3]
    cost(alone, "at", 215)
    assert "the equal-budget baseline" in verdicts(load_runs([whole, alone]))[3]
    manifest = read_json(whole / "manifest.json")
    manifest["recipe"]["first"] = str(alone)
    write_json(whole / "manifest.json", manifest)
    assert load_run(whole).passes == 850


def test_nothing_is_loaded_and_nothing_foreign_runs(trained_run: Path) -> None:
    page = write_report([trained_run]).read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert "&lt;img src=x onerror=alert" in page
    for _, attributes in Reader(page).tags:
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    allowed = policy.group(1).replace("&#39;", "'")
    assert "default-src 'none'" in allowed
    assert "unsafe" not in allowed
    for kind, pattern in (("script-src", r"<script>(.*?)</script>"), ("style-src", r"<style>(.*?)</style>")):
        directive = next(part for part in allowed.split("; ") if part.startswith(kind))
        inline = re.findall(pattern, page, flags=re.S)
        assert inline
        for code in inline:
            assert base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() in directive


@pytest.mark.parametrize("name", ['<b onclick="x">&amp;', "$x_{$ ]]>", "a\nb"])
def test_hostile_folder_names_are_text(tmp_path: Path, name: str) -> None:
    one = chosen_run(tmp_path / name, chosen_evaluation(2, n=20))
    two = chosen_run(tmp_path / "other", chosen_evaluation(1, n=20))
    reader = Reader(write_report([two, one]).read_text(encoding="utf-8"))
    assert not [tag for tag, attributes in reader.tags if tag == "b" or "onclick" in attributes]
    assert " ".join(name.split()) in " ".join(reader.text.split())


def test_the_teaching_page_in_the_docs_is_the_one_that_is_written(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "docs" / "explore.html"
    assert shipped.read_bytes() == write_explorer(tmp_path / "e.html").read_bytes()
