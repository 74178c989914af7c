"""Training adversaries: in the ball, up the loss, on the right members, without touching what they attack."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from randens import Threat, models
from randens.ensemble import frozen
from randens.training.losses import OBJECTIVES, Adversary, AttackedMembers, Start, adversary, divergence
from randens.training.recipe import AdversaryPart

LINF, L2 = Threat("linf", 0.1), Threat("l2", 0.5)
HALVES = torch.tensor([0.3, 0.7], dtype=torch.float64)


def _members(count: int = 2) -> list[nn.Module]:
    seeds = range(count)
    return [models.create("mlp", classes=3, input_shape=(6,), width=8, seed=s).eval() for s in seeds]


def _crafted(attacker: Adversary, members: list[nn.Module], probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.rand(40, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    start = Start(x, y, attacker.begin(x, generator))
    return x, y, attacker.craft(AttackedMembers.of(members, probs), start)


@pytest.mark.parametrize("threat", [LINF, L2], ids=["linf", "l2"])
@pytest.mark.parametrize("level", ["loss", "softmax", "logits", "bounded"])
def test_pgd_stays_in_the_ball_and_climbs_its_own_level(threat: Threat, level: str) -> None:
    members = _members()
    x, y, x_adv = _crafted(Adversary(threat, level, steps=10, step=threat.eps / 4), members, HALVES)
    assert bool(threat.contains(x_adv, x).all())
    with torch.no_grad():
        before, after = (
            OBJECTIVES["cross-entropy", level](torch.stack([m(points) for m in members]), y, HALVES)
            for points in (x, x_adv)
        )
    assert bool((after > before).float().mean() > 0.95)


def test_kl_climbs_the_distance_from_the_clean_answers() -> None:
    (member,), attacker = _members(1), Adversary(LINF, "kl", steps=10, step=0.03)
    x, _, x_adv = _crafted(attacker, [member], torch.ones(1))
    random = LINF.random(x, torch.Generator().manual_seed(9))
    with torch.no_grad():
        clean = member(x).log_softmax(1)
        assert divergence(clean, member(x_adv)).mean() > 2 * divergence(clean, member(random)).mean()
    assert attacker.passes(1) == 11


def test_fgsm_rs_on_a_linear_member_is_the_closed_form() -> None:
    model = models.create("linear", classes=2, input_shape=(6,), seed=0).eval()
    # From any start, 2ε along the sign of the gradient and back into the ball ends in the ball's best corner.
    attacker = adversary(AdversaryPart(name="fgsm-rs", step=0.2), Threat("linf", 0.1, bounds=None), "loss")
    x = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 2
    start = Start(x, y, attacker.begin(x, torch.Generator().manual_seed(0)))
    x_adv = attacker.craft(AttackedMembers.of([model], torch.ones(1)), start)
    weight = model.state_dict()["body.linear.weight"]
    assert torch.allclose(x_adv, x + 0.1 * (weight[1 - y] - weight[y]).sign(), atol=1e-6)


def test_n_fgsm_leaves_the_ball_but_not_the_box() -> None:
    attacker = adversary(AdversaryPart(name="n-fgsm"), LINF, "loss")
    x, _, x_adv = _crafted(attacker, _members(1), torch.ones(1))
    assert 0 <= float(x_adv.min()) <= float(x_adv.max()) <= 1
    assert 0.2 < float((x_adv - x).abs().max()) <= 0.3 + 1e-6
    assert attacker.passes(3) == 3


def test_members_never_sampled_are_left_out() -> None:
    members = _members(3)
    attacked = AttackedMembers.of(members, torch.tensor([0.5, 0.0, 0.5]))
    assert (attacked.members, attacked.probs.tolist()) == ((members[0], members[2]), [0.5, 0.5])


def test_crafting_takes_no_gradient_for_parameters_and_leaves_modes_alone() -> None:
    model = models.create("resnet20", classes=3, input_shape=(1, 8, 8), width=4, seed=0).train()
    statistics = [b.clone() for b in model.buffers()]
    x, y = torch.rand(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64)
    with frozen(model):
        Adversary(LINF, "softmax", steps=2, step=0.05).craft(
            AttackedMembers.of([model], torch.ones(1)), Start(x, y, x)
        )
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(statistics, model.buffers(), strict=True))
