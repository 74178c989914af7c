"""What the paper prescribes for training: when α moves, how OSP finds it, how checkpoints are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.small_runs import small

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks.result import Cost
from randens.core.runs import Run
from randens.risk import candidates, project_simplex
from randens.training import alpha as alpha_module
from randens.training import engine as engine_module
from randens.training import load_recipe, train
from randens.training.alpha import Validated, attacks_per_choice, due, osp
from randens.training.losses import OBJECTIVES, AttackedMembers, Start, adversary
from randens.training.recipe import AdversaryPart, SamplingPart
from randens.witness import WitnessPool

NOTHING = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
PAPER = Path(__file__).parents[2] / "recipes" / "paper"


def test_the_printed_rule_updates_every_so_many_epochs_and_the_released_one_late() -> None:
    printed, released = SamplingPart(rule="printed", every=3), SamplingPart(rule="released", every=10)
    assert [e for e in range(1, 11) if due(printed, 2, e, 10)] == [3, 6, 9]
    assert not any(due(released, 3, e, 100) for e in range(1, 101))
    assert [e for e in range(1, 101) if due(released, 4, e, 100)] == [60, 70, 80, 90, 100]
    # The last epoch always counts, and the half is rounded down.
    assert [e for e in range(1, 26) if due(released, 5, e, 25)] == [22, 25]


def _pool(members: int, seed: int = 0) -> WitnessPool:
    """Witnesses of 40 inputs, of which some members can be fooled together."""
    generator = np.random.default_rng(seed)
    fooled = generator.random((120, members)) < np.linspace(0.25, 0.6, members)
    return WitnessPool(40, members, np.repeat(np.arange(40), 3), fooled)


def _played(monkeypatch: pytest.MonkeyPatch, members: int) -> tuple[RandomizedEnsemble, list[np.ndarray]]:
    """An ensemble whose attacks are played: whatever α, the same pool. The α that were tried are written down."""
    tried: list[np.ndarray] = []
    pool = _pool(members)

    def attacked(rec: RandomizedEnsemble, *_: object) -> Validated:
        tried.append(rec.probs.numpy().copy())
        return Validated(tried[-1], pool, np.zeros(members), Cost(3, 5))

    monkeypatch.setattr(alpha_module, "attacked", attacked)
    return RandomizedEnsemble([torch.nn.Linear(2, 2) for _ in range(members)]), tried


def test_osp_takes_the_steps_of_algorithm_1_with_a_fresh_attack_each(monkeypatch: pytest.MonkeyPatch) -> None:
    rec, tried = _played(monkeypatch, 4)
    part = SamplingPart(method="osp", iterations=6, step=0.7)
    found = osp(rec, *NOTHING, attacks.create("fgsm", Threat("l2", 1.0)), part)
    profile = _pool(4).profile()
    alpha = np.full(4, 0.25)
    for t, met in enumerate(tried, start=1):
        np.testing.assert_allclose(met, alpha, atol=1e-12)
        alpha = project_simplex(alpha - 0.7 / t * profile.subgradient(alpha))
    assert len(tried) == attacks_per_choice(part, 4) == 6
    risks = [profile.risk(met) for met in tried]
    assert found.risk == pytest.approx(min(risks))
    assert min(risks) < risks[0]
    np.testing.assert_array_equal(found.probs, tried[int(np.argmin(risks))])
    assert found.cost == Cost(18, 30)


@pytest.mark.parametrize("members", [2, 3])
def test_up_to_three_members_the_candidates_are_attacked(monkeypatch: Any, members: int) -> None:
    rec, tried = _played(monkeypatch, members)
    part = SamplingPart(method="osp", iterations=2)
    found = osp(rec, *NOTHING, attacks.create("fgsm", Threat("l2", 1.0)), part)
    expected = [[float(v) for v in c] for c in candidates(members)]
    np.testing.assert_allclose(tried, expected)
    assert found.risk == min(_pool(members).profile().risk(c) for c in expected)


def test_of_equally_good_alpha_the_last_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WitnessPool(2, 2, [0], [[True, True]])

    def attacked(rec: RandomizedEnsemble, *_: object) -> Validated:
        return Validated(rec.probs.numpy(), pool, np.zeros(2), Cost())

    monkeypatch.setattr(alpha_module, "attacked", attacked)
    rec, fgsm = RandomizedEnsemble([torch.nn.Linear(2, 2)] * 2), attacks.create("fgsm", Threat("l2", 1.0))
    found = osp(rec, *NOTHING, fgsm, SamplingPart(method="osp"))
    assert found.probs.tolist() == [float(share) for share in candidates(2)[-1]]


def test_of_equal_checkpoints_the_last_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(*_: object) -> Validated:
        pool = WitnessPool(10, 1, np.arange(4), np.ones((4, 1), dtype=bool))
        return Validated(np.ones(1), pool, np.full(1, 0.1), Cost())

    monkeypatch.setattr(engine_module, "attacked", verdict)
    train(small(epochs=3), tmp_path / "run")
    lines = Run.open(tmp_path / "run").metrics()
    assert next(line for line in lines if line["event"] == "member")["best_epoch"] == 3


def test_epochs_of_a_member_are_compared_by_one_attack_at_the_alpha_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[tuple[str, list[float]]] = []
    chosen: list[tuple[str, int]] = []
    real_attacked, real_exact = alpha_module.attacked, alpha_module.exact

    def attacked(rec: RandomizedEnsemble, x: Any, y: Any, attack: Any) -> Validated:
        judged.append((attack.name, rec.probs.tolist()))
        return real_attacked(rec, x, y, attack)

    def exact(rec: RandomizedEnsemble, x: Any, y: Any, attack: Any, sweeps: int) -> Validated:
        chosen.append((attack.name, len(rec.members)))
        return real_exact(rec, x, y, attack, sweeps)

    monkeypatch.setattr(engine_module, "attacked", attacked)
    monkeypatch.setattr(alpha_module, "exact", exact)
    sampling = {"every": 2, "attack": "fgsm", "floor": 0.5}
    train(small(method="barre", members=2, epochs=4, sampling=sampling), tmp_path / "run")
    lines = [line for line in Run.open(tmp_path / "run").metrics() if line["event"] == "epoch"]
    # After epochs 2 and 4 of the second member, and at the end of the run.
    assert chosen == [("fgsm", 2)] * 3
    assert [name for name, _ in judged] == ["adaptive-pgd-s"] * 8
    assert [probs for _, probs in judged] == [line["probs"] for line in lines]
    assert lines[4]["probs"] == [0.5, 0.5]


def test_the_released_rule_steps_by_ten_times_the_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[float] = []

    def search(rec: Any, x: Any, y: Any, attack: Any, part: SamplingPart) -> Validated:
        steps.append(part.step)
        assert len(x) == 37
        return alpha_module.attacked(rec.with_probs(None), x, y, attack)

    monkeypatch.setattr(alpha_module, "osp", search)
    recipe = small(
        method="barre",
        members=4,
        epochs=4,
        optimizer={"lr": 0.08},
        schedule={"name": "steps", "milestones": [3], "factor": 0.1},
        sampling={"method": "osp", "rule": "released", "every": 1, "data": "train", "size": 37, "step": 0.3},
    )
    train(recipe, tmp_path / "run")
    # Epochs 3 and 4 of the fourth member, with the rates after them; then once for the finished ensemble.
    assert steps == pytest.approx([0.08, 0.08, 0.3])
    chosen_on = Run.open(tmp_path / "run").manifest["chosen_on"]
    assert chosen_on == {"checkpoints": "validation", "probs": "train"}


@pytest.mark.parametrize("path", sorted(PAPER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_setting_of_a_paper_recipe(path: Path) -> None:
    """A change of any of them must be noticed: these files are the paper's set-up and nothing else."""
    recipe = load_recipe(path)
    fields = recipe.to_json()
    assert recipe.members == (1 if recipe.method == "at" else {"resnet18": 4}.get(recipe.model.name, 5))
    assert (recipe.data.crop_padding, recipe.data.flip, recipe.data.rotation) == (4, True, 0)
    adversary = {"name": "pgd", "level": "auto", "loss": "mce", "steps": 10, "start": 0.5, "warmup": 0}
    assert adversary.items() <= fields["adversary"].items()
    assert fields["adversary"]["step"] == pytest.approx(2 / 255)
    assert fields["threat"] == {"norm": "linf", "eps": pytest.approx(8 / 255), "bounded": True}
    schedule = {"name": "steps", "milestones": [50, 75], "factor": 0.1}
    assert schedule.items() <= fields["schedule"].items()
    sampling = {"method": "osp", "rule": "released", "attack": "arc-r", "data": "train", "size": 2048}
    assert {**sampling, "every": 10, "iterations": 10, "floor": 0.0}.items() <= fields["sampling"].items()
    optimizer = {"name": "sgd", "lr": 0.1, "later_lr": None, "momentum": 0.9, "weight_decay": 5e-4}
    assert fields["optimizer"] == {**optimizer, "nesterov": False}
    assert (fields["validation"]["attack"], fields["validation"]["keep"]) == ("arc-r", "best")
    assert fields["loss"] == {"name": "mce", "weight": None}
    assert (fields["ema"], fields["start"], fields["epochs"], fields["batch_size"]) == (0.0, "auto", 100, 256)
    assert fields["precision"] == "float32"


