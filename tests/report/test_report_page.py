"""The page: every section, missing and wrong data, and nothing that could run or load something."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.report.conftest import HOSTILE
from tests.report.made_runs import chosen_evaluation, chosen_run

from randens.core.errors import FileError, InputError
from randens.core.files import seal, write_json
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import difference
from randens.models import create
from randens.report import figures, tables, write_report
from randens.report.landscape import MOST_SOLVED
from randens.report.load import load_run, load_runs
from randens.report.verdicts import compare, verdicts

TITLES = (
    "Results",
    "Robustness against compute",
    "Risk landscape",
    "Which members are fooled together",
    "What to deploy",
    "Robustness over ε",
    "Attacks compared",
    "Audit",
    "Gallery",
    "Training",
    "Cost",
    "How to reproduce",
)


def page_of(*runs: Path) -> str:
    return write_report(runs).read_text(encoding="utf-8")


def text_of(page: str) -> str:
    body = (
        page[page.index("<body>") : page.index('<script type="application/json"')]
        if "data-0" in page
        else page
    )
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_a_whole_run_has_every_section(trained_run: Path) -> None:
    page = page_of(trained_run)
    for title in TITLES:
        assert f">{title}</h2>" in page
    assert "produced by <code>randens audit" in page
    assert page.count("data:image/png;base64,") >= 9
    assert len(page.encode()) < 1_000_000


def test_numbers_in_the_table_are_the_evaluation_s(tmp_path: Path) -> None:
    result = chosen_evaluation(3, probs=[0.5, 0.25, 0.25])
    page = text_of(page_of(chosen_run(tmp_path / "r", result)))
    assert f"{100 * result.robust:.1f} %" in page
    assert f"{100 * result.natural:.1f} %" in page
    for accuracy in result.member_accuracies:
        assert f"{100 * accuracy.robust.value:.1f} %" in page
    assert f"risk {1 - result.robust:.4f}, floor {result.bounds.floor:.4f}, gain {result.gain:.4f}" in page
    assert f"{100 * result.profile.jointly(0, 1):.1f}" in page
    assert f"{100 * result.profile.conflict(0, 2):.1f}" in page


def test_the_conflict_of_two_members_never_attacked_together_is_not_shown(tmp_path: Path) -> None:
    """At α = (½, ½, 0) no attack looked for a perturbation that fools member 2 with another one."""
    result = dataclasses.replace(chosen_evaluation(3, probs=[0.5, 0.5, 0.0]), also={})
    table = tables.conflicts(result)
    assert table[0, 1] == table[1, 0] == pytest.approx(result.profile.conflict(0, 1))
    assert np.isnan([table[0, 2], table[2, 0], table[1, 2], table[2, 1]]).all()
    drawn = {text.get_text() for text in figures.matrix(table).axes[0].texts}
    assert drawn == {"0.0", f"{100 * table[0, 1]:.1f}", "–"}
    assert "Not attacked together (–): 0+2, 1+2." in text_of(page_of(chosen_run(tmp_path / "r", result)))
    everyone = text_of(page_of(chosen_run(tmp_path / "s", chosen_evaluation(3))))
    assert "Not attacked together" not in everyone


def test_nothing_is_loaded_and_nothing_foreign_runs(trained_run: Path) -> None:
    page = page_of(trained_run)
    assert "<svg" in page
    assert not re.search(r"""(src|href|action|data)\s*=\s*["'](?!data:|\#)""", page.split("<script>")[0])
    assert "@import" not in page
    assert "url(" not in page[page.index("<style>") : page.index("</style>")]
    assert not re.search(
        r"""\s(style|on\w+)\s*=\s*["']""", re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    allowed = policy.group(1).replace("&#39;", "'")
    assert "default-src 'none'" in allowed
    assert "unsafe" not in allowed
    for kind, pattern in (("script-src", r"<script>(.*?)</script>"), ("style-src", r"<style>(.*?)</style>")):
        directive = next(d for d in allowed.split("; ") if d.startswith(kind))
        inline = re.findall(pattern, page, flags=re.S)
        assert inline
        for code in inline:
            digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in directive


def test_hostile_names_are_shown_not_run(trained_run: Path) -> None:
    page = page_of(trained_run)
    assert HOSTILE not in page
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert" in page


def test_a_run_without_evaluation_says_what_to_do(tmp_path: Path) -> None:
    path = chosen_run(tmp_path / "fresh", None, epochs=8)
    text = text_of(page_of(path))
    assert "has not been evaluated" in text
    assert f"randens evaluate {path}" in text
    assert "accuracy. Validation accuracies are of the ensemble so far" in text


def test_one_member(tmp_path: Path) -> None:
    result = chosen_evaluation(1)
    text = text_of(page_of(chosen_run(tmp_path / "single", result, method="at")))
    assert "with one member there is nothing to draw" in text
    assert "One member: there is no other member" in text


@pytest.mark.parametrize("members", [2, 4, 7, 64])
def test_any_number_of_members(tmp_path: Path, members: int) -> None:
    result = chosen_evaluation(members, n=60, sets_per_input=2, share=0.2)
    page = page_of(chosen_run(tmp_path / "r", result))
    block = re.search(r'id="data-0">(.*?)</script>', page)
    assert block is not None
    data = json.loads(block.group(1))
    assert data["members"] == members
    if members <= MOST_SOLVED:
        assert data["optimum"]["lower_bound"] <= data["optimum"]["risk"] <= result.profile.risk(result.probs)
    else:
        assert data["optimum"] is None
        assert "the optimum is not looked for here" in page
    assert len(page.encode()) < 2_000_000


def test_a_hundred_members(tmp_path: Path) -> None:
    """More than a risk profile takes: the run still has a page, without numbers that do not exist."""
    network = create("linear", classes=3, input_shape=(4,), seed=0)
    path = chosen_run(tmp_path / "hundred", None)
    RandomizedEnsemble([network] * 100).save(path / "ensemble")
    assert "has not been evaluated" in text_of(page_of(path))


def test_ten_thousand_points_stay_small(tmp_path: Path) -> None:
    result = chosen_evaluation(5, n=10_000)
    page = write_report([chosen_run(tmp_path / "r", result)])
    assert page.stat().st_size < 600_000


def test_a_page_that_would_be_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("randens.report.page.MOST_BYTES", 10_000)
    with pytest.raises(InputError, match="give fewer runs"):
        write_report([chosen_run(tmp_path / "r", chosen_evaluation(2))])
    assert not (tmp_path / "r" / "report.html").exists()


def test_an_old_run_folder_is_an_error(tmp_path: Path) -> None:
    path = chosen_run(tmp_path / "r", None)
    write_json(path / "manifest.json", {"format": "randens-run-0"})
    with pytest.raises(FileError, match="not a run of format"):
        write_report([path])
    with pytest.raises(FileError, match="is not a folder"):
        write_report([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("sampling", {"probs": "many"}, "sampling.json is damaged or of another version: probs"),
        ("report/gallery", {"examples": [{"clean": "data:text/html,<script>"}]}, "gallery.json is damaged"),
        (
            "advice",
            {"format": "randens-advice-1", "options": []},
            "advice.json is damaged or of another version",
        ),
        ("audit", {"checks": 3}, "audit.json is damaged or of another version"),
    ],
)
def test_damaged_extras_do_not_spoil_the_page(tmp_path: Path, name: str, content: object, said: str) -> None:
    path = chosen_run(tmp_path / "r", chosen_evaluation(3))
    write_json(path / f"{name}.json", content)
    text = text_of(page_of(path))
    assert said in text
    assert "Make it again with" in text


def test_a_broken_training_log_is_named(tmp_path: Path) -> None:
    path = chosen_run(tmp_path / "r", chosen_evaluation(2), epochs=2)
    (path / "metrics.jsonl").write_text("{}\nnot json\n")
    assert "line 2" in text_of(page_of(path))


def test_training_curves_of_runs_inside_a_run(tmp_path: Path) -> None:
    path = chosen_run(tmp_path / "r", chosen_evaluation(2))
    chosen_run(path / "at", None, epochs=5)
    write_json(path / "at" / "training.json", {"cost": {"forwards": 1234, "backwards": 567, "seconds": 8.0}})
    assert "training at 1,234 567 8 s" in text_of(page_of(path))
    curves = load_run(path).curves
    assert [curve.name for curve in curves] == ["at"]
    assert len(curves[0].epochs) == 5


def test_differences_between_runs_are_paired_over_the_same_inputs(tmp_path: Path) -> None:
    one, two = chosen_evaluation(3, seed=1), chosen_evaluation(2, seed=2, share=0.6)
    page = page_of(chosen_run(tmp_path / "one", one), chosen_run(tmp_path / "two", two))
    expected = difference(1 - two.risk, 1 - one.risk)
    shown = f"{100 * expected.value:+.1f} ({100 * expected.low:+.1f} to {100 * expected.high:+.1f})"
    assert f'<span class="bad">{shown}</span>' in page
    assert f"one is {100 * abs(expected.value):.1f} points more robust than two (" in text_of(page)
    assert page.count('data-landscape="data-') == 2


def test_unpaired_intervals_cover_the_truth() -> None:
    """Two halves of one population have the same accuracy: about 95 % of the intervals must hold 0."""
    held = 0
    for seed in range(60):
        first, other = (
            chosen_evaluation(2, n=150, seed=2 * seed),
            chosen_evaluation(2, n=140, seed=2 * seed + 1),
        )
        found = compare(first, other).robust
        assert found is not None
        held += found.low <= 0 <= found.high
    assert held >= 51


def test_verdicts_name_the_runs(tmp_path: Path) -> None:
    paths = [
        chosen_run(tmp_path / a / "run", chosen_evaluation(2, share=s)) for a, s in (("x", 0.7), ("y", 0.2))
    ]
    runs = load_runs(paths)
    assert [one.name for one in runs] == ["x/run", "y/run"]
    assert re.search(r"^x/run is \d+\.\d points less robust than y/run \(95% interval", verdicts(runs)[1])


def test_bad_lists_of_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs is empty"):
        write_report([])
    path = chosen_run(tmp_path / "r", None)
    with pytest.raises(InputError, match="same folder twice"):
        write_report([path, tmp_path / "." / "r"])


def test_attacks_that_found_more_than_the_evaluation_are_pointed_out(
    trained_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(trained_run, folder)
    document = json.loads((folder / "report" / "attacks.json").read_text())
    for together, said in ((0.0, True), (1.0, False)):
        document["together"]["value"] = together
        write_json(folder / "report" / "attacks.json", seal(document))
        assert ("its attacks were not the strongest" in page_of(folder)) is said


def header_of(page: str) -> str:
    found = re.search(r"<header.*?</header>", page, flags=re.S)
    assert found is not None
    return " ".join(re.sub(r"<[^>]+>", " ", found.group(0)).split())


def test_the_headline_comes_first_and_its_number_once(tmp_path: Path) -> None:
    drawn = chosen_evaluation(3, probs=[0.5, 0.25, 0.25])
    header = header_of(page_of(chosen_run(tmp_path / "drawn", drawn)))
    number = f"{100 * drawn.robust:.1f} %"
    assert header.count(number) == 1
    assert f"Robust accuracy {number} (95% interval" in header
    assert "digits test, 200 inputs, attacked with saddle, linf ε = 0.1." in header
    fixed = chosen_evaluation(3, probs=[0, 1, 0])
    page = page_of(chosen_run(tmp_path / "fixed", fixed))
    assert '<p class="verdict">α selects member 1: nothing is drawn.' in page
    assert header_of(page).count(f"{100 * fixed.robust:.1f} %") == 1


def test_every_number_names_what_it_is_about(tmp_path: Path) -> None:
    one, two = chosen_evaluation(2), chosen_evaluation(2, n=50, data="mnist")
    text = text_of(page_of(chosen_run(tmp_path / "one", one), chosen_run(tmp_path / "two", two)))
    about = {
        "one": "digits test, 200 inputs, attacked with saddle, linf ε = 0.1",
        "two": "mnist test, 50 inputs, attacked with saddle, linf ε = 0.1",
    }
    both = "; ".join(f"{name}: {said}" for name, said in about.items())
    assert text.count(both) == 2  # the table of results, robustness against compute
    for said in about.values():
        assert text.count(said) >= 4  # landscape, fooled together, worst cases found


def test_comparisons_name_methods_and_training_budgets(tmp_path: Path) -> None:
    """The equal-budget network is named; without one the page says that it is missing."""
    whole = chosen_run(tmp_path / "quickstart-1", chosen_evaluation(3, share=0.2))
    alone = chosen_run(whole / "at", chosen_evaluation(1, share=0.7), method="at")
    for path, method, passes in ((alone, "at", 100), (whole / "barre", "barre", 210)):
        if path != alone:
            chosen_run(path, None, method=method)
        cost = {"forwards": passes, "backwards": passes, "seconds": 1.0}
        write_json(path / "training.json", {"method": method, "cost": cost})
    said = verdicts(load_runs([whole, alone]))
    assert re.fullmatch(r"BARRE is \d+\.\d points more robust than AT \(95% interval \+.*\)\.", said[1])
    assert "AT is not an equal-budget baseline: training BARRE took 2.1 times its member passes." in said[2]
    # What the second training began with belongs to its budget.
    manifest = json.loads((whole / "barre" / "manifest.json").read_text())
    manifest["recipe"]["first"] = str(alone)
    write_json(whole / "barre" / "manifest.json", seal(manifest))
    assert load_run(whole).passes == 620
    write_json(
        alone / "training.json", {"method": "at", "cost": {"forwards": 630, "backwards": 0, "seconds": 1.0}}
    )
    manifest["recipe"]["first"] = None
    write_json(whole / "barre" / "manifest.json", seal(manifest))
    write_json(
        whole / "barre" / "training.json",
        {"method": "barre", "cost": {"forwards": 600, "backwards": 40, "seconds": 1.0}},
    )
    assert verdicts(load_runs([whole, alone]))[2].startswith(
        "AT is the equal-budget baseline: it was trained"
    )
