"""The audit passes sound members, catches planted masking, and says which member and what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evaluation.evaluated import evaluate
from tests.evaluation.trained import (
    THREAT,
    Probabilities,
    Quantised,
    Random,
    Scaled,
    digits,
    ensemble,
    member,
)
from torch import Tensor, nn

from randens import RandomizedEnsemble, attacks, audit
from randens.audits import Audit
from randens.audits.probes import Probes
from randens.cli.main import run as command
from randens.core.errors import InputError
from randens.core.runs import Run
from randens.data import as_data
from randens.evaluation.loop import Witnesses

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
    monkeypatch.setattr(module, "attack_all", lambda *_: None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attacks on sound members, which several tests audit: each is made once."""
    return tmp_path_factory.mktemp("audit") / "store"


@pytest.fixture(scope="module")
def sound(store: Path) -> Audit:
    return audit(ensemble(), inputs(), "fast", folder=store)


def test_sound_members_pass_every_check(sound: Audit, store: Path) -> None:
    assert sound.passed
    assert len(sound.checks) == len({check.name for check in sound.checks}) == 15
    assert all(check.finding and bool(check.advice) == (check.status != "ok") for check in sound.checks)
    assert sound.verdict.startswith("No check of 15 failed on 64 inputs")
    assert "outputs" in repr(sound)
    assert audit(ensemble(), inputs(), "fast", folder=store).now.backwards == 0


def test_numbers_behind_the_checks_are_real(sound: Audit) -> None:
    x, y = inputs()
    alone = attacks.create("pgd", THREAT)(ensemble().members[0], x, y)
    evidence = sound["iterative-beats-single-step"].evidence["risks"]["member 0"]
    assert evidence["20 steps"] == pytest.approx(1 - alone.robust_accuracy)
    assert evidence["1 step"] < evidence["20 steps"]
    law = sound["consistency"].evidence
    assert law["floor"] <= law["risk"] <= law["ceiling"]
    assert law["outside"] == law["unstable"] == 0


@pytest.mark.parametrize("seeds", [(1, 2)])
def test_sound_members_pass_whatever_they_are(seeds: tuple[int, int], store: Path) -> None:
    rec = RandomizedEnsemble([member("mlp", seed) for seed in seeds], threat=THREAT).eval()
    assert audit(rec, inputs(), "fast", folder=store).failed == ()


def test_huge_logits_are_a_note_as_the_suite_does_not_depend_on_them() -> None:
    # The cross-entropy of a member whose logits are scaled has no gradient left: PGD on it stalls.
    found = audit(with_second(Scaled(member("mlp", 1), 1e4)), inputs(), "fast")
    assert found.failed == ()
    assert {"loss-gradients", "cross-entropy-as-good-as-margin"} <= {c.name for c in found.remarks}
    saturated = found["loss-gradients"].evidence["saturated"]
    assert saturated[0] == 0
    assert saturated[1] > 0.8
    losses = found["cross-entropy-as-good-as-margin"]
    assert "member 1" in losses.evidence["at_fault"]
    assert "do not trust" not in found.verdict


@pytest.mark.parametrize(
    ("ahead", "behind", "beaten"), [(2, 0, False), (6, 0, False), (7, 0, True), (10, 3, False), (20, 3, True)]
)
def test_an_attack_is_beaten_beyond_luck_only(ahead: int, behind: int, beaten: bool) -> None:
    x, y = inputs()
    case = Probes(Witnesses(ensemble(), as_data((x, y)), THREAT), 0)
    stronger, weaker = np.zeros(FEW), np.zeros(FEW)
    weaker[:ahead] = 0.5
    stronger[FEW - behind :] = 0.5
    assert case.beaten(stronger, weaker) is beaten
    assert not case.beaten(weaker, stronger)


def test_quantised_inputs_are_caught() -> None:
    found = audit(with_second(Quantised(member("mlp", 1))), inputs(), "pgd")
    assert {"gradients", "large-radius-leaves-nothing"} <= {c.name for c in found.failed}
    assert found["white-box-beats-random-search"].status == "note"
    assert "do not trust" in found.verdict
    assert found["gradients"].evidence["zero"] == [0.0, 1.0]
    assert found["white-box-beats-random-search"].evidence["at_fault"] == ["member 1"]
    left = found["large-radius-leaves-nothing"].evidence["members"]
    assert left["member 0"]["left"] <= 0.05
    assert left["member 1"]["left"] > 0.8
    assert "random" in found["gradients"].advice


def test_random_members_are_refused() -> None:
    with pytest.raises(InputError, match=r"member 1 is random: .*RandomizedModel"):
        audit(with_second(Random(member("mlp", 1))), inputs())


