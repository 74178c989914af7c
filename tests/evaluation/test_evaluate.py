"""Evaluations: exact on planted cases, consistent with themselves, refused where they would mislead."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.evaluation.evaluated import evaluate
from tests.evaluation.planted import THREAT, exact, members, on_a_line, random_linear

import randens
from randens import RandomizedEnsemble, Threat, WitnessStore, attacks
from randens.core.errors import FileError, InputError
from randens.core.runs import Run
from randens.data import as_data
from randens.evaluation import Evaluation
from randens.evaluation.evaluate import Witnesses
from randens.evaluation.inputs import Case
from randens.evaluation.tables import Table

# Wrong above 0.6 (right-hand member) and below 0.4 (left-hand member); labels are all 0, ε = 0.2.
CONFLICT = ((1.0, 0.6), (-1.0, 0.4))
LINE = (0.5, 0.5, 0.9, 0.3)  # either; either; right wrong anyway; left wrong, right never


@pytest.fixture(scope="module")
def line() -> Evaluation:
    rec, x, y = on_a_line(CONFLICT, LINE, (0.25, 0.75))
    return evaluate(rec, (x, y), exact(), also={"uniform": None})


def _line() -> tuple[RandomizedEnsemble, tuple[torch.Tensor, torch.Tensor]]:
    rec, x, y = on_a_line(CONFLICT, LINE, (0.25, 0.75))
    return rec, (x, y)


def test_planted_accuracies(line: Evaluation) -> None:
    # Clean: no member wrong at .5; right-hand wrong at .9; left-hand wrong at .3.
    assert line.natural == pytest.approx(1 - (0.25 + 0.75) / 4)
    # Worst: left-hand member (.75) at .5 twice; right-hand (.25) at .9; left-hand (.75) at .3.
    assert line.risk.tolist() == pytest.approx([0.75, 0.75, 0.25, 0.75])
    assert line.robust == pytest.approx(1 - 2.5 / 4)
    assert [a.natural for a in line.member_accuracies] == [0.75, 0.75]
    assert [a.robust for a in line.member_accuracies] == [0.25, 0.25]
    assert line.member_risks.tolist() == [0.75, 0.75]
    assert line.at(None).robust == pytest.approx(0.5)
    assert line.at((1.0, 0.0)).robust == pytest.approx(0.25)
    assert line.also["uniform"].tolist() == [0.5, 0.5]


def test_theorem_1_is_stated_for_pairs_that_were_attacked_together() -> None:
    """With α = (1, 0, 0) every attack meets one member: what fools two of them was never looked for."""
    rec, x, y = on_a_line((*CONFLICT, (1.0, 0.55)), LINE, (1.0, 0.0, 0.0))
    alone = evaluate(rec, (x, y), exact())
    assert [pair.together for pair in alone.pairs] == [False, False, False]
    text = " ".join(alone.sentences())
    assert "(Theorem 1): none of 0; not attacked together: 0+1, 0+2, 1+2." in text
    some = evaluate(rec, (x, y), exact(), also={"first two": (0.5, 0.5, 0.0)})
    assert [pair.together for pair in some.pairs] == [True, False, False]
    text = " ".join(some.sentences())
    assert "(Theorem 1): 0+1 (by 0.500" in text
    assert "of 1; not attacked together: 0+2, 1+2." in text


def test_planted_consequences(line: Evaluation) -> None:
    assert line.bounds.floor == pytest.approx(0.375)
    assert line.bounds.ceiling == pytest.approx(0.75)
    assert line.gain == pytest.approx(0.75 - 2.5 / 4)
    (pair,) = line.pairs
    assert (pair.i, pair.j, pair.conflict, pair.difference, pair.helps) == (0, 1, 0.5, 0.0, True)
    # A linear layer with one input and two outputs: two multiply-accumulates.
    assert line.flops == (4, 4)
    assert line.expected_flops == 4
    assert line.found_by == {"clean": 2, "exact": 2}
    assert line.about.split == "unknown"
    assert line.classes == 2
    assert (line.cost.forwards > 0, line.n, line.members) == (True, 4, 2)


def test_the_deterministic_ensemble_has_its_own_worst_cases() -> None:
    # Mean logits: class 1 scores (x − .6 + .4 − x)/2 = −.1 everywhere, so it is never wrong.
    rec, x, y = on_a_line(CONFLICT, LINE)
    found = evaluate(rec, (x, y), exact())
    assert found.deterministic is not None
    assert (found.deterministic.natural, found.deterministic.robust) == (1.0, 1.0)
    # Two members alike: the mean is the member.
    rec, x, y = on_a_line(((1.0, 0.6), (1.0, 0.6)), LINE)
    found = evaluate(rec, (x, y), exact())
    assert found.deterministic is not None
    assert (found.deterministic.natural, found.deterministic.robust) == (0.75, 0.25)


def test_what_is_reported_re_evaluates() -> None:
    rec, x, y = random_linear(3, 2)
    found = evaluate(rec, (x, y), attacks.create("saddle", THREAT))
    worst = torch.from_numpy(found.x_adv)
    assert bool(THREAT.contains(worst, x).all())
    assert torch.equal(rec.errors(worst, y), torch.from_numpy(found.errors))
    assert float(rec.risk(worst, y).mean()) == pytest.approx(1 - found.robust, abs=1e-12)
    assert found.profile.risk(found.probs) == pytest.approx(1 - found.robust, abs=1e-12)
    assert all(max(flags["unstable"]) == 0 for flags in found.flags.values())


# ---- documents -------------------------------------------------------------------------------------------------


def test_json_round_trip(line: Evaluation, tmp_path: Path) -> None:
    line = replace(line, attempts=(2, math.inf))
    again = Evaluation.load(line.save(tmp_path / "evaluation.json"))
    assert repr(again) == repr(line)
    assert again.to_json() == line.to_json()
    assert again.robust == line.robust
    assert again.profile == line.profile
    assert again.threat == THREAT
    assert again.pool.x_adv is None


@pytest.mark.parametrize("change", [{"about": None}, {"witnesses": {}}, {"clean": "x"}, {"flops": []}])
def test_a_damaged_document_is_one_sentence(line: Evaluation, tmp_path: Path, change: Any) -> None:
    (tmp_path / "e.json").write_text(json.dumps({**line.to_json(), **change}))
    with pytest.raises(FileError, match=r"e\.json: the evaluation is damaged"):
        Evaluation.load(tmp_path / "e.json")
    with pytest.raises(InputError, match="format"):
        Evaluation.from_json({"format": "other"})


def test_an_evaluation_knows_its_ensemble(line: Evaluation) -> None:
    rec, _, _ = on_a_line(CONFLICT, LINE)
    line.check(rec)
    with pytest.raises(InputError, match="other members"):
        line.check(RandomizedEnsemble(members((1.0, 0.6), (-1.0, 0.41))))


def test_tables(line: Evaluation) -> None:
    assert [row.name for row in line.rows("X")] == [
        "X member 0",
        "X member 1",
        "X sampled, uniform",
        "X sampled, α = (0.25, 0.75)",
        "X average of all 2",
    ]
    lines = line.table().markdown().splitlines()
    assert lines[5].startswith("| sampled, α = (0.25, 0.75) | 75.0 % | 37.5 % |")
    assert line.table().latex().splitlines()[3].startswith("sampled, $\\alpha$ = (0.25, 0.75) & 75.0 \\%")
    assert list(line.to_frame()["robust"])[3] == float(line.robust)
    for expected in ("floor 0.3750", "ceiling 0.7500", "here 0.6250", "0+1 (by", "two classes", "needed 2"):
        assert expected in repr(line)
    rec, x, y = on_a_line(CONFLICT[:1], LINE)
    assert [row.name for row in evaluate(rec, (x, y), exact()).rows("AT")] == ["AT"]
    names = Table(("",), [("[/b]\x1b[2J|<i>$\\x",)])  # of data, attacks or classes
    assert names.text().strip() == "[/b]\\x1b[2J|<i>$\\x"
    assert names.markdown().endswith("\n| [/b]\\x1b[2J\\|&lt;i>$\\x |")
    assert names.latex() == "[/b]\\char92{}x1b[2J|<i>\\$\\char92{}x \\\\"
    # The same probabilities are not shown twice.
    rec, x, y = on_a_line(CONFLICT, LINE)
    assert len(evaluate(rec, (x, y), exact(), also={"uniform": None}).rows()) == 4


def test_attempts(line: Evaluation) -> None:
    # Inputs at .5: either member (.25, .75) can be fooled, never both; .9: right-hand only; .3: left-hand only.
    right = np.array([0.25, 0.25, 0.75, 0.25])
    for q in (1, 2, 10):
        assert line.after(q) == pytest.approx((right**q).mean())
    assert line.after(2, "client") == pytest.approx((0 + 0 + 0.75 + 0.25) / 4)
    assert float(line.after(float("inf"))) == 0
    assert line.after(2).low <= line.after(2) <= line.after(2).high
    found = evaluate(*_line(), exact(), attempts=(2, float("inf")))
    assert [record["classifier"] for record in found.table().records][-4:] == [
        f"after {q} attempts, one draw per {draw}" for q in ("2", "inf") for draw in ("query", "client")
    ]
    again = Evaluation.from_json(found.to_json())
    assert (again.attempts, again.to_json()) == ((2, float("inf")), found.to_json())
    for attempts, draw in ((0, "query"), (1.5, "query"), (-1, "client"), (1, "never")):
        with pytest.raises(InputError):
            line.after(attempts, draw)


# ---- what data may be ------------------------------------------------------------------------------------------


def test_other_bad_arguments_are_named() -> None:
    rec, x, y = random_linear(2, 1)
    with pytest.raises(InputError, match="different threats"):
        evaluate(rec, (x, y), [exact(), attacks.create("pgd", Threat("l2", 1.0))])


def test_choices_made_on_test_data_are_refused(tmp_path: Path) -> None:
    net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    run = Run.create(tmp_path / "run", recipe={"data": {"name": "digits"}}, chosen_on={"probs": "test"})
    RandomizedEnsemble([net], threat=THREAT).save(run.ensemble)
    with pytest.raises(InputError, match="probs was chosen on test data"):
        evaluate(run.path, attack="fgsm", limit=5)


# ---- the store -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("survives", [0, 3, 9, 14])
def test_an_interrupted_evaluation_is_continued(tmp_path: Path, survives: int) -> None:
    rec, x, y = random_linear(3, 6)
    attack = attacks.create("pgd", THREAT, steps=3, batch_size=8)
    whole = evaluate(rec, (x, y), attack)
    calls = 0

    def interrupt(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > survives:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(rec, (x, y), attack, folder=tmp_path, progress=interrupt)
    again = evaluate(rec, (x, y), attack, folder=tmp_path)
    assert again.to_json() == whole.to_json()
    assert (again.now.backwards < whole.now.backwards) == (survives > 0)


def test_asking_twice_costs_nothing_and_gives_the_same_document(tmp_path: Path) -> None:
    rec, x, y = random_linear(3, 6)
    both = [attacks.create("pgd", THREAT, steps=3, batch_size=8), attacks.create("saddle", THREAT)]
    alone = evaluate(rec, (x, y), both, also={"first": (1, 0, 0)})
    first = evaluate(rec, (x, y), both, also={"first": (1, 0, 0)}, folder=tmp_path)
    again = evaluate(rec, (x, y), both, also={"first": (1, 0, 0)}, folder=tmp_path)
    assert first.to_json() == again.to_json() == alone.to_json()
    assert again.now.backwards == 0
    # Only inputs and worst inputs are scored once more.
    assert again.now.forwards <= 3 * 3 * len(x)
    fresh = evaluate(rec, (x, y), both, folder=WitnessStore(tmp_path, fresh=True))
    assert fresh.now.backwards > 0


def test_other_commands_repeat_no_search(tmp_path: Path) -> None:
    rec, x, y = random_linear(3, 6)
    attack = attacks.create("saddle", THREAT)
    first = evaluate(rec, (x, y), attack, folder=tmp_path)
    spent = [
        randens.optimize_sampling(rec, (x, y), attack, folder=tmp_path, max_sweeps=1).now,
        randens.certify(rec, (x, y), threat=THREAT, folder=tmp_path).now,
        evaluate(rec, (x, y), attack, folder=tmp_path).now,
        randens.curve(rec, (x, y), attack, eps=[THREAT.eps], folder=tmp_path).now,
    ]
    assert sum(cost.passes for cost in spent[:2]) <= 0.1 * first.now.passes
    assert sum(cost.backwards for cost in spent) == 0


def test_a_larger_radius_starts_from_the_smaller_ones_witnesses(tmp_path: Path) -> None:
    rec, x, y = random_linear(2, 6)
    small = evaluate(rec, (x, y), attacks.create("saddle", THREAT), folder=tmp_path)
    weak = attacks.create("fgsm", THREAT.scaled(1.5))
    large = evaluate(rec, (x, y), weak, folder=tmp_path)
    assert (large.risk >= small.risk).all()
    assert large.robust <= evaluate(rec, (x, y), weak).robust
    # And a smaller radius takes over only what lies within it.
    tiny = evaluate(rec, (x, y), attacks.create("fgsm", THREAT.scaled(0.1)), folder=tmp_path)
    assert tiny.pool.x_adv is not None
    points, around = torch.from_numpy(tiny.pool.x_adv), x[torch.from_numpy(tiny.pool.points)]
    assert bool(THREAT.scaled(0.1).contains(points, around).all())


def test_a_new_member_is_run_on_the_stored_points_first(tmp_path: Path) -> None:
    rec, x, y = random_linear(3, 6)
    two = RandomizedEnsemble(list(rec.members)[:2])
    before = evaluate(two, (x, y), attacks.create("saddle", THREAT), folder=tmp_path)
    case = Case(rec, as_data((x, y)), (exact(),), store=WitnessStore(tmp_path))
    known = Witnesses(case)
    assert known.pool.take(np.arange(len(x)), [0, 1]).risk([0.5, 0.5]) >= before.pool.risk([0.5, 0.5]) - 1e-12
    assert known.now.backwards == 0
    assert known.pool.x_adv is not None
    again = rec.errors(torch.from_numpy(known.pool.x_adv), y[torch.from_numpy(known.pool.points)]).numpy()
    assert np.array_equal(known.pool.fooled, again)
    once_more = Witnesses(case)
    assert once_more.now.forwards == 3 * len(x)


def _forge(path: Path, statement: str) -> None:
    with sqlite3.connect(path / "witnesses.sqlite") as db:
        db.execute(statement)


def test_a_store_without_its_witnesses_cannot_raise_an_accuracy(tmp_path: Path) -> None:
    rec, x, y = random_linear(3, 6)
    attack = attacks.create("saddle", THREAT)
    first = evaluate(rec, (x, y), attack, folder=tmp_path)
    _forge(tmp_path, "DELETE FROM points WHERE rowid % 2 AND distance > 0")
    _forge(
        tmp_path, "UPDATE verdicts SET fooled = 0 WHERE point IN (SELECT id FROM points WHERE rowid % 5 = 0)"
    )
    again = evaluate(rec, (x, y), attack, folder=tmp_path)
    assert again.robust <= first.robust + 1e-12
    assert again.now.backwards > 0


def test_verify_scores_every_stored_witness_again(tmp_path: Path) -> None:
    rec, x, y = random_linear(3, 6)
    attack = attacks.create("saddle", THREAT)
    first = evaluate(rec, (x, y), attack, folder=tmp_path)
    again = evaluate(rec, (x, y), attack, folder=WitnessStore(tmp_path, verify=True))
    assert again.verified is not None
    assert 0 < again.verified[0] == again.verified[1] <= len(first.pool)
    assert (first.verified, again.risk.tolist()) == (None, first.risk.tolist())
    assert Evaluation.from_json(again.to_json()).verified == again.verified
    _forge(tmp_path, "UPDATE verdicts SET fooled = 1")
    with pytest.raises(FileError, match="do not fool the members"):
        evaluate(rec, (x, y), attack, folder=WitnessStore(tmp_path, verify=True))
    # Without --verify the numbers are still those of the members: the worst inputs are scored once more.
    assert evaluate(rec, (x, y), attack, folder=tmp_path).risk.tolist() == first.risk.tolist()


def test_killed_at_any_moment_the_same_call_gives_the_same_numbers(tmp_path: Path) -> None:
    """SIGKILL, without any chance to clean up."""
    code = (
        "import sys, randens\n"
        "from tests.evaluation.planted import THREAT, random_linear\n"
        "rec, x, y = random_linear(3, 6)\n"
        "attack = randens.attacks.create('pgd', THREAT, steps=30, batch_size=2)\n"
        "print(float(randens.evaluate(rec, (x, y), attack, folder=sys.argv[1]).robust))\n"
    )
    whole = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "whole")], capture_output=True, check=True
    )
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.DEVNULL)
    while process.poll() is None and not (folder / "witnesses.sqlite").exists():
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -9
    again = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, check=True)
    assert again.stdout == whole.stdout
