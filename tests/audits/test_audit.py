"""The audit passes sound members, catches planted faults, and says which member and what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import THREAT, Quantised, Random, Scaled, digits, ensemble, member
from torch import Tensor, nn

from randens import InputError, RandomizedEnsemble, attacks, audit
from randens.audits import Audit
from randens.audits.checks import beyond_chance
from randens.cli.main import run as command
from randens.core.errors import ModelError
from randens.core.runs import Run

FEW = 64


def inputs() -> tuple[Tensor, Tensor]:
    return digits("test")[:FEW]


def with_second(bad: nn.Module) -> RandomizedEnsemble:
    return RandomizedEnsemble([member("mlp", 0), bad], threat=THREAT).eval()


@pytest.fixture
def members_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits without their attacks, for tests of the checks that need none."""
    module = sys.modules["randens.audits.audit"]
    monkeypatch.setattr(module, "attack_checks", lambda *_: [])
    monkeypatch.setattr(module.Witnesses, "attack_all", lambda *_: None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attacks on sound members, which several tests audit: each is made once."""
    return tmp_path_factory.mktemp("audit") / "store"


@pytest.fixture(scope="module")
def sound(store: Path) -> Audit:
    return audit(ensemble(), inputs(), "fast", folder=store)


def test_sound_members_pass_every_check_once_for_a_store(sound: Audit, store: Path) -> None:
    assert sound.passed
    assert len({check.name for check in sound.checks}) == len(sound.checks) == 10
    assert all(check.finding and bool(check.advice) == (check.status != "ok") for check in sound.checks)
    assert sound.verdict.startswith("No check of 10 failed on 64 inputs")
    assert "gradients" in repr(sound)
    again = audit(ensemble(), inputs(), "fast", folder=store)
    assert again.now.backwards == 0
    assert again.to_json()["checks"] == sound.to_json()["checks"]


def test_numbers_behind_the_checks_are_real(sound: Audit) -> None:
    x, y = inputs()
    alone = attacks.create("pgd", THREAT)(ensemble().members[0], x, y)
    evidence = sound["iterative-beats-single-step"].evidence["risks"]["member 0"]
    assert evidence["20 steps"] == pytest.approx(1 - alone.robust_accuracy)
    assert evidence["1 step"] < evidence["20 steps"]
    assert sound["repeatable"].evidence["unstable"] == 0


def test_a_weak_loss_is_a_note_as_the_suite_does_not_depend_on_it() -> None:
    # The cross-entropy of a member whose logits are scaled has no gradient left: PGD on it stalls.
    found = audit(with_second(Scaled(member("mlp", 1), 1e4)), inputs(), "fast")
    assert found.failed == ()
    note = found["cross-entropy-as-good-as-margin"]
    assert note in found.remarks
    assert "member 1" in note.evidence["at_fault"]
    assert "do not trust" not in found.verdict


@pytest.mark.parametrize(
    ("ahead", "behind", "beaten"), [(2, 0, False), (4, 0, False), (8, 0, True), (10, 5, False), (20, 3, True)]
)
def test_differences_count_beyond_chance_only(ahead: int, behind: int, beaten: bool) -> None:
    one, two = np.zeros(FEW), np.zeros(FEW)
    one[:ahead], two[FEW - behind :] = 0.5, 0.5
    assert beyond_chance(one, two) is beaten
    assert not beyond_chance(two, one)


def test_chance_is_called_a_difference_rarely() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.random((2000, 2, 100)) < 0.3
    assert np.mean([beyond_chance(one.astype(float), two.astype(float)) for one, two in pairs]) < 0.02


def test_quantised_inputs_are_caught() -> None:
    found = audit(with_second(Quantised(member("mlp", 1))), inputs(), "pgd")
    assert {"gradients", "large-radius-leaves-nothing"} <= {c.name for c in found.failed}
    assert "do not trust" in found.verdict
    assert found["gradients"].evidence["zero"] == [0.0, 1.0]
    search = found["white-box-beats-random-search"]
    assert (search.status, search.evidence["at_fault"]) == ("note", ["member 1"])
    left = found["large-radius-leaves-nothing"].evidence["left"]
    assert left["member 0"] <= 0.05
    assert left["member 1"] > 0.8
    assert "random" in found["gradients"].advice


class _Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(10)[3].expand(len(x), -1) + 0 * x.flatten(1).sum(dim=1, keepdim=True)


def test_members_that_ignore_their_input_survive_every_radius_and_are_caught() -> None:
    found = audit(with_second(_Constant()), inputs(), "pgd")
    assert "member 1" in found["large-radius-leaves-nothing"].evidence["at_fault"]


class _Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.full((len(x), 10), torch.nan)


def test_members_that_cannot_be_scored_are_refused() -> None:
    with pytest.raises(InputError, match=r"member 1 is random: .*RandomizedModel"):
        audit(with_second(Random(member("mlp", 1))), inputs())
    with pytest.raises((InputError, ModelError), match="NaN"):
        audit(with_second(_Broken()), inputs())


class _Neighbors(nn.Module):
    """Subtracts the mean of the batch, as normalization without stored statistics does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(x - x.mean(dim=0, keepdim=True) + 0.3)
        return z


@pytest.mark.usefixtures("members_only")
def test_answers_that_depend_on_neighbors_are_caught() -> None:
    found = audit(with_second(_Neighbors(member("mlp", 1))), inputs())
    assert not found["batch-independent"].passed
    gaps = found["batch-independent"].evidence["relative_difference"]
    assert gaps[0] < 1e-5 < gaps[1]


@pytest.mark.usefixtures("members_only")
def test_missing_gradients_alone_are_no_proof() -> None:
    found = audit(with_second(Quantised(member("mlp", 1))), inputs())
    assert [check.name for check in found.failed] == ["gradients"]
    assert "may be too high" in found.verdict


def test_an_evaluation_by_a_weak_attack_is_beaten(store: Path) -> None:
    rec, data = ensemble(), digits("test").subset(slice(0, FEW))
    weak = evaluate(rec, data, attacks.create("afgsm", THREAT))
    flattering = audit(rec, data, "fast", evaluation=weak, folder=store)
    assert not flattering["evaluation-not-beaten"].passed
    assert "do not trust" in flattering.verdict
    strong = evaluate(rec, data, attacks.create("fast", THREAT))
    assert audit(rec, data, "fast", evaluation=strong, folder=store)["evaluation-not-beaten"].passed


@pytest.mark.usefixtures("members_only")
def test_an_evaluation_of_other_members_or_probabilities_is_refused() -> None:
    data = digits("test").subset(slice(0, FEW))
    known = evaluate(ensemble(), data, "fgsm")
    with pytest.raises(InputError, match="other members"):
        audit(ensemble("mlp", "linear"), data, "fgsm", evaluation=known)
    with pytest.raises(InputError, match="α"):
        audit(ensemble(), data, "fgsm", evaluation=known, probs=[0.9, 0.1])


@pytest.mark.usefixtures("members_only")
def test_choices_on_test_data_are_refused() -> None:
    found = audit(ensemble("linear"), inputs(), chosen_on={"probs": "test", "checkpoints": "validation"})
    assert not found["splits"].passed
    assert "probs" in found["splits"].advice
    assert "checkpoints" not in found["splits"].advice


def test_one_member_in_l2() -> None:
    found = audit(ensemble("linear"), inputs(), "pgd", norm="l2", eps=0.5)
    assert found.failed == ()
    assert len(found.checks) == 9


def test_the_command_fails_if_a_check_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(tmp_path / "run", recipe={"data": {"name": "digits"}}, chosen_on={"probs": "test"})
    ensemble("linear").save(run.ensemble)
    assert command(["audit", str(run.path), "--limit", "4", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["passed"] is said["conclusive"] is False
    assert Run.open(run.path).read("audit") == said
    assert command(["audit", str(tmp_path / "nothing")]) == 2


def test_few_inputs_are_inconclusive(store: Path) -> None:
    found = audit(ensemble(), digits("test")[:6], "fast", folder=store)
    assert not found.failed
    assert not found.passed
    assert found.verdict.startswith("Inconclusive: no check failed on 6 inputs")
    assert found.to_json()["conclusive"] is False