def test_the_training_attack_climbs_mce_where_it_is_told_to() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, 5, 4, generator=generator)
    y = torch.tensor([0, 1, 2, 3, 0])
    alpha = torch.tensor([0.2, 0.3, 0.5])

    def by_hand(logits: torch.Tensor) -> torch.Tensor:
        others = torch.ones(5, 4).scatter(1, y.unsqueeze(1), 0.0)
        wrong = -((-logits).log_softmax(dim=1) * others).sum(dim=1) / 3
        return torch.nn.functional.cross_entropy(logits, y, reduction="none") + wrong

    mixture = (alpha.reshape(3, 1, 1) * z.softmax(dim=2)).sum(dim=0).log()
    torch.testing.assert_close(OBJECTIVES["mce", "softmax"](z, y, alpha), by_hand(mixture))
    mean = (alpha.reshape(3, 1, 1) * z).sum(dim=0)
    torch.testing.assert_close(OBJECTIVES["mce", "logits"](z, y, alpha), by_hand(mean))
    torch.testing.assert_close(
        OBJECTIVES["mce", "loss"](z, y, alpha),
        sum(a * by_hand(member) for a, member in zip(alpha, z, strict=True)),
    )
    # One member: every level is the same.
    torch.testing.assert_close(OBJECTIVES["mce", "softmax"](z[:1], y, torch.ones(1)), by_hand(z[0]))
    made = adversary(AdversaryPart(loss="mce", start=0.5), Threat("linf", 0.1), "softmax")
    assert (made.loss, made.radius, made.level) == ("mce", 0.5, "softmax")
    members, x = [torch.nn.Linear(4, 4) for _ in range(3)], torch.rand(5, 4, generator=generator)
    point = made.begin(x, generator)
    assert float((point - x).abs().max()) <= 0.05 + 1e-6
    crafted = made.craft(AttackedMembers.of(members, alpha), Start(x, y, point))
    with torch.no_grad():
        before, after = (
            OBJECTIVES["mce", "softmax"](torch.stack([m(inputs) for m in members]), y, alpha)
            for inputs in (x, crafted)
        )
    assert bool((after > before).all())
