"""The commands on a small run folder: what they print, write and refuse."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell

import randens
from randens import RandomizedEnsemble, data, quickstart
from randens.core.runs import Run
from randens.evaluation import Evaluation

FAST = ("--attack", "saddle", "--limit", "60")


# ---- evaluate ----------------------------------------------------------------------------------------------------


def test_evaluate_writes_what_it_prints(shell: Shell, run_folder: Path) -> None:
    printed = shell.json("evaluate", run_folder, *FAST)
    saved = Evaluation.load(run_folder / "evaluation.json")
    assert saved.to_json() == printed
    rec = randens.load(run_folder / "ensemble")
    images = randens.data.load("digits", "test").subset(slice(0, 60))
    assert float(saved.natural) == pytest.approx(rec.accuracy(images.x, images.y))
    assert 0 < float(saved.robust) < float(saved.natural)
    code, out, err = shell("evaluate", run_folder, *FAST)
    assert code == 0
    # The second call reads what the first one found.
    assert "0 backward member passes in this call" in out
    assert f"{100 * float(saved.robust):.1f}" in out
    assert err == ""
    for suffix, start in (("md", "|  | natural"), ("tex", "member 0 &")):
        assert shell("evaluate", run_folder, *FAST, "--output", run_folder / f"table.{suffix}")[0] == 0
        assert (run_folder / f"table.{suffix}").read_text(encoding="utf-8").startswith(start)


def test_evaluate_with_another_threat_and_options(shell: Shell, run_folder: Path, tmp_path: Path) -> None:
    words = ("--limit", "20", "--norm", "L2", "--eps", "1/4", "--output", tmp_path / "e.json")
    printed = shell.json("evaluate", run_folder, *words, "--attack", "Saddle:orders=1,restarts=1")
    assert (printed["about"]["threat"]["norm"], printed["about"]["threat"]["eps"]) == ("l2", 0.25)
    assert printed["about"]["attacks"][0]["orders"] == 1
    assert not (run_folder / "evaluation.json").exists()


def test_a_preset_is_an_attack_and_attacks_are_listed(shell: Shell, run_folder: Path) -> None:
    printed = shell.json("evaluate", run_folder, "--attack", "fast", "--limit", "5")
    assert printed["about"]["attacks"][0]["preset"] == "fast"
    code, out, _ = shell("evaluate", run_folder, "--attack", "list")
    assert code == 0
    for name in ("standard", "pgd", "arc-r", "saddle"):
        assert f"\n{name} " in f"\n{out}"


def test_a_curve(shell: Shell, run_folder: Path, tmp_path: Path) -> None:
    words = ("--eps", "0:0.1:3", "--attack", "pgd", "--limit", "20")
    found = shell.json("evaluate", run_folder, *words, "--output", tmp_path / "curve.svg")
    robust = [point["ensemble"]["value"] for point in found["points"]]
    assert robust == sorted(robust, reverse=True)
    assert (run_folder / "curve.json").is_file()
    assert "<svg" in (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert "first:last:count" in shell.refused("evaluate", run_folder, "--eps", "0:1")


def test_evaluate_refuses(shell: Shell, run_folder: Path, tmp_path: Path) -> None:
    assert "no file, folder" in shell.refused("evaluate", tmp_path / "nowhere")
    assert "unknown attack 'arcr'" in shell.refused("evaluate", run_folder, "--attack", "arcr")
    assert "'tset'" in shell.refused("evaluate", run_folder, "--split", "tset")
    assert "radius too" in shell.refused("evaluate", run_folder, "--norm", "l2")
    assert "unknown option" in shell.refused("evaluate", run_folder, "--attack", "pgd:stps=3")
    assert "device is 'gpu'" in shell.refused("evaluate", run_folder, "--device", "gpu")
    member = run_folder / "ensemble" / "member-00.safetensors"
    member.write_bytes(member.read_bytes()[:-1])
    assert "checksum" in shell.refused("evaluate", run_folder)
    shutil.rmtree(run_folder / "ensemble")
    assert "no ensemble yet" in shell.refused("evaluate", run_folder)


# ---- sample, advise, audit, certify, explain -----------------------------------------------------------------------


def test_sample_finds_writes_and_reuses(shell: Shell, run_folder: Path) -> None:
    first = shell.json("sample", run_folder, *FAST)
    assert Run.open(run_folder).read("sampling") == first
    assert sum(first["probs"]) == pytest.approx(1)
    assert first["gap"] <= 1e-3
    assert first["about"]["split"] == "validation"
    careful = shell.json("sample", run_folder, *FAST, "--confidence", "0.95")
    assert careful["risk"] >= first["lower_bound"] - 1e-12
    assert careful["upper"] > careful["risk"]
    code, out, _ = shell("sample", run_folder, *FAST, "--apply")
    assert code == 0
    assert "smallest risk" in out
    assert randens.load(run_folder / "ensemble").probs.tolist() == first["probs"]
    assert shell.json("evaluate", run_folder, *FAST)["chosen_on"]["probs"] == "validation"
    assert "test split" in shell.refused("sample", run_folder, "--split", "test")


def test_advise_recommends(shell: Shell, run_folder: Path, ensemble: RandomizedEnsemble) -> None:
    single = Run.create(run_folder.parent / "single", recipe={"data": {"name": "digits"}})
    RandomizedEnsemble([ensemble.members[0]], threat=ensemble.threat).save(single.ensemble)
    code, out, err = shell("advise", run_folder, *FAST, "--against", single.path)
    assert code == 0, err
    assert "At 3× compute" in out
    assert re.search(rf"Ship it at 1×: randens export {run_folder}( --member [0-2]| --uniform)?$", out, re.M)
    assert (
        " --data digits --output FOLDER\n" in shell("advise", single.ensemble, "--data", "digits", *FAST)[1]
    )
    found = json.loads((run_folder / "advice.json").read_text())
    assert [choice["compute"] for choice in found["choices"]] == [1, 2, 3]
    assert "3 members" in shell.refused("advise", run_folder, "--against", run_folder)


def test_certify(shell: Shell, run_folder: Path) -> None:
    found = shell.json("certify", run_folder, *FAST, "--eps", "0.02")
    assert (run_folder / "certification.json").is_file()
    assert found["about"]["n"] == 60
    code, out, _ = shell("certify", run_folder, "--attack", "fgsm", "--limit", "5", "--eps", "0.9")
    assert code == 0
    assert "Nothing is certified" in out


def test_explain(shell: Shell) -> None:
    document = shell.json("explain", "0.5", "0.4", "0.45")
    assert document["floor"] == pytest.approx(0.5 / 3)
    assert document["ceiling"] == 0.5
    assert "did you mean 0.42" in shell.refused("explain", "42", "45")


# ---- doctor, quickstart --------------------------------------------------------------------------------------------


def test_doctor(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = shell("doctor")
    assert code == 0
    for name in ("versions", "device", "self-check"):
        assert f"ok   {name}" in out

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr("randens.risk.optimal_sampling", broken)
    code, out, _ = shell("doctor")
    assert code == 1
    assert "BAD  self-check" in out
    assert "no luck" in out


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quickstart with a single epoch per member, evaluated on few images."""
    real, whole = quickstart.recipes, data.load

    def few(name: str, split: str) -> Any:
        return whole(name, split) if split == "train" else whole(name, split).subset(slice(0, 40))

    def short(*asked: Any) -> tuple[Any, Any]:
        at, ensemble = real(*asked)
        one = ["adversary.steps=1", "adversary.warmup=0", "epochs=1"]
        return at.with_settings(one), ensemble.with_settings(one)

    monkeypatch.setattr(quickstart, "recipes", short)
    monkeypatch.setattr(data, "load", few)


@pytest.mark.usefixtures("hurried")
def test_quickstart(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("quickstart", "--runs", tmp_path)
    assert code == 0, err
    assert len(out.splitlines()) <= 25
    assert out.count("\n  randens ") == 3
    document = shell.json("quickstart", "--runs", tmp_path)
    assert document["run"] == str(tmp_path / "quickstart-2")
    two = Evaluation.load(tmp_path / "quickstart-2" / "evaluation.json")
    assert two.about.probs == pytest.approx(document["sampling"]["probs"])
    assert "What to deploy" in Path(document["report"]).read_text()
    (tmp_path / "file").write_text("kept")
    assert "cannot create" in shell.refused("quickstart", "--runs", tmp_path / "file")
