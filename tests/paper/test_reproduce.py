"""The paper's tables: the right numbers in the right cells, missing runs with their commands, nothing stale reused."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from paper.reproduce.__main__ import main as command
from paper.reproduce.figures import points
from paper.reproduce.findings import findings
from paper.reproduce.measure import ATTACKS, Measured, Settings, measure, measured
from paper.reproduce.page import reproduce
from paper.reproduce.plan import SCALES, check, hours, plan
from paper.reproduce.tables import NETWORKS, Table, Wanted, paper, paper_names, tables
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import THREAT, digits, ensemble

import randens
from randens import RandomizedEnsemble
from randens.core.errors import FileError, InputError
from randens.core.files import read_json, write_json
from randens.core.runs import Run

FEW = Settings(limit=30, alpha="exact")


def made_up(members: int = 3, **changes: Any) -> Measured:
    """Numbers that tell where they came from: 0.01 for the first member, 0.02 for the second, and so on."""
    values: dict[str, Any] = {
        "method": "barre",
        "n": 100,
        "probs": (0.5, 0.3, 0.2)[:members],
        "flops": (81_000_000,) * members,
        "individual": tuple((0.8, 0.01 * (i + 1)) for i in range(members)),
        "randomized": tuple((0.7, 0.1 * (i + 1)) for i in range(members)),
        "uniform": (0.6, 0.05),
        "deterministic": tuple((0.9, 0.2 * (i + 1)) for i in range(members)),
        "risks": dict.fromkeys(("sampled", "uniform", "averaged"), (0.0, 1.0)),
        "attacks": {name: 0.4 + 0.01 * i for i, name in enumerate(ATTACKS)},
    }
    return Measured(**{**values, **changes})


def row(table: Table, *labels: str) -> dict[str, Any]:
    """The only row with all of these labels, cells by heading."""
    (found,) = [r for r in table.rows if all(label in r.labels for label in labels)]
    headings = table.headings[len(found.labels) :]
    return {h: (c.ours, c.paper) for h, c in zip(headings, found.cells, strict=True)}


def test_the_papers_numbers_are_where_the_paper_has_them() -> None:
    stated = paper()
    assert stated["best"]["resnet20"]["barre"]["cifar10"] == [76.28, 47.35]
    assert stated["best"]["mobilenetv1"]["mrboost-r-uniform"]["cifar100"] == [50.14, 24.76]
    assert stated["sizes"]["cifar10"]["resnet18"]["mrboost"][3] == [85.07, 52.15]
    assert stated["individual"]["cifar100"]["mobilenetv1"]["mrboost"][4] == [38.88, 11.34]
    assert stated["attacks"]["resnet20"]["barre"]["arc-r"] == 47.35
    # What the paper prints twice must agree.
    for network in NETWORKS:
        for method in ("iat", "barre"):
            assert (
                stated["attacks"][network][method]["arc-r"] == stated["best"][network][method]["cifar10"][1]
            )
        first = stated["best"][network]["at"]
        for data in ("cifar10", "cifar100"):
            assert stated["individual"][data][network]["iat"][0] == first[data]


def test_cells_hold_what_their_run_measured() -> None:
    run = Wanted("cifar10", "resnet20", "barre")
    boosted = Wanted("cifar10", "resnet20", "mrboost")
    one, two, three, four, five, six, seven = tables({run: made_up(), boosted: made_up(method="mrboost")})
    assert [t.name for t in (one, two, three, four, five, six, seven)] == [f"table{i}" for i in range(1, 8)]
    best = row(one, "ResNet-20", "BARRE", "M = 3 (5)")
    assert best["CIFAR-10 A_nat"] == (pytest.approx(70.0), 76.28)
    assert best["CIFAR-10 A_rob"] == (pytest.approx(30.0), 47.35)
    assert best["CIFAR-100 A_rob"] == (None, 21.11)
    # Deterministic ensembles by size come from MRBoost, randomized ones from BARRE.
    deterministic, randomized = row(two, "ResNet-20", "MRBoost"), row(two, "ResNet-20", "BARRE")
    assert deterministic["M = 2 A_rob"] == (pytest.approx(40.0), 44.68)
    assert randomized["M = 2 A_rob"] == (pytest.approx(20.0), 44.38)
    assert randomized["M = 4 A_rob"] == (None, 46.44)
    assert deterministic["M = 3 A_nat"][0] == pytest.approx(90.0)
    assert deterministic["M = 3 FLOPs"] == (pytest.approx(243.0), 243)
    assert randomized["M = 3 FLOPs"] == (pytest.approx(81.0), 81)
    assert row(three, "ResNet-20", "BARRE")["f3 A_rob"] == (pytest.approx(3.0), 39.87)
    assert row(five, "ResNet-20", "BARRE")["ARC-R"] == (pytest.approx(45.0), 47.35)
    assert row(five, "ResNet-20", "BARRE")["ACW (l2)"] == (pytest.approx(40.0), 58.96)
    assert row(seven, "MobileNetV1", "MRBoost-R", "CIFAR-10")["α5"] == (None, 0)
    assert row(seven, "ResNet-20", "BARRE", "CIFAR-10")["α1"] == (pytest.approx(50.0), None)
    assert all(cell.ours is None for table in (four, six) for row in table.rows for cell in row.cells)


def test_tables_have_the_papers_layout() -> None:
    one, two, three, _, five, _, _ = tables({})
    assert one.headings == (
        *("Network", "Method", "Size M"),
        *("CIFAR-10 A_nat", "CIFAR-10 A_rob", "CIFAR-100 A_nat", "CIFAR-100 A_rob"),
    )
    assert [r.labels[1] for r in one.rows] == [
        *("AT", "IAT", "MRBoost-R", "BARRE"),
        *("AT", "IAT", "MRBoost-R†", "MRBoost-R", "BARRE"),
        *("AT", "IAT", "MRBoost-R†", "MRBoost-R", "BARRE"),
    ]
    assert (len(two.columns), len(two.rows)) == (12, 6)
    assert (len(three.columns), len(three.rows)) == (10, 9)
    assert [name for _, name in five.columns] == ["ACW (l2)", "AFGSM", "APGD-L", "APGD-S", "ARC", "ARC-R"]
    # A network is named once for all of its rows.
    assert [line.split("|")[1].strip() for line in one.markdown().splitlines()[2:7]] == [
        *("ResNet-20", "", "", ""),
        "MobileNetV1",
    ]
    tex = two.latex()
    assert r"\multirow{2}{*}{ResNet-20} & MRBoost & -- (73.18) & -- (41.99)" in tex
    assert r"\multicolumn{3}{c}{M = 4}" in tex
    assert tex.count(r"\midrule") == 3


def test_differences_are_ours_minus_the_papers() -> None:
    table = tables({Wanted("cifar10", "resnet20", "at"): made_up(1, method="at")})[0]
    at = next(r for r in table.rows if r.labels[:2] == ("ResNet-20", "AT"))
    assert at.cells[1].difference == pytest.approx(10.0 - 41.99)
    assert "10.00 (41.99)" in table.markdown()
    assert "– (47.35)" in table.markdown()


def test_figure_one_compares_at_equal_terms() -> None:
    found = {
        Wanted("cifar10", "resnet20", "mrboost"): made_up(method="mrboost"),
        Wanted("cifar10", "resnet20", "barre"): made_up(),
    }
    listed = points(found, ("resnet20",))
    # Three members on our side, so the paper's three as well.
    assert listed["mrboost"][0]["ours"] == {"mflops": 243.0, "robust": pytest.approx(60.0)}
    assert listed["barre"][0]["ours"] == {"mflops": 81.0, "robust": pytest.approx(30.0)}
    assert listed["barre"][0]["paper"] == {"mflops": 81, "robust": 45.41}
    assert listed["mrboost"][0]["paper"] == {"mflops": 243, "robust": 46.09}
    assert listed["at"][0]["ours"] is None
    assert listed["at"][0]["paper"] == {"mflops": 81, "robust": 41.99}
    # And where nothing is there, the paper's four.
    assert points({}, ("resnet20",))["mrboost"][0]["paper"] == {"mflops": 324, "robust": 46.34}


@pytest.mark.parametrize("scale", SCALES)
def test_every_planned_run_can_be_made(scale: str) -> None:
    planned = plan(scale)
    names = [p.name for p in planned]
    assert len(set(names)) == len(names)
    expected = {"digits": 25, "cpu": 5, "paper": 25, "released": 25}
    assert len(planned) == expected[scale]
    for run in planned:
        recipe = run.load()
        assert recipe.method == run.wanted.method.split("-")[0]
        assert recipe.members == 1 if run.wanted.method == "at" else recipe.members > 1
        if run.first is not None:
            assert names.index(run.first) < names.index(run.name)
        if scale == "digits" and run.wanted.method == "barre":
            # As many members as the paper has.
            assert recipe.members == {"resnet18": 4}.get(run.wanted.network, 5)
        if run.wanted.method == "barre-arc":
            assert (recipe.members, recipe.adversary.name, recipe.validation.attack) == (2, "arc", "arc-r")


def test_missing_runs_come_with_the_command_that_makes_them(tmp_path: Path) -> None:
    result = reproduce("paper", tmp_path / "my runs")
    assert len(result.missing) == 25
    by_name = {name: shlex.split(command) for name, command in result.missing.items()}
    words = by_name["cifar100-resnet18-barre"]
    assert words[:3] == ["randens", "train", "recipes/paper/cifar100-resnet18-barre.toml"]
    assert words[words.index("--out") + 1] == str(tmp_path / "my runs" / "cifar100-resnet18-barre")
    assert f"first={tmp_path / 'my runs' / 'cifar100-resnet18-at'}" in words
    assert "--set" not in by_name["cifar10-resnet20-at"]
    assert "adversary.name=arc" in by_name["cifar10-resnet20-barre-arc"]
    page = (tmp_path / "my runs" / "reproduction.md").read_text()
    assert "## Missing runs" in page
    assert "46.34" in page
    assert read_json(tmp_path / "my runs" / "reproduction.json")["missing"] == result.missing
    assert [path.name for path in result.figures] == ["figure1.png", "figure4.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in result.figures)


def _run(path: Path, rec: RandomizedEnsemble, method: str) -> Run:
    run = Run.create(path, recipe={"data": {"name": "digits"}, "method": method, "epochs": 7})
    rec.save(run.ensemble)
    run.write("training", {"cost": {"forwards": 100, "backwards": 50, "seconds": 2.5}})
    for epoch, robust in enumerate((0.3, 0.4), start=1):
        run.log(event="epoch", member=2, epoch=epoch, natural=0.9, robust=robust)
    run.log(event="epoch", member=1, epoch=1, natural=0.5, robust=0.1)
    return run


def test_measured_is_what_an_evaluation_says(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", ensemble("linear", "mlp"), "mrboost")
    found = measure(run, FEW)
    rec = ensemble("linear", "mlp").with_probs(found.probs)
    own = evaluate(
        rec,
        digits("test").subset(slice(0, 30)),
        FEW.build(THREAT),
        also={"uniform": None},
    )
    assert found.n == 30
    assert found.uniform == (own.at(None).natural.value, own.at(None).robust.value)
    assert [robust for _, robust in found.individual] == [a.robust.value for a in own.member_accuracies]
    assert own.deterministic is not None
    assert found.deterministic[-1] == (own.deterministic.natural.value, own.deterministic.robust.value)
    assert len(found.deterministic) == 2
    assert set(found.attacks) == set(ATTACKS)
    # One attack alone finds at most what all of them together find.
    assert found.attacks["arc-r"] >= found.uniform[1] - 1e-9
    assert found.attacks["afgsm"] >= found.attacks["arc-r"]
    assert found.curve == ((1, 0.9, 0.3), (2, 0.9, 0.4))
    assert (found.epochs, found.training_passes) == (7, 150)
    assert 1 - sum(found.risks["sampled"]) / 30 == pytest.approx(found.randomized[-1][1], abs=1e-5)
    assert 1 - sum(found.risks["averaged"]) / 30 == pytest.approx(found.deterministic[-1][1], abs=1e-5)
    assert found.measuring_passes > 1000
    # A second call reads what the first one wrote.
    again = measured(run, FEW)
    assert again == found
    assert measured(run, dataclasses.replace(FEW, seed=1)) is None


def test_measurements_of_other_members_or_by_hand_are_not_used(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", ensemble("linear"), "at")
    few = Settings(limit=10)
    measure(run, few)
    path = run.path / "measured.json"
    document = read_json(path)
    write_json(path, {**document, "measured": {"probs": [1.0]}})
    with pytest.raises(FileError, match="damaged"):
        measured(run, few)
    write_json(path, document)
    assert measured(run, few) is not None
    RandomizedEnsemble([ensemble("mlp", "linear").members[1]], threat=THREAT).save(
        run.ensemble, overwrite=True
    )
    assert measured(run, few) is None


def test_runs_that_are_there_fill_their_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_name = {p.wanted: p.name for p in plan("digits")}
    at = by_name[Wanted("cifar10", "mobilenetv1", "at")]
    _run(tmp_path / at, ensemble("linear"), "at")
    arguments = ["--runs", str(tmp_path), "--no-train", "--limit", "20", "--json"]
    assert command(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["missing"]) == 24
    assert all(" --train --only " in command for command in said["missing"].values())
    filled = [r for r in said["tables"][0]["rows"] if r["cells"][0]["ours"] is not None]
    assert [r["labels"][1] for r in filled] == ["AT"]
    assert list(said["budget"]) == [at]
    assert said["settings"]["attack"] == "arc-r"


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown scale 'digit'; did you mean digits"):
        reproduce("digit", tmp_path)
    with pytest.raises(InputError, match="limit is 0"):
        reproduce("cpu", tmp_path, limit=0)
    with pytest.raises(InputError, match="rule for α"):
        reproduce("cpu", tmp_path, alpha="best")
    with pytest.raises(InputError, match="unknown run 'cifar11'"):
        plan("paper", ["cifar11"])
    _run(tmp_path / "cifar10-resnet20-at", ensemble("linear"), "at")
    with pytest.raises(InputError, match="unknown attack"):
        reproduce("cpu", tmp_path, attack="arcr")


def test_the_zoo_fills_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries with their members are copied to where the runs would be; the measuring itself is left out here."""
    seen: list[str] = []

    def measured_elsewhere(run: Run, *_: object, **__: object) -> Measured:
        seen.append(run.path.name)
        return made_up(len(randens.load(run.ensemble)), method=run.manifest["recipe"]["method"])

    monkeypatch.setattr("paper.reproduce.page.measure", measured_elsewhere)
    result = reproduce("cpu", tmp_path)
    names = [f"cifar10-resnet20-{method}" for method in ("at", "barre")]
    assert seen == names
    assert [name.rsplit("resnet20-")[1] for name in result.missing] == ["iat", "mrboost", "barre-arc"]
    assert row(result.tables[0], "ResNet-20", "BARRE", "M = 3 (5)")["CIFAR-10 A_rob"][0] is not None


