"""Training adversaries: in the ball, up the loss, on the right members, without touching what they attack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from randens import Threat, models
from randens.ensemble import frozen
from randens.training.adversaries import Adversary, AttackedMembers, Start, adversary
from randens.training.losses import divergence, objective
from randens.training.recipe import AdversaryPart

LINF, L2 = Threat("linf", 0.1), Threat("l2", 0.5)


def _members(count: int = 2) -> list[nn.Module]:
    return [
        models.create("mlp", classes=3, input_shape=(6,), width=8, seed=seed).eval() for seed in range(count)
    ]


def _batch(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def _crafted(attacker: Adversary, members: list[nn.Module], probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, y = _batch()
    start = attacker.begin(x, torch.Generator().manual_seed(0))
    return x, y, attacker.craft(AttackedMembers.of(members, probs), Start(x, y, start))


@pytest.mark.parametrize("threat", [LINF, L2], ids=["linf", "l2"])
@pytest.mark.parametrize("level", ["loss", "softmax", "logits", "bounded"])
def test_pgd_stays_in_the_ball_and_climbs_its_own_level(threat: Threat, level: str) -> None:
    members, probs = _members(), torch.tensor([0.3, 0.7], dtype=torch.float64)
    x, y, x_adv = _crafted(Adversary(threat, level, steps=10, step=threat.eps / 4), members, probs)
    assert bool(threat.contains(x_adv, x).all())
    with torch.no_grad():
        before = objective("cross-entropy", level, torch.stack([m(x) for m in members]), y, probs)
        after = objective("cross-entropy", level, torch.stack([m(x_adv) for m in members]), y, probs)
    assert bool((after > before).float().mean() > 0.95)


def test_kl_climbs_the_distance_from_the_clean_answers() -> None:
    members, probs = _members(1), torch.ones(1, dtype=torch.float64)
    attacker = Adversary(LINF, "kl", steps=10, step=0.03)
    x, _, x_adv = _crafted(attacker, members, probs)
    random = LINF.random(x, torch.Generator().manual_seed(9))
    with torch.no_grad():
        clean = members[0](x).log_softmax(1)
        assert divergence(clean, members[0](x_adv)).mean() > 2 * divergence(clean, members[0](random)).mean()
    assert attacker.passes(1) == 11


def test_fgsm_rs_on_a_linear_member_is_the_closed_form() -> None:
    model = models.create("linear", classes=2, input_shape=(6,), seed=0).eval()
    threat = Threat("linf", 0.1, bounds=None)
    x, y = _batch()
    y = y % 2
    # From any start, 2ε along the sign of the gradient and back into the ball ends in the ball's best corner.
    attacker = adversary(AdversaryPart(name="fgsm-rs", step=0.2), threat, "loss")
    start = attacker.begin(x, torch.Generator().manual_seed(0))
    x_adv = attacker.craft(AttackedMembers.of([model], torch.ones(1)), Start(x, y, start))
    weight = model.state_dict()["body.linear.weight"]
    corner = torch.stack([(weight[1 - label] - weight[label]).sign() for label in y.tolist()])
    assert torch.allclose(x_adv, x + 0.1 * corner, atol=1e-6)


def test_n_fgsm_leaves_the_ball_but_not_the_box() -> None:
    attacker = adversary(AdversaryPart(name="n-fgsm"), LINF, "loss")
    x, _, x_adv = _crafted(attacker, _members(1), torch.ones(1, dtype=torch.float64))
    distance = (x_adv - x).abs()
    assert float(x_adv.min()) >= 0
    assert float(x_adv.max()) <= 1
    assert float(distance.max()) > 0.2
    assert float(distance.max()) <= 0.3 + 1e-6
    assert attacker.passes(3) == 3


def test_arc_fools_at_least_as_much_as_the_clean_inputs() -> None:
    members, probs = _members(), torch.tensor([0.5, 0.5], dtype=torch.float64)
    x, y, x_adv = _crafted(adversary(AdversaryPart(name="arc-r", steps=5), LINF, "loss"), members, probs)
    assert bool(LINF.contains(x_adv, x).all())
    with torch.no_grad():
        clean = torch.stack([m(x).argmax(1) != y for m in members]).float().mean()
        worst = torch.stack([m(x_adv).argmax(1) != y for m in members]).float().mean()
    assert worst > clean


def test_members_never_drawn_are_left_out() -> None:
    members, probs = _members(3), torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    attacked = AttackedMembers.of(members, probs)
    assert attacked.members == (members[0], members[2])
    assert attacked.probs.tolist() == [0.5, 0.5]


def test_crafting_takes_no_gradient_for_parameters_and_leaves_modes_alone() -> None:
    model = models.create("resnet20", classes=3, input_shape=(1, 8, 8), width=4, seed=0).train()
    statistics = [b.clone() for b in model.buffers()]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(8, 1, 8, 8, generator=generator), torch.zeros(8, dtype=torch.int64)
    attacker = Adversary(LINF, "softmax", steps=2, step=0.05)
    with frozen(model):
        attacker.craft(AttackedMembers.of([model], torch.ones(1)), Start(x, y, attacker.begin(x, generator)))
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(statistics, model.buffers(), strict=True))


def test_recipes_choose_steps_and_levels() -> None:
    def made(default: str = "loss", **part: Any) -> Adversary:
        return adversary(AdversaryPart(**part), LINF, default)

    assert made("softmax", name="pgd", steps=7) == Adversary(LINF, "softmax", 7, 0.025)
    assert made("softmax", name="pgd", level="logits").level == "logits"
    assert made(name="n-fgsm") == Adversary(LINF, "loss", 1, 0.1, 2.0, projects=False)
    assert made(name="fgsm-rs") == Adversary(LINF, "loss", 1, 0.125)
