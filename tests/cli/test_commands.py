"""The commands on a small run folder: what they print, write and refuse."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.cli.commands import Shell

import randens
from randens import RandomizedEnsemble, data, quickstart, training
from randens.core.runs import Run
from randens.evaluation import Evaluation

FAST = ("--attack", "saddle", "--limit", "60")
EXACT = (*FAST, "--method", "exact")


# ---- evaluate ----------------------------------------------------------------------------------------------------


def test_evaluate_writes_what_it_prints(shell: Shell, run_folder: Path) -> None:
    printed = shell.json("evaluate", run_folder, *FAST)
    saved = Evaluation.load(run_folder / "evaluation.json")
    assert saved.to_json() == printed
    rec = randens.load(run_folder / "ensemble")
    data = randens.data.load("digits", "test").subset(slice(0, 60))
    assert saved.natural == pytest.approx(rec.accuracy(data.x, data.y))
    assert 0 < saved.robust < saved.natural
    assert (saved.data, saved.split, saved.n) == ("digits", "test", 60)
    assert saved.chosen_on == {"checkpoints": "validation"}
    assert saved.attacks[0]["name"] == "saddle"
    assert not (run_folder / "evaluating").exists()


def test_evaluate_prints_a_table(shell: Shell, run_folder: Path) -> None:
    code, out, err = shell("evaluate", run_folder, *FAST)
    assert code == 0
    for expected in (
        "randomized, uniform",
        "deterministic, all 3",
        "floor",
        "Worst cases found by",
        "checkpoints chosen",
    ):
        assert expected in out
    assert "Traceback" not in err


@pytest.mark.parametrize(("style", "start"), [("markdown", "| | natural"), ("latex", "member 0 &")])
def test_evaluate_as_rows(shell: Shell, run_folder: Path, style: str, start: str) -> None:
    code, out, _ = shell("evaluate", run_folder, *FAST, "--format", style, "--no-deterministic")
    assert code == 0
    assert out.startswith(start)
    assert "deterministic" not in out


def test_evaluate_at_equal_probabilities_unless_told_otherwise(shell: Shell, run_folder: Path) -> None:
    rows = {}
    for flag in ("--uniform", "--no-uniform"):
        code, out, _ = shell("evaluate", run_folder, *FAST, "--format", "markdown", flag)
        assert code == 0
        rows[flag] = [line for line in out.splitlines() if "uniform" in line]
    assert len(rows["--uniform"]) == 1
    assert rows["--no-uniform"] == []


def test_evaluate_elsewhere_with_another_threat(shell: Shell, run_folder: Path, tmp_path: Path) -> None:
    options = ("--norm", "l2", "--eps", "1/4", "--set", "orders=1", "--output", tmp_path / "e.json")
    adversarial = tmp_path / "adv.safetensors"
    printed = shell.json("evaluate", run_folder, *FAST, *options, "--adversarial", adversarial)
    assert printed["threat"] == {"norm": "l2", "eps": 0.25, "bounds": [0.0, 1.0]}
    assert printed["attacks"][0]["orders"] == 1
    assert not (run_folder / "evaluation.json").exists()
    saved = safetensors.torch.load_file(adversarial)
    rec = randens.load(run_folder / "ensemble")
    assert torch.equal(rec.errors(saved["x_adv"], saved["y"]), saved["errors"])


def test_evaluate_refuses(shell: Shell, run_folder: Path, tmp_path: Path) -> None:
    assert "not a folder" in shell.refused("evaluate", tmp_path / "nowhere")
    assert "unknown attack 'arcr'; valid: arc-r" in shell.refused("evaluate", run_folder, "--attack", "arcr")
    assert "unknown data set 'digit'" in shell.refused("evaluate", run_folder, "--data", "digit")
    assert "unknown split 'tset'; valid: test" in shell.refused("evaluate", run_folder, "--split", "tset")
    assert "--eps is 'a/b'" in shell.refused("evaluate", run_folder, "--eps", "a/b")
    assert "eps is 0" in shell.refused("evaluate", run_folder, "--eps", "0")
    assert "give its radius too" in shell.refused("evaluate", run_folder, "--norm", "l2")
    assert "limit is 0" in shell.refused("evaluate", run_folder, "--limit", "0")
    assert "name=value" in shell.refused("evaluate", run_folder, "--set", "steps")
    assert "unknown option" in shell.refused("evaluate", run_folder, "--attack", "pgd", "--set", "stps=3")
    shutil.rmtree(run_folder / "ensemble")
    assert "no ensemble yet" in shell.refused("evaluate", run_folder)


def test_evaluate_refuses_damaged_ensembles(shell: Shell, run_folder: Path) -> None:
    member = run_folder / "ensemble" / "member-00.safetensors"
    member.write_bytes(member.read_bytes()[:-1])
    assert "checksum" in shell.refused("evaluate", run_folder)


def test_runs_that_do_not_name_data_or_threat(
    shell: Shell, tmp_path: Path, ensemble: RandomizedEnsemble
) -> None:
    run = Run.create(tmp_path / "bare")
    RandomizedEnsemble(list(ensemble.members)).save(run.ensemble)
    assert "--data" in shell.refused("evaluate", run.path)
    assert "--norm and --eps" in shell.refused("evaluate", run.path, "--data", "digits")
    options = ("--data", "digits", "--norm", "linf", "--eps", "0.05")
    assert shell.json("evaluate", run.path, *FAST, *options)["summary"]["n"] == 60


# ---- sample ------------------------------------------------------------------------------------------------------


def test_sample_finds_writes_and_reuses(shell: Shell, run_folder: Path) -> None:
    first = shell.json("sample", run_folder, *FAST, "--method", "exact")
    assert Run.open(run_folder).read("sampling") == first
    assert sum(first["probs"]) == pytest.approx(1)
    assert first["gap"] <= 1e-3
    assert first["split"] == "validation"
    assert first["claim"].startswith("optimal against every witness found")
    risks = {m["name"]: m["risk"] for m in first["methods"]}
    assert risks["exact"] <= min(risks.values()) + 1e-3
    assert risks["exact"] <= risks["uniform"] + 1e-3
    assert len(first["contributions"]) == 3
    assert first["upper"] is None
    careful = shell.json("sample", run_folder, *FAST)
    assert careful["reused_witnesses"] > 0
    assert careful["risk"] >= first["lower_bound"] - 1e-12
    assert careful["claim"].startswith(
        "optimal by the 95% bound of the excess over uniform against every witness found"
    )
    assert careful["upper"] > careful["risk"]
    # Three members of equal robustness: forty inputs do not show that one is better.
    assert careful["probs"] == pytest.approx([1 / 3] * 3, abs=0.1)
    assert careful["crossed"]["risk"] >= first["lower_bound"] - 0.05
    fresh = shell.json("sample", run_folder, *FAST, "--method", "exact", "--fresh")
    assert (fresh["reused_witnesses"], fresh["risk"]) == (0, first["risk"])
    other = shell.json("sample", run_folder, *FAST, "--method", "exact", "--eps", "0.03")
    assert other["risk"] < first["risk"]


def test_few_inputs_never_replace_more(shell: Shell, run_folder: Path) -> None:
    run = Run.open(run_folder)
    many = shell.json("sample", run_folder, *FAST)
    few = shell.json("sample", run_folder, "--attack", "saddle", "--limit", "5")
    assert (many["n"], few["n"]) == (60, 5)
    assert run.read("sampling") == many
    assert len(list((run_folder / "answers").glob("sampling-*"))) == 2
    code, out, _ = shell("sample", run_folder, "--attack", "saddle", "--limit", "5")
    assert code == 0
    assert "sampling.json keeps its answer on more inputs" in out.replace("\n", " ")
    whole = shell.json("evaluate", run_folder, *FAST)
    shell.json("evaluate", run_folder, "--attack", "saddle", "--limit", "5")
    assert Evaluation.load(run_folder / "evaluation.json").n == whole["summary"]["n"] == 60
    assert shell.json("evaluate", run_folder, *FAST) == whole


def test_sample_prints_a_table_and_applies_alpha(shell: Shell, run_folder: Path) -> None:
    code, out, _ = shell("sample", run_folder, *FAST, "--apply")
    assert code == 0
    for expected in (
        "probabilities",
        "lower bound",
        "subgradient, T = 10 ",
        "candidates",
        "validation split",
    ):
        assert expected in out
    chosen = json.loads((run_folder / "sampling.json").read_text())["probs"]
    assert randens.load(run_folder / "ensemble").probs.tolist() == chosen
    evaluated = shell.json("evaluate", run_folder, *FAST)
    assert evaluated["chosen_on"] == {"checkpoints": "validation", "probs": "validation"}


def test_a_member_that_is_never_drawn_is_to_be_dropped(
    shell: Shell, tmp_path: Path, ensemble: RandomizedEnsemble
) -> None:
    # A member that always says 0 is wrong nine times out of ten, whatever the attack.
    useless = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    with torch.no_grad():
        for parameter in useless.parameters():
            parameter.zero_()
        list(useless.parameters())[1][0] = 1.0
    run = Run.create(tmp_path / "run", recipe={"data": {"name": "digits"}})
    RandomizedEnsemble([ensemble.members[0], useless], threat=ensemble.threat).save(run.ensemble)
    code, out, _ = shell("sample", run.path, *FAST)
    assert code == 0
    assert "Advice: drop member 1: it is never drawn." in out


def test_sample_refuses_test_data(shell: Shell, run_folder: Path) -> None:
    assert "test split of digits" in shell.refused("sample", run_folder, "--split", "test")
    assert "tol is 2" in shell.refused("sample", run_folder, "--tol", "2")
    assert "valid: confidence, exact" in shell.refused("sample", run_folder, "--method", "best")
    assert "above 0.5" in shell.refused("sample", run_folder, *FAST, "--confidence", "0.3")
    assert not (run_folder / "sampling.json").exists()


def test_advise_says_what_to_deploy(shell: Shell, run_folder: Path, ensemble: RandomizedEnsemble) -> None:
    single = Run.create(run_folder.parent / "single", recipe={"data": {"name": "digits"}})
    RandomizedEnsemble([ensemble.members[0]], threat=ensemble.threat).save(single.ensemble)
    code, out, err = shell("advise", run_folder, *FAST, "--against", single.path)
    assert code == 0, err
    for expected in (
        "best member",
        "drawn evenly",
        "2 of 3 averaged",
        "deterministic, all 3",
        "At 3× compute",
    ):
        assert expected in out
    found = json.loads((run_folder / "advice.json").read_text())
    assert [choice["compute"] for choice in found["choices"]] == [1, 2, 3]
    assert {option["kind"]: option["k"] for option in found["options"]} == {
        "member": 1,
        "drawn": 1,
        "subset": 2,
        "deterministic": 3,
        "network": 1,
    }
    assert "3 members" in shell.refused("advise", run_folder, "--against", run_folder)
    few = ("--attack", "fgsm", "--limit", 3, "--no-subsets")
    assert "advice.json keeps the advice on more inputs" in " ".join(
        shell("advise", run_folder, *few)[1].split()
    )
    assert json.loads((run_folder / "advice.json").read_text()) == found
    quick = shell.json("advise", run_folder, *FAST, "--split", "test", "--no-subsets")
    assert quick["choices"] == []
    assert "Nothing is recommended on test data" in quick["sentences"][-1]


# ---- explain -----------------------------------------------------------------------------------------------------


def test_explain(shell: Shell) -> None:
    document = shell.json("explain", "0.5", "0.4", "0.45")
    assert document["floor"] == pytest.approx(0.5 / 3)
    assert document["ceiling"] == 0.5
    code, out, _ = shell("explain", "0.5", "0.4", "0.45", "--classes", "10")
    assert code == 0
    assert "floor    0.1667" in out
    assert "deterministic threshold vote" not in out


@pytest.mark.parametrize("risks", [("a",), ("1.5",), ("nan",)])
def test_explain_refuses(shell: Shell, risks: tuple[str, ...]) -> None:
    assert risks[0] in shell.refused("explain", *risks)


# ---- doctor ------------------------------------------------------------------------------------------------------


def test_doctor(shell: Shell) -> None:
    code, out, _ = shell("doctor")
    assert code == 0
    for name in ("versions", "device", "threads", "bfloat16", "disk", "data", "theory", "attack", "sampling"):
        assert f"ok   {name}" in out
    assert shell.json("doctor")["ok"] is True


def test_doctor_reports_what_is_broken(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr("randens.doctor.optimal_sampling", broken)
    code, out, _ = shell("doctor")
    assert code == 1
    assert "BAD  theory     RuntimeError: no luck" in out
    assert "ok   ensemble" in out


# ---- quickstart --------------------------------------------------------------------------------------------------


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quickstart with a single epoch per member, evaluated on few images."""
    real, whole = quickstart.recipes, data.load

    def few(name: str, split: str) -> Any:
        return whole(name, split) if split == "train" else whole(name, split).subset(slice(0, 40))

    def short(*asked: Any) -> tuple[Any, Any]:
        at, ensemble = real(*asked)
        one = ["adversary.steps=1", "adversary.warmup=0"]
        return at.with_settings(["epochs=4", *one]), ensemble.with_settings(["epochs=1", *one])

    monkeypatch.setattr(quickstart, "recipes", short)
    monkeypatch.setattr(data, "load", few)
    monkeypatch.setattr(quickstart, "_SHOWN", 20)