@pytest.mark.parametrize("rule", ["exact", "uniform", "osp"])
def test_every_ensemble_gets_its_alpha_by_the_rule_asked_for(tmp_path: Path, rule: str) -> None:
    rec, few = ensemble("linear", "mlp"), dataclasses.replace(FEW, alpha=rule, compare=False)
    found = measure(_run(tmp_path / "run", rec.with_probs([0.3, 0.7]), "barre"), few)
    held = digits("validation").subset(slice(0, 30))
    expected = {
        "uniform": [[0.5, 0.5]],
        # For two members the candidates of Theorem 1.
        "osp": [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]],
        "exact": [randens.optimize_sampling(rec, held, few.build(THREAT), max_sweeps=4).probs.tolist()],
    }
    assert any(found.probs == pytest.approx(probs) for probs in expected[rule])


def test_claims_are_judged_on_the_same_images() -> None:
    """Of 100 images BARRE sampled errs on half of 40, MRBoost averaged on 30, AT on 50."""
    half = (*(1.0,) * 20, *(0.0,) * 80)
    thirty, fifty = (*(1.0,) * 30, *(0.0,) * 70), (*(1.0,) * 50, *(0.0,) * 50)
    found = {
        Wanted("cifar10", "resnet20", "barre"): made_up(risks={"sampled": half}),
        Wanted("cifar10", "resnet20", "mrboost"): made_up(risks={"sampled": fifty, "averaged": thirty}),
        Wanted("cifar10", "resnet20", "at"): made_up(1, probs=(1.0,), risks={"sampled": fifty}),
        Wanted("cifar10", "resnet20", "iat"): made_up(2, probs=(1.0, 0.0), risks={"sampled": half}),
    }
    said = "\n".join(findings(found, ("resnet20",), paper_names()))
    assert "BARRE − AT, robust accuracy: ResNet-20, CIFAR-10 +30.0 (" in said
    assert "MRBoost-R − AT, robust accuracy: ResNet-20, CIFAR-10 +0.0 (" in said
    assert "BARRE sampled − MRBoost averaged, robust accuracy: ResNet-20, CIFAR-10 +10.0 (" in said
    assert "averaging takes 3 times the FLOPs" in said
    assert "shown in 1, refuted in 0 and open in 0 of 1 cases" in said
    assert "(‡): ResNet-20, CIFAR-10, IAT." in said


