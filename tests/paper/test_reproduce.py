"""The paper's tables: the right numbers in the right cells, missing runs with their commands, nothing stale reused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paper.reproduce.__main__ import main as command
from paper.reproduce.figures import figure1, points
from paper.reproduce.findings import findings
from paper.reproduce.measure import ATTACKS, Measured, Settings, measure
from paper.reproduce.page import Measurements, page, reproduce
from paper.reproduce.plan import SCALES, check, hours, plan
from paper.reproduce.tables import Table, Wanted, paper_names, tables
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import THREAT, digits, ensemble

from randens import RandomizedEnsemble
from randens.core.errors import InputError
from randens.core.runs import Run

FEW = Settings(limit=30, alpha="exact")
AT, IAT, MRBOOST, BARRE = (Wanted("cifar10", "resnet20", m) for m in ("at", "iat", "mrboost", "barre"))


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
    return {h: (c.ours, c.paper) for h, c in zip(table.columns, found.cells, strict=True)}


def test_cells_hold_what_their_run_measured() -> None:
    one, two, three, four, five, six, seven = tables({BARRE: made_up(), MRBOOST: made_up(method="mrboost")})
    best = row(one, "ResNet-20", "BARRE", "M = 3 (5)")
    assert best["CIFAR-10 A_nat"] == (pytest.approx(70.0), 76.28)
    assert best["CIFAR-10 A_rob"] == (pytest.approx(30.0), 47.35)
    assert best["CIFAR-100 A_rob"] == (None, 21.11)
    # Deterministic ensembles by size come from MRBoost, randomized ones from BARRE.
    deterministic, randomized = row(two, "ResNet-20", "MRBoost"), row(two, "ResNet-20", "BARRE")
    assert deterministic["M = 2 A_rob"] == (pytest.approx(40.0), 44.68)
    assert randomized["M = 2 A_rob"] == (pytest.approx(20.0), 44.38)
    assert randomized["M = 4 A_rob"] == (None, 46.44)
    assert deterministic["M = 3 FLOPs"] == (pytest.approx(243.0), 243)
    assert randomized["M = 3 FLOPs"] == (pytest.approx(81.0), 81)
    assert row(three, "ResNet-20", "BARRE")["f3 A_rob"] == (pytest.approx(3.0), 39.87)
    assert row(five, "ResNet-20", "BARRE")["ARC-R"] == (pytest.approx(45.0), 47.35)
    assert row(seven, "MobileNetV1", "MRBoost-R", "CIFAR-10")["α5"] == (None, 0)
    assert row(seven, "ResNet-20", "BARRE", "CIFAR-10")["α1"] == (pytest.approx(50.0), None)
    assert all(cell.ours is None for table in (four, six) for row in table.rows for cell in row.cells)
    assert "| 30.00 (47.35) |" in one.markdown()


def test_figure_one_compares_at_equal_terms() -> None:
    listed = points({MRBOOST: made_up(method="mrboost"), BARRE: made_up()}, ("resnet20",))
    # Three members on our side, so the paper's three as well.
    assert listed["mrboost"][0]["ours"] == {"mflops": 243.0, "robust": pytest.approx(60.0)}
    assert listed["barre"][0]["ours"] == {"mflops": 81.0, "robust": pytest.approx(30.0)}
    assert listed["mrboost"][0]["paper"] == {"mflops": 243, "robust": 46.09}
    assert listed["at"][0]["ours"] is None
    figure1({}, ("resnet20",)).draw_without_rendering()  # without runs of ours, too


@pytest.mark.parametrize("scale", SCALES)
def test_every_planned_run_can_be_made(scale: str) -> None:
    planned = plan(scale)
    names = [p.name for p in planned]
    assert len(set(names)) == len(planned) == {"cpu": 5}.get(scale, 25)
    for run in planned:
        recipe = run.load()
        assert recipe.method == run.wanted.method.split("-")[0]
        assert recipe.members == 1 if run.wanted.method == "at" else recipe.members > 1
        assert run.first is None or names.index(run.first) < names.index(run.name)
        assert scale not in ("paper", "released") or recipe.precision == "float32"


def _run(path: Path, rec: RandomizedEnsemble, method: str) -> Run:
    run = Run.create(path, recipe={"data": {"name": "digits"}, "method": method, "epochs": 7})
    rec.save(run.ensemble)
    run.write("training", {"cost": {"forwards": 100, "backwards": 50, "seconds": 2.5}})
    for epoch, robust in enumerate((0.3, 0.4), start=1):
        run.log(event="epoch", member=2, epoch=epoch, natural=0.9, robust=robust)
    return run


def test_measured_is_what_an_evaluation_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(tmp_path / "run", ensemble("linear", "mlp"), "mrboost")
    found = measure(run, FEW)
    rec = ensemble("linear", "mlp").with_probs(found.probs)
    own = evaluate(rec, digits("test").subset(slice(0, 30)), FEW.build(THREAT), also={"uniform": None})
    assert found.uniform == (own.at(None).natural.value, own.at(None).robust.value)
    assert [robust for _, robust in found.individual] == [a.robust.value for a in own.member_accuracies]
    assert own.deterministic is not None
    assert found.deterministic[-1] == (own.deterministic.natural.value, own.deterministic.robust.value)
    # One attack alone finds at most what all of them together find.
    assert found.attacks["afgsm"] >= found.attacks["arc-r"] >= found.uniform[1] - 1e-9
    assert found.curve == ((1, 0.9, 0.3), (2, 0.9, 0.4))
    assert (found.epochs, found.training_passes) == (7, 150)
    assert 1 - sum(found.risks["sampled"]) / 30 == pytest.approx(found.randomized[-1][1], abs=1e-5)
    assert 1 - sum(found.risks["averaged"]) / 30 == pytest.approx(found.deterministic[-1][1], abs=1e-5)
    # What was measured is read again; under other settings, or for other members, it is measured.
    with monkeypatch.context() as patch:
        patch.setattr("paper.reproduce.measure._Work.all", lambda _: made_up())
        assert measure(run, FEW) == found
        assert measure(run, dataclasses.replace(FEW, seed=1)) == made_up()
        ensemble("mlp").save(run.ensemble, overwrite=True)
        patch.setattr("paper.reproduce.measure._Work.all", lambda _: made_up(1))
        assert measure(run, dataclasses.replace(FEW, seed=1)) == made_up(1)


@pytest.mark.parametrize("rule", ["uniform", "osp"])
def test_every_ensemble_gets_its_alpha_by_the_rule_asked_for(tmp_path: Path, rule: str) -> None:
    rec, few = ensemble("linear", "mlp"), dataclasses.replace(FEW, alpha=rule, compare=False)
    found = measure(_run(tmp_path / "run", rec.with_probs([0.3, 0.7]), "barre"), few)
    # For two members OSP tries the candidates of Theorem 1.
    assert list(found.probs) in ([[0.5, 0.5]] if rule == "uniform" else [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])


def test_runs_that_are_there_fill_their_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = next(p.name for p in plan("digits") if p.wanted == Wanted("cifar10", "mobilenetv1", "at"))
    _run(tmp_path / at, ensemble("linear"), "at")
    assert command(["--runs", str(tmp_path), "--no-train", "--limit", "20"]) == 0
    said = capsys.readouterr().out
    missing = [line for line in said.splitlines() if "`randens train" in line]
    assert len(missing) == 24
    assert any(f"first={tmp_path / at}" in line and at.replace("-at", "-barre") in line for line in missing)
    assert f"| {at} | 1 | 7 | 20 | 150 |" in said
    done = Measurements.load(tmp_path / "measurements.json")
    (alone,) = done.runs.values()
    assert f"| AT | M = 1 (1) | {100 * alone.randomized[0][0]:.2f} (79.01)" in said
    # The page is made again from what was measured.
    assert (tmp_path / "reproduction.md").read_text(encoding="utf-8") == page(done, tmp_path) == said
    for name in ("figure1.png", "figure4.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_claims_are_judged_on_the_same_images() -> None:
    """Of 100 images BARRE sampled errs on 20, MRBoost averaged on 30, AT on 50."""
    twenty, thirty, fifty = ((*(1.0,) * k, *(0.0,) * (100 - k)) for k in (20, 30, 50))
    found = {
        BARRE: made_up(risks={"sampled": twenty}),
        MRBOOST: made_up(risks={"sampled": fifty, "averaged": thirty}),
        AT: made_up(1, probs=(1.0,), risks={"sampled": fifty}),
        IAT: made_up(2, probs=(1.0, 0.0), risks={"sampled": twenty}),
    }
    said = "\n".join(findings([found], ("resnet20",), paper_names()))
    assert "BARRE − AT, robust accuracy: ResNet-20, CIFAR-10 +30.0 (" in said
    assert "IAT − AT, robust accuracy: ResNet-20, CIFAR-10 +30.0 (" in said
    assert "MRBoost-R − AT, robust accuracy: ResNet-20, CIFAR-10 +0.0 (" in said
    assert "BARRE sampled − MRBoost averaged, robust accuracy: ResNet-20, CIFAR-10 +10.0 (" in said
    assert "averaging takes 3 times the FLOPs" in said
    assert "shown in 1, refuted in 0 and open in 0 of 1 cases" in said
    assert "(‡): ResNet-20, CIFAR-10, IAT." in said
    # With another seed that says the opposite, nothing is shown.
    other = {**found, BARRE: found[AT], AT: found[BARRE]}
    both = "\n".join(findings([found, other], ("resnet20",), paper_names()))
    assert "BARRE − AT, robust accuracy: ResNet-20, CIFAR-10 +0.0 (-" in both
    assert "shown in 0, refuted in 0 and open in 1 of 1 cases" in both


def test_nothing_begins_that_cannot_be_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = plan("paper", ["cifar100-resnet20-barre"])
    assert [run.name for run in runs] == ["cifar100-resnet20-at", "cifar100-resnet20-barre"]
    monkeypatch.setattr("randens.data.present", lambda: {"cifar10": True, "cifar100": False})
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: reproduce("paper", tmp_path / "runs", FEW, training=True), "randens data fetch cifar100"),
        (lambda: check(plan("paper", ["cifar10-resnet20"]), tmp_path, "cpu"), "GB"),
        (lambda: check(runs, tmp_path, "nosuch"), "nosuch"),
        (lambda: Settings(alpha="best"), "rule for α"),
        (lambda: Settings(limit=0), "limit"),
        (lambda: plan("paper", ["cifar11"]), "cifar11"),
    )
    for call, named in calls:
        with pytest.raises(InputError, match=named):
            call()
    assert not (tmp_path / "runs").exists()


def test_commands_and_hours_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--only", "cifar10-resnet20", "--set", "precision=float32", "--list"]
    assert command(["--scale", "released", *settings]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 5
    assert all(line.startswith("randens train recipes/released/cifar10-resnet20-") for line in listed)
    assert all("precision=float32" in line for line in listed)
    assert all(0 < part < 1 for part in hours(plan("digits")[0], "cpu"))