@pytest.mark.usefixtures("hurried")
def test_quickstart(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("quickstart", "--runs", tmp_path)
    assert code == 0, err
    for expected in (
        "AT ",
        "ensemble member 2",
        "randomized, uniform",
        "randomized, chosen (",
        "What to deploy",
        "At 1× compute",
        "deterministic, all 4",
        "FLOPs",
        "floor",
        "gain",
    ):
        assert expected in out
    assert str(tmp_path / "quickstart-1") in out
    assert "What to try next" in out
    # Validation is a larger share of a run this short, so its budgets need not be equal.
    assert "equal-budget baseline" in " ".join(out.split())
    document = shell.json("quickstart", "--runs", tmp_path)
    assert document["run"] == str(tmp_path / "quickstart-2")
    first, second = (Run.open(tmp_path / f"quickstart-{i}") for i in (1, 2))
    assert first.manifest["chosen_on"]["probs"] == "validation"
    # The same seed gives the same numbers.
    one, two = (Evaluation.load(run.path / "evaluation.json") for run in (first, second))
    assert one.risk.tolist() == two.risk.tolist()
    assert document["ensemble"]["summary"]["robust"]["value"] == two.robust
    assert randens.load(second.ensemble).probs.tolist() == document["sampling"]["probs"]
    assert (
        document["verdict"]["sentence"].split(".")[0]
        in quickstart.judge(Evaluation.load(second.path / "at" / "evaluation.json"), two).sentence
    )
    assert list(first.metrics())[-1]["event"] == "quickstart"
    assert document["advice"]["split"] == "validation"
    assert "AT, one network" in {option["name"] for option in document["advice"]["options"]}
    assert "What to deploy" in Path(document["report"]).read_text()
    # A run folder of the quickstart is a run folder like any other.
    assert shell.json("evaluate", second.path, *FAST)["ensemble"] == two.ensemble


def test_the_baseline_of_the_quickstart_has_the_ensembles_training_budget() -> None:
    at, ensemble = (training.plan(recipe) for recipe in quickstart.recipes(0))
    assert at.crafting + at.training == ensemble.crafting + ensemble.training


def test_the_verdict_is_computed(run_folder: Path) -> None:
    rec = randens.load(run_folder / "ensemble")
    data = randens.data.load("digits", "test")
    attack = randens.attacks.create("saddle", rec.threat or randens.Threat("linf", 0.06))
    good = randens.evaluate(rec, data, attack)
    worse = randens.evaluate(
        rec.with_probs((1, 0, 0)), data, randens.attacks.create("saddle", attack.threat.scaled(2))
    )
    assert "cannot be compared: another threat" in quickstart.judge(good, worse).sentence
    worse = dataclasses.replace(worse, threat=good.threat)
    gap = f"{100 * abs(float(good.risk.mean() - worse.risk.mean())):.1f} points"
    assert (
        f"The ensemble is {gap} less robust than AT (95% interval -" in quickstart.judge(good, worse).sentence
    )
    assert (
        f"The ensemble is {gap} more robust than AT (95% interval +" in quickstart.judge(worse, good).sentence
    )
    same = quickstart.judge(good, good, (100.0, 310.0)).sentence
    assert "The ensemble is exactly as robust as AT" in same
    assert f"digits test, {good.n} inputs, attacked with saddle, {good.threat.norm} ε = " in same
    assert (
        "AT is not an equal-budget baseline: training the ensemble took 3.1 times its member passes" in same
    )
    fair = quickstart.judge(good, good, (100.0, 105.0)).sentence
    assert (
        "AT is the equal-budget baseline: it was trained with as many member passes as the ensemble." in fair
    )


def test_quickstart_refuses_an_unwritable_place(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    assert "cannot create" in shell.refused("quickstart", "--runs", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.slow
def test_the_whole_quickstart(shell: Shell, tmp_path: Path) -> None:
    document = shell.json("quickstart", "--runs", tmp_path)
    assert document["sampling"]["gap"] <= 1e-3
    assert document["sampling"]["sweeps"] <= 6