def test_nothing_begins_that_cannot_be_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = plan("paper", ["cifar100-resnet20-barre"])
    assert [run.name for run in runs] == ["cifar100-resnet20-at", "cifar100-resnet20-barre"]
    monkeypatch.setattr("randens.data.present", lambda: {"cifar10": True, "cifar100": False})
    with pytest.raises(InputError, match="randens data fetch cifar100"):
        reproduce("paper", tmp_path / "runs", training=True)
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(InputError, match="GB"):
        check(plan("paper", ["cifar10-resnet20"]), tmp_path, "cpu")
    with pytest.raises(InputError, match="nosuch"):
        check(runs, tmp_path, "nosuch")


def test_commands_and_hours_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        command(["--scale", "released", "--only", "cifar10-resnet20", "--set", "precision=float32", "--list"])
        == 0
    )
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 5
    assert all(line.startswith("randens train recipes/released/cifar10-resnet20-") for line in listed)
    assert all("precision=float32" in line for line in listed)
    run = plan("digits")[0]
    assert all(0 < part < 1 for part in hours(run, "cpu"))


def test_continuing_on_another_device_is_no_other_recipe() -> None:
    recipe = plan("digits")[0].load()
    assert recipe.changes(recipe.with_settings(["device=cuda", "precision=float32"])) == []