@pytest.mark.usefixtures("members_only")
def test_probabilities_are_told_from_logits() -> None:
    found = audit(with_second(Probabilities(member("mlp", 1))), inputs())
    assert found["outputs"].evidence["probabilities"] == [1]
    assert "softmax" in found["outputs"].advice


class _Dropping(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.dropout = inner, nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(self.dropout(x))
        return z


@pytest.mark.usefixtures("members_only")
def test_training_mode_matters_only_where_it_changes_answers() -> None:
    rec = with_second(_Dropping(member("mlp", 1)))
    assert audit(rec, inputs())["eval-mode"].passed
    rec.train()
    found = audit(rec, inputs())
    assert not found["eval-mode"].passed
    assert list(found["eval-mode"].evidence["difference"]) == ["1"]
    # The audit leaves modes as it found them.
    assert all(module.training for module in rec.modules())
    assert audit(ensemble().train(), inputs())["eval-mode"].passed


class _Neighbours(nn.Module):
    """Subtracts the mean of the batch, as normalisation without stored statistics does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(x - x.mean(dim=0, keepdim=True) + 0.3)
        return z


@pytest.mark.usefixtures("members_only")
def test_answers_that_depend_on_neighbours_are_caught() -> None:
    found = audit(with_second(_Neighbours(member("mlp", 1))), inputs())
    assert not found["batch-independent"].passed
    gaps = found["batch-independent"].evidence["relative_difference"]
    assert gaps[0] < 1e-5 < gaps[1]


class _Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(10)[3].expand(len(x), -1) + 0 * x.flatten(1).sum(dim=1, keepdim=True)


def test_members_that_ignore_their_input_survive_every_radius_and_are_caught() -> None:
    found = audit(with_second(_Constant()), inputs(), "pgd")
    assert found["outputs"].evidence["constant"] == [1]
    assert "member 1" in found["large-radius-leaves-nothing"].evidence["at_fault"]


class _Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.full((len(x), 10), torch.nan)


def test_nan_ends_the_audit_before_the_attacks() -> None:
    found = audit(with_second(_Broken()), inputs())
    assert not found.passed
    assert not found.complete
    assert found["outputs"].evidence["not_finite"] == [1]
    assert "not attacked" in found.verdict


def test_an_evaluation_by_a_weak_attack_is_beaten(store: Path) -> None:
    rec, data = ensemble(), digits("test").subset(slice(0, FEW))
    weak = evaluate(rec, data, attacks.create("afgsm", THREAT))
    flattering = audit(rec, data, "fast", evaluation=weak, folder=store)
    assert not flattering["evaluation-not-beaten"].passed
    assert flattering["evaluation-current"].passed
    assert "do not trust" in flattering.verdict
    strong = evaluate(rec, data, attacks.create("fast", THREAT))
    assert audit(rec, data, "fast", evaluation=strong, folder=store)["evaluation-not-beaten"].passed


@pytest.mark.usefixtures("members_only")
def test_an_evaluation_of_other_members_is_noticed() -> None:
    data = digits("test").subset(slice(0, FEW))
    other = audit(ensemble("mlp", "linear"), data, "fgsm", evaluation=evaluate(ensemble(), data, "fgsm"))
    assert "other members" in other["evaluation-current"].finding


@pytest.mark.usefixtures("members_only")
def test_choices_on_test_data_are_refused() -> None:
    found = audit(ensemble("linear"), inputs(), chosen_on={"probs": "test", "checkpoints": "validation"})
    assert not found["splits"].passed
    assert "probs" in found["splits"].advice
    assert "checkpoints" not in found["splits"].advice


def test_one_member_in_l2() -> None:
    assert audit(ensemble("linear"), inputs(), "pgd", norm="l2", eps=0.5).failed == ()


def _run_folder(path: Path, rec: RandomizedEnsemble) -> Path:
    run = Run.create(path, recipe={"data": {"name": "digits"}}, chosen_on={"probs": "validation"})
    rec.save(run.ensemble)
    return path


def test_command_says_it_with_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = _run_folder(tmp_path / "good", ensemble())
    assert command(["audit", str(good), "--limit", str(FEW), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["passed"] is True
    assert Run.open(good).read("audit") == said
    assert command(["audit", str(tmp_path / "nothing")]) == 2


def test_few_inputs_are_inconclusive(store: Path) -> None:
    found = audit(ensemble(), digits("test")[:6], "fast", folder=store)
    assert not found.failed
    assert not found.conclusive
    assert not found.passed
    assert found.verdict.startswith("Inconclusive: no check failed on 6 inputs")
    assert found.to_json()["conclusive"] is False
