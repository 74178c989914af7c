"""Timing, rows, goals, noise, and whole runs of made-up benchmarks: one good, one noisy, one broken, one endless."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.harness import (
    Goal,
    Row,
    Settings,
    Side,
    Timing,
    as_fast,
    interleaved,
    left_out,
    of_cost,
    slope,
)
from benchmarks.runner import Benchmark

from benchmarks import __main__ as command
from benchmarks import harness, machine, runner, table
from randens.core.errors import InputError
from randens.core.files import write_json

_MADE_UP = {
    "good": '''
        ours, theirs = Timing(1.0, 1.1, 3), Timing(4.0, 4.4, 3)
        goal = Goal(at_least=3, accuracy_not_higher=True)
        yield as_fast("ours", Side("ours", ours, 0.5, "3 f 2 b"), Side("peer 1.0", theirs, 0.6), goal)
        yield left_out("ours", "absent", "absent is not installed: left out")
''',
    "noisy": '''
        yield of_cost("step", Side("step", Timing(1.2, 2.4, 3)), Side("bare", Timing(1.0, 1.0, 3)), Goal(at_most=1.15))
''',
    "broken": '''
        yield of_cost("half", Side("half", Timing(1.0, 1.0, 3)), Side("bare", Timing(1.0, 1.0, 3)))
        raise OSError("no luck")
''',
    "deadly": '''
        yield of_cost("last", Side("last", Timing(1.0, 1.0, 3)), Side("bare", Timing(1.0, 1.0, 3)))
        os.kill(os.getpid(), signal.SIGILL)
''',
    "endless": '''
        yield of_cost("early", Side("early", Timing(1.0, 1.0, 3)), Side("bare", Timing(1.0, 1.0, 3)))
        time.sleep(900)
''',
}  # fmt: skip
_PROGRAM = """
import os, signal, time
from benchmarks import harness
from benchmarks.harness import *
def rows(settings):
{body}
raise SystemExit(harness.main(rows, "made up"))
"""


class MadeUp(Benchmark):
    """A benchmark whose module lies outside the package."""

    @property
    def module(self) -> str:
        return f"made_up_{self.name}"


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Benchmark]:
    for name, body in _MADE_UP.items():
        (tmp_path / f"made_up_{name}.py").write_text(_PROGRAM.format(body=body.replace("        ", "    ")))
    source = Path(harness.__file__).resolve().parents[1] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(source)]))
    return {name: MadeUp(name, f"the {name} one", 60.0, 60.0) for name in _MADE_UP}


def clock(*moments: float) -> Iterator[float]:
    yield from moments


# ---- timing and rows ---------------------------------------------------------------------------------------------


def test_cases_are_timed_in_turns_and_their_best_and_median_kept() -> None:
    order: list[str] = []
    # Two readings per call: a takes 1, 5, 3 and b takes 2, 2, 8.
    ticks = clock(0, 1, 0, 2, 0, 5, 0, 2, 0, 3, 0, 8)
    cases = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    measured = interleaved(cases, 3, clock=lambda: next(ticks))
    assert order == ["a", "b"] * 3
    assert measured["a"].timing == Timing(1, 3, 3)
    assert measured["b"].timing == Timing(2, 2, 3)
    assert measured["a"].timing.spread == pytest.approx(2.0)


def test_a_repeat_is_the_mean_of_its_calls_and_warming_up_does_not_count() -> None:
    calls = itertools.count()
    ticks = clock(10, 18)
    measured = interleaved({"a": lambda: next(calls)}, 1, warm_up=2, calls=4, clock=lambda: next(ticks))
    assert measured["a"].timing == Timing(2, 2, 1)
    assert measured["a"].value == 5


def test_the_time_limit_ends_rounds_but_two_are_always_made() -> None:
    counts = {"a": 0}

    def slow() -> None:
        counts["a"] += 1
        time.sleep(0.02)

    interleaved({"a": slow}, 50, seconds=0.0)
    assert counts["a"] == 2


def test_ratios_goals_and_noise() -> None:
    fast = Side("fast", Timing(1.0, 1.0, 3), accuracy=0.4)
    slow = Side("slow", Timing(6.0, 7.0, 3), accuracy=0.4)
    row = as_fast("x", fast, slow, Goal(at_least=6, accuracy_not_higher=True)).to_json()
    assert (row["figure"], row["figure_of_medians"]) == (6.0, 7.0)
    assert row["goal"] == {"text": "≥ 6, accuracy no higher", "bound": 6, "met": True}
    assert row["noisy"]  # 7 is more than 15 % above 6
    weaker = Side("weaker", Timing(1.0, 1.0, 3), accuracy=0.5)
    assert (
        as_fast("x", weaker, slow, Goal(at_least=6, accuracy_not_higher=True)).to_json()["goal"]["met"]
        is False
    )
    assert as_fast("x", fast, slow, Goal(at_least=6.01)).to_json()["goal"]["met"] is False
    near = Side("near", Timing(1.15, 1.15, 3))
    bare = Side("bare", Timing(1.0, 1.1, 3))
    cost = of_cost("x", near, bare, Goal(at_most=1.15)).to_json()
    assert cost["figure"] == pytest.approx(1.15)
    assert cost["goal"]["met"] is True
    assert not cost["noisy"]
    absent = left_out("x", "peer", "peer is not installed", Goal(at_least=2)).to_json()
    assert absent["figure"] is None
    assert absent["goal"]["met"] is None


def test_a_power_law_has_its_exponent() -> None:
    x = [1.0, 2.0, 4.0, 8.0]
    assert slope(x, [3 * v**1.5 for v in x]) == pytest.approx(1.5)
    assert slope(x, [7.0] * 4) == pytest.approx(0.0)


def test_cells_of_a_row() -> None:
    ours = Side("ours", Timing(0.002, 0.002, 3), 0.375, "3 f 2 b")
    row = as_fast("PGD", ours, Side("peer 1.0", Timing(0.008, 0.01, 3), 0.4)).to_json()
    assert table.cells(row) == (
        "PGD",
        "peer 1.0",
        "4.00× as fast (medians 5.00)",
        "",
        "37.5% / 40.0%",
        "3 f 2 b / –",
        "2 ms / 8 ms",
        "NOISY: best and median differ by 25%",
    )
    assert table.markdown([row]).splitlines()[0] == (
        "| what | peer or limit | ratio | robust accuracy | passes | seconds | remark |"
    )


# ---- whole runs --------------------------------------------------------------------------------------------------


def test_a_run_with_failures_prints_all_and_ends_with_one(
    made_up: dict[str, Benchmark], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [made_up[name] for name in ("good", "noisy", "broken", "deadly")]
    out = tmp_path / "results.json"
    assert command.main(["--out", str(out), "--threads", "1"], known) == 1
    printed, said = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0].split()[:4] == ["benchmark", "what", "peer", "or"]
    good = next(line for line in lines if line.startswith("good "))
    for expected in ("peer 1.0", "4.00× as fast (medians 4.00)", ": met", "50.0% / 60.0%", "3 f 2 b"):
        assert expected in good
    assert "absent is not installed: left out" in printed
    noisy = next(line for line in lines if line.startswith("noisy "))
    assert "≤ 1.15: MISSED" in noisy
    assert "NOISY: best and median differ by 100%" in noisy
    assert "WARNING, noisy: 1 of 1 rows are noisy" in printed
    assert "broken: FAILED: OSError: no luck" in printed
    assert f"deadly: FAILED: ended by signal {signal.SIGILL.value}" in printed
    assert "1 of 2 goals met, 1 missed, 0 not measurable here." in printed
    assert "broken: failed, 1 rows" in said
    document = json.loads(out.read_text())
    assert document["complete"]
    statuses = {name: entry["status"] for name, entry in document["benchmarks"].items()}
    assert statuses == {"good": "ok", "noisy": "ok", "broken": "failed", "deadly": "failed"}
    assert [row["what"] for row in document["benchmarks"]["deadly"]["rows"]] == ["last"]
    for entry in document["benchmarks"].values():
        assert {"load_before", "load_after", "others", "threads", "commit", "seconds"} <= entry.keys()
    facts = document["machine"]
    assert facts["cores"] == machine.cores()
    assert facts["packages"]["torch"]


def test_nothing_in_the_results_names_this_machine(made_up: dict[str, Benchmark], tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command.main(["--out", str(out)], [made_up["good"]])
    text = out.read_text()
    for private in (os.uname().nodename, str(Path.home()), str(runner.ROOT), str(tmp_path)):
        assert len(private) < 3 or private not in text


def test_a_benchmark_that_takes_too_long_is_stopped_and_keeps_its_rows(
    made_up: dict[str, Benchmark], tmp_path: Path
) -> None:
    endless = dataclasses.replace(made_up["endless"], seconds=8.0)
    code = command.main(["--out", str(tmp_path / "r.json")], [endless])
    assert code == 1
    entry = json.loads((tmp_path / "r.json").read_text())["benchmarks"]["endless"]
    assert entry["status"] == "timed out"
    assert [row["what"] for row in entry["rows"]] == ["early"]


def test_json_for_programs(
    made_up: dict[str, Benchmark], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    assert command.main(["--json", "--quick", "--out", str(out)], [made_up["good"]]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())


def test_a_killed_run_continues(
    made_up: dict[str, Benchmark], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "commit", lambda root: f"abc{str(root)[:0]}")
    out = tmp_path / "r.json"
    command.main(["--out", str(out)], [made_up["good"]])
    document = json.loads(out.read_text())
    document["complete"] = False
    document["benchmarks"]["good"]["started"] = "kept"
    write_json(out, document)
    command.main(["--out", str(out)], [made_up["good"], made_up["noisy"]])
    document = json.loads(out.read_text())
    assert document["complete"]
    assert document["benchmarks"]["good"]["started"] == "kept"
    assert document["benchmarks"]["noisy"]["status"] == "ok"
    # A finished run is not continued: the next one measures everything anew.
    command.main(["--out", str(out)], [made_up["good"], made_up["noisy"]])
    assert json.loads(out.read_text())["benchmarks"]["good"]["started"] != "kept"


def test_naming_one_keeps_the_others_results(made_up: dict[str, Benchmark], tmp_path: Path) -> None:
    out, known = tmp_path / "r.json", [made_up["good"], made_up["noisy"]]
    command.main(["--out", str(out)], known)
    before = json.loads(out.read_text())["benchmarks"]["noisy"]
    assert command.main(["good", "--out", str(out)], known) == 0
    document = json.loads(out.read_text())
    assert document["benchmarks"]["noisy"] == before
    assert command.main(["good", "--quick", "--out", str(out)], known) == 2


def test_bad_input_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["atacks"]) == 2
    assert capsys.readouterr().err.startswith("randens: unknown benchmark 'atacks'; valid: attacks,")
    other = tmp_path / "other.json"
    other.write_text("[1]")
    assert command.main(["sampling", "--out", str(other)]) == 2
    assert "holds no benchmark results" in capsys.readouterr().err
    with pytest.raises(InputError, match="unknown benchmark"):
        runner.chosen(["nothing"])


def test_other_processes_time_is_told_from_our_own() -> None:
    meter = machine.Meter.start()
    if meter.busy is None:
        pytest.skip("this system does not say how busy it is")
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    own_only = machine.Meter(meter.wall, meter.busy, meter.own - 100.0)
    measured, without = meter.others(), own_only.others()
    assert measured is not None
    assert 0 <= measured <= 1.2
    assert without == 0.0  # 100 seconds more of our own leave nothing for others


# ---- the command and the benchmarks themselves -------------------------------------------------------------------


def _randens(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    source = Path(harness.__file__).resolve().parents[1] / "src"
    return subprocess.run(
        [sys.executable, "-m", "randens", "bench", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_outside_a_clone_one_sentence_says_where_benchmarks_are(tmp_path: Path) -> None:
    done = _randens(tmp_path, "--list")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "live in randens's repository" in done.stderr


def test_the_list_has_every_module_and_every_module_is_in_the_list() -> None:
    done = _randens(runner.ROOT / "docs", "--list")
    assert done.returncode == 0, done.stderr
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert listed == [benchmark.name for benchmark in runner.BENCHMARKS]
    files = {
        path.stem
        for path in (runner.ROOT / "benchmarks").glob("*.py")
        if "harness.main(" in path.read_text() and path.stem != "harness"
    }
    assert set(listed) == files


def test_one_benchmark_runs_by_itself(tmp_path: Path) -> None:
    source = Path(harness.__file__).resolve().parents[1]
    target = tmp_path / "sampling.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sampling", "--quick", "--json", str(target)],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(target.read_text())["rows"]
    assert len(done.stdout.splitlines()) == len(rows) + 2
    assert [(r["facts"]["members"], r["facts"]["inputs"]) for r in rows[:3]] == [
        (2, 100),
        (2, 1000),
        (2, 10000),
    ]
    for row in rows:
        # The exact method is never behind: its risk is the lowest, its gap closed.
        assert row["ours"]["accuracy"] >= row["theirs"]["accuracy"] - 1e-12
        assert row["facts"]["gap"] <= 1e-9
        assert row["facts"]["excess_10"] >= -1e-12


def test_rows_are_yielded_as_they_come() -> None:
    def rows(settings: Settings) -> Iterator[Row]:
        yield left_out("a", "b", "c" if settings.quick else "d")

    assert harness.main(rows, None, ["--quick"]) == 0
