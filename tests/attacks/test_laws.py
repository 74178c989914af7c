"""Properties of every attack on every kind of ensemble and under every norm, at any budget."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tests.attacks.cases import ALL, KINDS, attack, attacks_for, case, convnet, found

from randens import RandomizedEnsemble
from randens.attacks import AttackResult

every_attack = pytest.mark.parametrize("name", attacks_for("convnet"))
some_attacks = pytest.mark.parametrize(
    "name", ["pgd", "apgd", "acw", "eot", "arc", "arc-r", "saddle", "lattice", "random"]
)


def same(a: AttackResult, b: AttackResult) -> bool:
    """Equal in every bit that an attack reports, costs aside."""
    return (
        torch.equal(a.x_adv, b.x_adv)
        and torch.equal(a.errors, b.errors)
        and torch.equal(a.risk, b.risk)
        and np.array_equal(a.pool.points, b.pool.points)
        and np.array_equal(a.pool.fooled, b.pool.fooled)
        and a.sources == b.sources
    )


@pytest.mark.parametrize(("name", "norm", "kind"), ALL)
def test_legal_honest_and_never_below_the_clean_risk(name: str, norm: str, kind: str) -> None:
    given, result = case(kind, norm), found(name, norm, kind)
    # Legal to the last float, in the members' precision.
    assert result.x_adv.dtype == given.x.dtype
    assert given.threat.contains(result.x_adv, given.x).all()
    assert result.pool.x_adv is not None
    witnesses = torch.from_numpy(result.pool.x_adv)
    assert given.threat.contains(witnesses, given.x[result.pool.points]).all()
    # What is reported is what re-evaluates.
    assert torch.equal(given.rec.errors(result.x_adv, given.y), result.errors)
    assert torch.equal(result.risk, result.errors.double() @ given.rec.probs)
    assert result.robust_accuracy == 1 - float(result.risk.mean())
    claimed = torch.from_numpy(result.pool.fooled)
    assert torch.equal(given.rec.errors(witnesses, given.y[result.pool.points]), claimed)
    best, _ = result.pool.best(given.rec.probs.numpy())
    np.testing.assert_allclose(best, result.risk.numpy(), rtol=0, atol=1e-12)
    # The clean point counts; a member wrong there is in some witness, whatever else was found.
    clean = given.rec.errors(given.x, given.y)
    assert torch.equal(result.clean_errors, clean)
    assert bool((result.risk >= clean.double() @ given.rec.probs).all())
    assert bool((torch.from_numpy(result.pool.foolable) | ~clean).all())
    assert all(
        (s == "clean") == bool((r == c).all())
        for s, r, c in zip(result.sources, result.errors, clean, strict=True)
    )


@every_attack
def test_same_seed_same_bits(name: str) -> None:
    given, result = case("mlp", "linf"), found(name, "linf", "mlp")
    torch.manual_seed(123)  # the global generator must not matter, nor be touched
    before = torch.get_rng_state()
    again = attack(name, given.threat, seed=np.int64(0))(given.rec, given.x, given.y)
    assert same(result, again)
    assert result.cost == again.cost
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["fast", "exact", "random"])
def test_the_scale_of_logits_does_not_matter(name: str) -> None:
    given, plain = case("planted", "linf"), found(name, "linf", "planted")
    for factor in (1024.0, 1 / 1024):
        scaled = copy.deepcopy(given.rec)
        for parameter in scaled.parameters():
            parameter.data.mul_(factor)
        assert torch.equal(attack(name, given.threat)(scaled, given.x, given.y).risk, plain.risk), factor


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_never_drawn_does_not_count(kind: str) -> None:
    given = case(kind, "linf")
    members = [*given.rec.members, copy.deepcopy(given.rec.members[0])]
    idle = RandomizedEnsemble(members, [*given.rec.probs.tolist(), 0.0])
    # Attacks that draw an order of the members draw another one; these draw none.
    for name in ("pgd", "adaptive-pgd-s", "arc", "random"):
        plain, result = found(name, "linf", kind), attack(name, given.threat)(idle, given.x, given.y)
        assert torch.equal(result.risk, plain.risk), name


@some_attacks
def test_modes_gradients_and_statistics_are_restored(name: str) -> None:
    members = [copy.deepcopy(convnet(i)) for i in range(2)]
    rec = RandomizedEnsemble(members)
    rec.train()
    members[1][1].eval()  # type: ignore[index]
    members[0][0].weight.requires_grad_(False)  # type: ignore[index]
    modes = [m.training for m in rec.modules()]
    wanted = [p.requires_grad for p in rec.parameters()]
    state = {k: v.clone() for k, v in rec.state_dict().items()}
    given = case("convnet", "linf")
    x = given.x.clone().requires_grad_(True)
    result = attack(name, given.threat)(rec, x, given.y)
    assert [m.training for m in rec.modules()] == modes
    assert [p.requires_grad for p in rec.parameters()] == wanted
    assert all(torch.equal(v, state[k]) for k, v in rec.state_dict().items())
    assert all(p.grad is None for p in rec.parameters())
    assert x.grad is None
    assert torch.equal(x, given.x)
    assert not result.x_adv.requires_grad
    assert same(result, found(name, "linf", "convnet"))


@pytest.mark.parametrize("kind", ["convnet", "zero-weight"])
@pytest.mark.parametrize("name", ["pgd", "arc-r", "saddle", "random"])
def test_the_callers_settings_of_torch_do_not_matter(name: str, kind: str) -> None:
    given, expected = case(kind, "linf"), found(name, "linf", kind)
    autocast, device = torch.autocast("cpu", torch.bfloat16), torch.device("meta")
    for mode in (torch.no_grad(), torch.inference_mode(), autocast, device):
        with mode:
            x, y = given.x * 1.0, given.y * 1  # made in this mode
            result = attack(name, given.threat)(given.rec, x, y)
            assert torch.is_inference_mode_enabled() == isinstance(mode, torch.inference_mode)
            assert torch.is_grad_enabled() == (mode in (autocast, device))
            assert torch.is_autocast_enabled("cpu") == (mode is autocast)
        assert same(result, expected)
