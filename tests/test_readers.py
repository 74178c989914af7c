"""Every reader of a file on disk against forged and damaged files: read, or refused in one sentence."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.assault import readers
from benchmarks.assault.readers import FORGED, forge

import randens
from randens.core.errors import FileError, RandensError
from randens.core.files import parse_json, read_json, seal, write_json
from randens.core.runs import Run
from randens.evaluation import Evaluation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return readers.made(tmp_path_factory.mktemp("readers"))


def test_the_files_are_good_before_they_are_forged(folder: Path) -> None:
    for used in readers.READERS.values():
        for reader in used:
            reader(folder)


def test_forged_documents_are_read_or_refused(folder: Path) -> None:
    found = readers.forged(folder, 70, seed=1, pages=4)
    assert found.faults == []
    assert found.refused > found.tried // 4
    assert found.read > 0


def test_forged_witness_files_are_read_or_refused(folder: Path) -> None:
    found = readers.segments(folder, 150, seed=1)
    assert found.faults == []
    assert found.refused > found.tried // 2
    assert found.read > 0


def test_damaged_files_are_read_or_refused(folder: Path) -> None:
    found = readers.damaged(folder, 60, seed=1, pages=4)
    assert found.faults == []
    assert found.refused > found.tried // 4


def test_a_changed_digit_is_noticed(folder: Path) -> None:
    assert readers.digits(folder, 40, seed=1) == (40, 0)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [readers.forged, readers.damaged])
def test_thousands_of_files(folder: Path, attack: Callable[..., readers.Outcome]) -> None:
    assert attack(folder, 5000, seed=2, pages=10).faults == []


@pytest.mark.slow
def test_thousands_of_witness_files(folder: Path) -> None:
    assert readers.segments(folder, 5000, seed=2).faults == []


@pytest.mark.slow
def test_hundreds_of_changed_digits(folder: Path) -> None:
    assert readers.digits(folder, 500, seed=2) == (500, 0)


def rewritten(path: Path, place: tuple[Any, ...], value: Any) -> Path:
    write_json(path, seal(forge(read_json(path), place, value)))
    return path


def saved(folder: Path, **changes: Any) -> Path:
    member = randens.models.create("mlp", classes=3, input_shape=(4,), width=4, depth=1, seed=0)
    path = randens.RandomizedEnsemble([member]).save(folder / "ensemble")
    for key, value in changes.items():
        rewritten(path / "ensemble.json", ("members", 0, "architecture", key), value)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 60_000, "depth": 900},
        {"width": 10**12},
        {"depth": 10**12},
        {"classes": 10**9},
        {"input_shape": [10**9, 10**9]},
        {"input_shape": [1.5e300]},
        {"width": 2000},
    ],
)
def test_absurd_networks_are_refused_before_memory_is_spent(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = saved(tmp_path, **changes)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=r"ensemble\.json|member-00"):
            randens.load(path)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "file", ["../member-00.safetensors", "/etc/passwd", "member-00.safetensors\n", "a", ""]
)
def test_member_files_stay_inside_their_folder(tmp_path: Path, file: str) -> None:
    path = saved(tmp_path)
    rewritten(path / "ensemble.json", ("members", 0, "file"), file)
    with pytest.raises(FileError, match=r"members\.0\.file"):
        randens.load(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("points", "sources", 0), 99),
        (("points", "clean", 0), "10"),
        (("points", "worst", 0), "1x1"),
        (("points", "foolable"), []),
        (("points", "deterministic_clean"), "1"),
        (("points", "deterministic_worst"), None),
        (("also", "uniform"), [0.5, 0.5]),
        (("probs",), [0.5, 0.5]),
        (("confidence",), 1),
        (("cost", "forwards"), 1.5),
        (("profile", "members"), 2),
        (("classes",), "10"),
        (("flops",), [1, 2]),
        (("flags", "unstable"), 2),
        (("flags", "gradients"), {"pgd": [0.5]}),
        (("attacks", 0, "name"), ...),
        (("attacks", 0, "name"), 3),
        (("attacks", 0, "preset"), ["standard"]),
    ],
)
def test_evaluations_that_contradict_themselves_are_refused(
    folder: Path, tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    path = tmp_path / "evaluation.json"
    path.write_bytes((folder / "run" / "evaluation.json").read_bytes())
    Evaluation.load(path)
    with pytest.raises(FileError, match=r"evaluation\.json"):
        Evaluation.load(rewritten(path, place, value))


@pytest.mark.parametrize(
    "text", ["[" * 65 + "]" * 65, "[" * 100_000, "NaN", "[Infinity]", '{"a": -1e999}', "1" * 5000, "{"]
)
def test_json_that_is_too_deep_or_not_finite_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text.encode())


def test_json_of_the_usual_depth_is_read() -> None:
    assert parse_json(("[" * 64 + "1" + "]" * 64).encode())
    assert parse_json(b'{"a": [1e308, -1.5, null, true, "x"]}') == {"a": [1e308, -1.5, None, True, "x"]}


def test_runs_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Without checksums in the manifest, in the metrics and in other documents."""
    run = Run.create(tmp_path / "run", seed=1)
    run.log(event="epoch", loss=0.5)
    run.write("training", {"finished": True})
    for name in ("manifest.json", "training.json"):
        document = json.loads((run.path / name).read_text())
        assert len(document.pop("checksum")) == 64
        (run.path / name).write_text(json.dumps(document))
    (run.path / "metrics.jsonl").write_text('{"event": "epoch", "loss": 0.5}\n')
    again = Run.open(run.path)
    assert again.manifest == run.manifest
    assert list(again.metrics()) == [{"event": "epoch", "loss": 0.5}]
    assert again.read("training") == {"finished": True}


@pytest.mark.parametrize("value", FORGED)
def test_a_line_of_metrics_is_an_object(tmp_path: Path, value: Any) -> None:
    run = Run.create(tmp_path / "run")
    (run.path / "metrics.jsonl").write_text(json.dumps(value)[:4000] + "\n")
    if isinstance(value, dict):
        assert list(run.metrics()) == [value]
    else:
        with pytest.raises(RandensError, match=r"metrics\.jsonl line 1"):
            list(run.metrics())
