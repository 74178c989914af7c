"""Evaluations: exact on planted cases, consistent with themselves, refused where they would mislead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.evaluation.planted import THREAT, exact, members, on_a_line, random_linear, threshold
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import randens
from randens import RandomizedEnsemble, Threat, WitnessPool, attacks
from randens.attacks.dataset import Knowledge
from randens.core.errors import FileError, InputError
from randens.data import as_data
from randens.evaluation import Evaluation, result_tables, save_worst_inputs, transferred, worst_inputs
from randens.witness.store import WitnessStore, input_keys, member_key

# Wrong above 0.6 (right-hand member) and below 0.4 (left-hand member); labels are all 0, ε = 0.2.
CONFLICT = ((1.0, 0.6), (-1.0, 0.4))
LINE = (0.5, 0.5, 0.9, 0.3)  # either; either; right wrong anyway; left wrong, right never


@pytest.fixture(scope="module")
def line() -> Evaluation:
    rec, x, y = on_a_line(CONFLICT, LINE, (0.25, 0.75))
    return randens.evaluate(rec, (x, y), exact(), also={"uniform": None})


def test_planted_accuracies(line: Evaluation) -> None:
    # Clean: no member wrong at .5; right-hand wrong at .9; left-hand wrong at .3.
    assert line.natural == pytest.approx(1 - (0.25 + 0.75) / 4)
    # Worst: left-hand member (.75) at .5 twice; right-hand (.25) at .9; left-hand (.75) at .3.
    assert line.risk.tolist() == pytest.approx([0.75, 0.75, 0.25, 0.75])
    assert line.robust == pytest.approx(1 - 2.5 / 4)
    assert [a.natural.value for a in line.member_accuracies] == [0.75, 0.75]
    assert [a.robust.value for a in line.member_accuracies] == [0.25, 0.25]
    assert line.member_risks.tolist() == [0.75, 0.75]
    assert line.at(None).robust.value == pytest.approx(0.5)
    assert line.at((1.0, 0.0)).robust.value == pytest.approx(0.25)
    assert line.also["uniform"].tolist() == [0.5, 0.5]


def test_theorem_1_is_stated_for_pairs_that_were_attacked_together() -> None:
    """With α = (1, 0, 0) every attack meets one member: what fools two of them was never looked for."""
    rec, x, y = on_a_line((*CONFLICT, (1.0, 0.55)), LINE, (1.0, 0.0, 0.0))
    alone = randens.evaluate(rec, (x, y), exact())
    assert [pair.together for pair in alone.pairs] == [False, False, False]
    text = " ".join(result_tables.statements(alone))
    assert "(Theorem 1): none of 0; not attacked together: 0+1, 0+2, 1+2." in text
    some = randens.evaluate(rec, (x, y), exact(), also={"first two": (0.5, 0.5, 0.0)})
    assert [pair.together for pair in some.pairs] == [True, False, False]
    text = " ".join(result_tables.statements(some))
    assert "(Theorem 1): 0+1 (by 0.500" in text
    assert "of 1; not attacked together: 0+2, 1+2." in text


def test_planted_consequences(line: Evaluation) -> None:
    assert line.bounds.floor == pytest.approx(0.375)
    assert line.bounds.ceiling == pytest.approx(0.75)
    assert line.gain == pytest.approx(0.75 - 2.5 / 4)
    (pair,) = line.pairs
    assert (pair.i, pair.j, pair.conflict, pair.difference, pair.helps) == (0, 1, 0.5, 0.0, True)
    assert [(v.accuracy, v.natural, v.robust) for v in line.levels] == [
        (1.0, 2, 0),
        (0.75, 1, 1),
        (0.25, 1, 3),
        (0.0, 0, 0),
    ]
    # A linear layer with one input and two outputs: two multiply-accumulates.
    assert line.flops == (4, 4)
    assert line.expected_flops == 4
    assert line.found_by == {"clean": 2, "exact": 2}
    assert line.next_member.high == 1.0
    assert line.split == "unknown"
    assert line.classes == 2
    assert (line.cost.forwards > 0, line.n, line.members) == (True, 4, 2)


def test_the_deterministic_ensemble_has_its_own_worst_cases() -> None:
    # Mean logits: class 1 scores (x − .6 + .4 − x)/2 = −.1 everywhere, so it is never wrong.
    rec, x, y = on_a_line(CONFLICT, LINE)
    found = randens.evaluate(rec, (x, y), exact())
    assert found.deterministic is not None
    assert (found.deterministic.natural.value, found.deterministic.robust.value) == (1.0, 1.0)
    # Two members alike: the mean is the member.
    rec, x, y = on_a_line(((1.0, 0.6), (1.0, 0.6)), LINE)
    found = randens.evaluate(rec, (x, y), exact())
    assert found.deterministic is not None
    assert (found.deterministic.natural.value, found.deterministic.robust.value) == (0.75, 0.25)
    assert randens.evaluate(rec, (x, y), exact(), deterministic=False).deterministic is None


@pytest.mark.parametrize("seed", range(4))
def test_heuristic_attacks_never_find_more_than_there_is(seed: int) -> None:
    rec, x, y = random_linear(3, seed)
    truth = randens.evaluate(rec, (x, y), exact())
    found = randens.evaluate(rec, (x, y), [attacks.create(a, THREAT) for a in ("pgd", "arc-r")])
    assert (found.risk <= truth.risk + 1e-12).all()
    assert 1 - truth.robust > 0
    for i in range(3):
        # Consistency laws: a member's risk is its own attack's, and the ensemble's is at least α_i of it.
        assert truth.member_risks[i] == pytest.approx(truth.points.foolable[:, i].mean())
    floor = (truth.points.foolable * truth.probs).max(axis=1)
    assert (truth.risk >= floor - 1e-12).all()
    assert truth.bounds.floor - 1e-12 <= 1 - truth.robust <= truth.bounds.ceiling + 1e-12


@pytest.mark.parametrize("name", ["pgd", "arc-r", "saddle"])
def test_an_evaluation_knows_at_least_what_the_attack_found(name: str) -> None:
    rec, x, y = random_linear(3, 7)
    attack = attacks.create(name, THREAT)
    direct = attack(rec, x, y)
    found = randens.evaluate(rec, (x, y), attack)
    assert (found.risk >= direct.risk.numpy() - 1e-12).all()
    again = randens.evaluate(rec, (x, y), attack)
    assert again.risk.tolist() == found.risk.tolist()
    assert again.cost == found.cost


def test_identical_members_give_the_single_members_risk() -> None:
    rec, x, y = random_linear(1, 3)
    one = randens.evaluate(rec, (x, y), exact())
    three = randens.evaluate(RandomizedEnsemble(list(rec.members) * 3, (0.2, 0.3, 0.5)), (x, y), exact())
    np.testing.assert_allclose(three.risk, one.risk, atol=1e-12)
    assert three.gain == pytest.approx(0, abs=1e-12)


def test_one_hot_probabilities_reproduce_the_member() -> None:
    rec, x, y = random_linear(3, 5)
    uniform = randens.evaluate(rec, (x, y), exact())
    for i in range(3):
        alone = randens.evaluate(rec.with_probs(np.eye(3)[i]), (x, y), exact())
        assert alone.robust == uniform.member_accuracies[i].robust.value
        assert alone.natural == uniform.member_accuracies[i].natural.value


def test_what_is_reported_re_evaluates() -> None:
    rec, x, y = random_linear(3, 2)
    found = randens.evaluate(rec, (x, y), attacks.create("saddle", THREAT))
    assert found.pool is not None
    worst = worst_inputs(found.pool, found.probs, x)
    assert bool(THREAT.contains(worst, x).all())
    assert torch.equal(rec.errors(worst, y), torch.from_numpy(found.points.worst))
    assert float(rec.risk(worst, y).mean()) == pytest.approx(1 - found.robust, abs=1e-12)
    assert found.profile.risk(found.probs) == pytest.approx(1 - found.robust, abs=1e-12)
    assert found.flags["unstable"] == 0


def test_saved_inputs_can_be_scored_with_torch_alone(tmp_path: Path) -> None:
    rec, x, y = random_linear(3, 2)
    found = randens.evaluate(rec, (x, y), attacks.create("saddle", THREAT))
    save_worst_inputs(tmp_path / "adv.safetensors", found, rec, (x, y))
    saved = safetensors.torch.load_file(tmp_path / "adv.safetensors")
    with torch.no_grad():
        wrong = torch.stack([m(saved["x_adv"]).argmax(1) != saved["y"] for m in rec.members], dim=1)
    assert torch.equal(wrong, saved["errors"])
    assert 1 - float((wrong.double() @ saved["probs"]).mean()) == pytest.approx(found.robust, abs=1e-12)


def test_a_member_that_answers_at_random_is_flagged() -> None:
    class Coin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Tensor:
            return torch.randn(len(x), 2, generator=self.generator) + 0 * x.sum(1, keepdim=True)

    rec = RandomizedEnsemble([threshold(1.0, 0.6), Coin()])
    x, y = torch.full((40, 1), 0.5), torch.zeros(40, dtype=torch.int64)
    found = randens.evaluate(rec, (x, y), attacks.create("pgd", THREAT))
    assert found.flags["unstable"] > 0
    assert any("not deterministic" in line for line in result_tables.statements(found))


def test_known_witnesses_are_used_and_never_forgotten() -> None:
    rec, x, y = random_linear(3, 4)
    truth = randens.evaluate(rec, (x, y), exact())
    weak = attacks.create("fgsm", THREAT)
    alone = randens.evaluate(rec, (x, y), weak)
    helped = randens.evaluate(rec, (x, y), weak, pool=truth.pool)
    assert helped.risk.tolist() == truth.risk.tolist()
    assert alone.robust > truth.robust
    assert helped.cost.backwards <= alone.cost.backwards
    assert truth.pool is not None
    with pytest.raises(InputError, match="sets only"):
        randens.evaluate(rec, (x, y), weak, pool=truth.pool.without_inputs())


def test_witnesses_transfer_to_other_members() -> None:
    rec, x, y = on_a_line(CONFLICT, LINE)
    found = randens.evaluate(rec, (x, y), exact())
    assert found.pool is not None
    other = RandomizedEnsemble(members((1.0, 0.65)))
    shown = transferred(found.pool, other, (x, y))
    # The pool holds a point with x > .6 for the two inputs at .5; whether it is past .65 only the member can say.
    assert shown.members == 1
    assert shown.x_adv is not None
    for row, point in enumerate(shown.points.tolist()):
        assert float(shown.x_adv[row, 0]) > 0.65
        assert THREAT.contains(torch.from_numpy(shown.x_adv[row : row + 1]), x[point : point + 1]).all()
    assert set(shown.points.tolist()) >= {2}
    empty = transferred(WitnessPool(4, 2, x_adv=np.zeros((0, 1), dtype=np.float32)), other, (x, y))
    assert len(empty) == 0
    with pytest.raises(InputError, match="4 inputs; data has 3"):
        transferred(found.pool, other, (x[:3], y[:3]))


# ---- documents -------------------------------------------------------------------------------------------------


def test_json_round_trip(line: Evaluation, tmp_path: Path) -> None:
    again = Evaluation.load(line.save(tmp_path / "evaluation.json"))
    assert again.to_json() == line.to_json()
    assert again.summary() == line.summary()
    assert again.robust == line.robust
    assert again.profile == line.profile
    assert again.threat == THREAT


@pytest.mark.parametrize("change", ["probs", "worst", "summary", "split", "checksum"])
def test_a_document_altered_by_hand_is_refused(line: Evaluation, tmp_path: Path, change: str) -> None:
    document = json.loads(json.dumps(line.to_json()))
    if change == "worst":
        document["points"]["worst"][0] = "00"
    elif change == "summary":
        document["summary"]["robust"]["value"] = 0.99
    else:
        document[change] = {"probs": [0.5, 0.5], "split": "test", "checksum": "0" * 64}[change]
    with pytest.raises(InputError, match="checksum"):
        Evaluation.from_json(document)
    (tmp_path / "e.json").write_text(json.dumps(document))
    with pytest.raises(FileError, match=r"e\.json"):
        Evaluation.load(tmp_path / "e.json")
    with pytest.raises(InputError, match="format"):
        Evaluation.from_json({"format": "other"})


def test_an_evaluation_knows_its_ensemble(line: Evaluation) -> None:
    rec, _, _ = on_a_line(CONFLICT, LINE)
    line.check(rec)
    with pytest.raises(InputError, match="other members"):
        line.check(RandomizedEnsemble(members((1.0, 0.6), (-1.0, 0.41))))


def test_tables(line: Evaluation) -> None:
    rows = result_tables.rows(line, "X")
    assert [row.name for row in rows] == [
        "X member 0",
        "X member 1",
        "X randomized, uniform",
        "X randomized, α = (0.25, 0.75)",
        "X deterministic, all 2",
    ]
    markdown = result_tables.markdown(rows).splitlines()
    assert markdown[5].startswith("| X randomized, α = (0.25, 0.75) | 75.0 % | 37.5 % |")
    assert (
        result_tables.latex(rows).splitlines()[3]
        == "X randomized, $\\alpha$ = (0.25, 0.75) & 75.00 & 37.50 & 0.00 \\\\"
    )
    assert result_tables.terminal(rows, "title").row_count == 5
    said = " ".join(result_tables.statements(line))
    for expected in (
        "floor 0.3750",
        "ceiling 0.7500",
        "here 0.6250",
        "0+1 (by",
        "two classes",
        "no attack needed 2",
    ):
        assert expected in said
    one = randens.evaluate(*_one_member(), exact())
    assert [row.name for row in result_tables.rows(one, "AT")] == ["AT"]


def _one_member() -> tuple[RandomizedEnsemble, tuple[Tensor, Tensor]]:
    rec, x, y = on_a_line(CONFLICT[:1], LINE)
    return rec, (x, y)


# ---- what data may be ------------------------------------------------------------------------------------------


def test_pairs_loaders_and_image_data_give_the_same() -> None:
    rec, x, y = random_linear(2, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    images = as_data((x.numpy(), y.numpy()), split="test", classes=3, name="mine")
    results = [randens.evaluate(rec, data, exact()) for data in ((x, y), loader, images)]
    assert len({tuple(r.risk.tolist()) for r in results}) == 1
    assert [(r.data, r.split) for r in results] == [
        ("tensors", "unknown"),
        ("loader", "unknown"),
        ("mine", "test"),
    ]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ((torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)), r"shape \(5,\); member 0 takes \(4,\)"),
        ((torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64)), "3 inputs and 2 labels"),
        ((torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)), "empty"),
        ((torch.zeros(3, 4), torch.full((3,), 3)), "labels from 3 to 3; the members have 3 classes"),
        ((torch.zeros(3, 4), torch.zeros(3)), "float32"),
        ([], "empty"),
        ([torch.zeros(3, 4)], "item 0 of data is a Tensor"),
        (7, "data is a int"),
        ((torch.zeros(3, 4), ["a", "b", "c"]), "y|labels|inputs must be"),
    ],
)
def test_data_that_do_not_fit_are_named(data: Any, named: str) -> None:
    rec, _, _ = random_linear(2, 1)
    with pytest.raises(InputError, match=named):
        randens.evaluate(rec, data, exact())


def test_images_of_other_classes_are_refused() -> None:
    rec, x, y = random_linear(2, 1)
    images = as_data((x.numpy(), y.numpy()), classes=5)
    with pytest.raises(InputError, match="5 classes; the members tell 3 apart"):
        randens.evaluate(rec, images, exact())


def test_members_that_do_not_take_the_shape_are_named() -> None:
    rec = RandomizedEnsemble([nn.Linear(4, 3)])
    with pytest.raises(InputError, match=r"shape \(5,\), which member 0 does not take"):
        randens.evaluate(rec, (torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)), exact())


def test_other_bad_arguments_are_named() -> None:
    rec, x, y = random_linear(2, 1)
    with pytest.raises(InputError, match="model is a int; give a module, a list of modules"):
        randens.evaluate(3, (x, y), exact())
    with pytest.raises(InputError, match="attack is"):
        randens.evaluate(rec, (x, y), [])
    with pytest.raises(InputError, match="different threats"):
        randens.evaluate(rec, (x, y), [exact(), attacks.create("pgd", Threat("l2", 1.0))])
    with pytest.raises(InputError, match="probs was chosen on test data"):
        randens.evaluate(rec, (x, y), exact(), chosen_on={"probs": "test"})
    with pytest.raises(InputError, match="confidence is 2"):
        _ = randens.evaluate(rec, (x, y), exact(), confidence=2).accuracy


def test_modes_are_restored() -> None:
    rec, x, y = random_linear(2, 1)
    rec.members[0].train()
    rec.members[1].eval()
    randens.evaluate(rec, (x, y), attacks.create("pgd", THREAT))
    assert [m.training for m in rec.members] == [True, False]
    assert all(p.requires_grad for p in rec.parameters())


def test_progress_is_reported_to_the_end() -> None:
    rec, x, y = random_linear(2, 1)
    seen: dict[str, tuple[float, float]] = {}

    def note(task: str, done: float, total: float) -> None:
        seen[task] = (done, total)

    randens.evaluate(rec, (x, y), attacks.create("pgd", THREAT, batch_size=8), progress=note)
    assert "pgd on the ensemble" in seen
    assert all(done == total for done, total in seen.values())


# ---- interruptions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("survives", [0, 3, 9, 14])
def test_an_interrupted_evaluation_is_continued(tmp_path: Path, survives: int) -> None:
    rec, x, y = random_linear(3, 6)
    attack = attacks.create("pgd", THREAT, steps=3, batch_size=8)
    whole = randens.evaluate(rec, (x, y), attack)
    calls = 0

    def interrupt(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > survives:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        randens.evaluate(rec, (x, y), attack, folder=tmp_path, progress=interrupt)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert len(before) >= min(survives - 3, 8)
    again = randens.evaluate(rec, (x, y), attack, folder=tmp_path)
    assert again.risk.tolist() == whole.risk.tolist()
    assert again.points.sources == whole.points.sources
    assert again.cost == whole.cost
    assert again.profile == whole.profile
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_asking_twice_costs_nothing_and_gives_the_same_document(tmp_path: Path) -> None:
    rec, x, y = random_linear(3, 6)
    both = [attacks.create("pgd", THREAT, steps=3, batch_size=8), attacks.create("saddle", THREAT)]
    alone = randens.evaluate(rec, (x, y), both, also={"uniform": None})
    first = randens.evaluate(rec, (x, y), both, also={"uniform": None}, folder=tmp_path)
    again = randens.evaluate(rec, (x, y), both, also={"uniform": None}, folder=tmp_path)
    assert first.to_json() == again.to_json()
    assert again.now.backwards == 0
    # The members and their mean are run on a sample of what is stored, and on nothing else.
    assert 0 < again.now.forwards <= 2 * 32 * 3
    assert first.risk.tolist() == alone.risk.tolist()
    assert again.pool is not None
    assert again.pool.located.all()


def test_a_larger_radius_starts_from_the_smaller_ones_witnesses(tmp_path: Path) -> None:
    rec, x, y = random_linear(2, 6)
    small = randens.evaluate(rec, (x, y), attacks.create("saddle", THREAT), folder=tmp_path)
    weak = attacks.create("fgsm", THREAT.scaled(1.5))
    large = randens.evaluate(rec, (x, y), weak, folder=tmp_path)
    assert (large.risk >= small.risk).all()
    assert large.robust <= randens.evaluate(rec, (x, y), weak).robust
    # And a smaller radius takes over only what lies within it.
    tiny = randens.evaluate(rec, (x, y), attacks.create("fgsm", THREAT.scaled(0.1)), folder=tmp_path)
    assert tiny.pool is not None
    assert tiny.pool.x_adv is not None
    inside = THREAT.scaled(0.1).contains(
        torch.from_numpy(tiny.pool.x_adv), x[torch.from_numpy(tiny.pool.points)]
    )
    assert bool(inside.all())


def test_a_new_member_is_run_on_the_stored_points_only(tmp_path: Path) -> None:
    rec, x, y = random_linear(3, 6)
    two = RandomizedEnsemble(list(rec.members)[:2])
    attack = attacks.create("saddle", THREAT)
    before = randens.evaluate(two, (x, y), attack, folder=tmp_path)
    assert before.pool is not None
    store = WitnessStore(tmp_path)
    known = Knowledge(rec, x, y, THREAT, store=store)
    assert known.pool.take(np.arange(len(x)), [0, 1]).risk([0.5, 0.5]) >= before.pool.risk([0.5, 0.5]) - 1e-12
    assert known.now.backwards == 0
    assert known.pool.x_adv is not None
    points = torch.from_numpy(known.pool.x_adv)
    again = rec.errors(points, y[torch.from_numpy(known.pool.points)]).numpy()
    assert np.array_equal(known.pool.fooled, again)
    # Now the third member's verdicts are stored, too.
    stored = WitnessStore(tmp_path)
    stored.refresh(THREAT, x)
    keys = [member_key(m) for m in rec.members]
    assert (stored.recall(keys, input_keys(x, y), x, THREAT).verdicts >= 0).all()


def test_stored_witnesses_are_not_trusted_blindly(tmp_path: Path) -> None:
    """Members with the same address that answer otherwise: noticed, and refused in one sentence."""
    rec, x, y = random_linear(2, 6)
    attack = attacks.create("saddle", THREAT)
    randens.evaluate(rec, (x, y), attack, folder=tmp_path)

    class Hidden(nn.Module):
        """Answers that no weight or plain attribute shows."""

        def __init__(self, member: nn.Module, flip: list[float]) -> None:
            super().__init__()
            self.member = member
            object.__setattr__(self, "_sign", {"flip": flip})

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.member(x)
            return z * self._sign["flip"][0]  # type: ignore[index]

    flip = [1.0]
    hidden = RandomizedEnsemble([Hidden(m, flip) for m in rec.members])
    randens.evaluate(hidden, (x, y), attack, folder=tmp_path / "h")
    flip[0] = 1e-3  # the same verdicts
    randens.evaluate(hidden, (x, y), attack, folder=tmp_path / "h")
    flip[0] = -1.0
    with pytest.raises(FileError, match="stored witnesses no longer fool the members they did"):
        randens.evaluate(hidden, (x, y), attack, folder=tmp_path / "h")
