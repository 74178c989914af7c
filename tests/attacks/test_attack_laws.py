"""Properties of every attack on every kind of ensemble and under both norms, at any budget."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from tests.attacks.cases import ALL, KINDS, NORMS, attack, attacks_for, case, convnet, digits, found
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat
from randens.attacks import Found

every_case = pytest.mark.parametrize(("name", "norm", "kind"), ALL)


def same(a: Found, b: Found) -> bool:
    """Equal in every bit that an attack reports, costs aside."""
    return (
        torch.equal(a.x_adv, b.x_adv)
        and torch.equal(a.errors, b.errors)
        and torch.equal(a.risk, b.risk)
        and np.array_equal(a.pool.points, b.pool.points)
        and np.array_equal(a.pool.fooled, b.pool.fooled)
        and a.sources == b.sources
    )


@every_case
def test_legal_to_the_last_float(name: str, norm: str, kind: str) -> None:
    given, result = case(kind, norm), found(name, norm, kind)
    assert given.threat.contains(result.x_adv, given.x).all()
    assert result.pool.x_adv is not None
    witnesses = torch.from_numpy(result.pool.x_adv)
    assert given.threat.contains(witnesses, given.x[result.pool.points]).all()


@every_case
def test_what_is_reported_is_what_re_evaluates(name: str, norm: str, kind: str) -> None:
    given, result = case(kind, norm), found(name, norm, kind)
    assert torch.equal(given.rec.errors(result.x_adv, given.y), result.errors)
    assert torch.equal(given.rec.risk(result.x_adv, given.y), result.risk)
    assert torch.equal(result.risk, result.errors.double() @ given.rec.probs)
    assert result.robust_accuracy == 1 - float(result.risk.mean())
    # Every witness fools the members that it names; none is better than what is reported.
    assert result.pool.x_adv is not None
    claimed = torch.from_numpy(result.pool.fooled)
    seen = given.rec.errors(torch.from_numpy(result.pool.x_adv), given.y[result.pool.points])
    assert bool((seen | ~claimed).all())
    best, _ = result.pool.best(given.rec.probs.numpy())
    np.testing.assert_allclose(best, result.risk.numpy(), rtol=0, atol=1e-12)


@every_case
def test_never_below_the_clean_risk(name: str, norm: str, kind: str) -> None:
    given, result = case(kind, norm), found(name, norm, kind)
    assert torch.equal(result.clean_errors, given.rec.errors(given.x, given.y))
    assert bool((result.risk >= given.rec.risk(given.x, given.y)).all())
    # A member wrong on the clean input is in some witness, whatever else was found.
    assert bool((torch.from_numpy(result.pool.foolable) | ~result.clean_errors).all())


@pytest.mark.parametrize(("name", "norm", "kind"), [case_ for case_ in ALL if case_[2] != "identical"])
def test_same_seed_same_bits(name: str, norm: str, kind: str) -> None:
    given, result = case(kind, norm), found(name, norm, kind)
    torch.manual_seed(123)  # the global generator must not matter, nor be touched
    before = torch.get_rng_state()
    again = attack(name, given.threat)(given.rec, given.x, given.y)
    assert same(result, again)
    assert result.cost == again.cost
    assert torch.equal(torch.get_rng_state(), before)


@every_case
def test_dropping_finished_inputs_changes_nothing(name: str, norm: str, kind: str) -> None:
    given, result = case(kind, norm), found(name, norm, kind)
    kept = attack(name, given.threat, drop_finished=False)(given.rec, given.x, given.y)
    assert torch.equal(result.errors, kept.errors)
    assert torch.equal(result.risk, kept.risk)
    assert result.sources == kept.sources
    # Rounding depends on how many inputs share a pass, so points agree to rounding only.
    torch.testing.assert_close(result.x_adv, kept.x_adv, rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["planted", "mlp"])
@pytest.mark.parametrize("name", ["arc-r", "lattice", "saddle", "suite"])
def test_dropping_changes_nothing_in_larger_batches(name: str, kind: str, norm: str) -> None:
    given = case(kind, norm, n=20)
    options = {} if name == "suite" else {"restarts": 2}
    dropped = attack(name, given.threat, **options)(given.rec, given.x, given.y)
    kept = attack(name, given.threat, drop_finished=False, **options)(given.rec, given.x, given.y)
    assert torch.equal(dropped.errors, kept.errors)
    assert dropped.sources == kept.sources
    assert dropped.cost.forwards <= kept.cost.forwards


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", attacks_for("convnet"))
def test_identical_members_are_the_single_model(name: str, norm: str) -> None:
    given, several = case("identical", norm), found(name, norm, "identical")
    # ARC takes a smaller local ball for a single model; the property is about the same ball.
    options = {"step": 1.0} if name in ("arc", "arc-r") else {}
    alone = attack(name, given.threat, **options)(given.rec.members[0], given.x, given.y)
    assert torch.equal(several.risk, alone.risk)
    assert torch.equal(several.errors, alone.errors.expand(-1, 3))


class Scaled(nn.Module):
    """A member whose logits are multiplied by a constant: the same classifier."""

    def __init__(self, member: nn.Module, factor: float) -> None:
        super().__init__()
        self.member, self.factor = member, factor

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.member(x)
        return z * self.factor


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["planted", "convnet", "mlp"])
@pytest.mark.parametrize("preset", ["fast", pytest.param("standard", marks=pytest.mark.slow)])
def test_scale_of_logits_does_not_change_the_suite(preset: str, kind: str, norm: str) -> None:
    given = case(kind, norm)
    plain = attack("suite", given.threat, preset=preset)(given.rec, given.x, given.y)
    for factor in (1000.0, 1e-3) if preset == "fast" else (1000.0,):
        scaled = RandomizedEnsemble([Scaled(m, factor) for m in given.rec.members], given.rec.probs)
        result = attack("suite", given.threat, preset=preset)(scaled, given.x, given.y)
        assert torch.equal(result.risk, plain.risk), factor


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_never_drawn_does_not_count(kind: str) -> None:
    given = case(kind, "linf")
    idle = RandomizedEnsemble(
        [*given.rec.members, copy.deepcopy(given.rec.members[0])], [*given.rec.probs.tolist(), 0.0]
    )
    # Attacks that draw an order of the members draw another one; these draw none.
    for name in ("pgd", "adaptive-pgd-s", "arc", "random"):
        plain, result = found(name, "linf", kind), attack(name, given.threat)(idle, given.x, given.y)
        assert torch.equal(result.risk, plain.risk), name


@pytest.mark.parametrize("name", attacks_for("convnet"))
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


@pytest.mark.parametrize("name", attacks_for("convnet"))
def test_an_interrupted_attack_restores_the_members(name: str) -> None:
    class Failing(nn.Module):
        """Works on the first calls, then breaks; what depends on the data cannot be traced, so copies do, too."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = copy.deepcopy(convnet(0)), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if bool(torch.isfinite(x).all()) and self.calls > 2:
                raise KeyboardInterrupt
            z: Tensor = self.inner(x)
            return z

    rec = RandomizedEnsemble([Failing(), convnet(1)]).train()
    given = case("convnet", "linf")
    with pytest.raises(KeyboardInterrupt):
        attack(name, given.threat)(rec, given.x, given.y)
    assert all(m.training for m in rec.modules())
    assert all(p.requires_grad for p in rec.parameters())
    convnet(1).eval()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", attacks_for("convnet"))
def test_restarts_and_batches(name: str, norm: str) -> None:
    given, once = case("convnet", norm), found(name, norm, "convnet")
    twice = attack(name, given.threat, restarts=2)(given.rec, given.x, given.y)
    assert bool((twice.risk >= once.risk).all())
    assert given.threat.contains(twice.x_adv, given.x).all()
    # Batches are attacked one after another; the first is what it is alone.
    split = attack(name, given.threat, batch_size=8)(given.rec, given.x, given.y)
    alone = attack(name, given.threat)(given.rec, given.x[:8], given.y[:8])
    assert torch.equal(split.x_adv[:8], alone.x_adv)
    assert torch.equal(given.rec.errors(split.x_adv, given.y), split.errors)
    assert split.pool.n == len(given.x)
    assert len(split.sources) == len(given.x)


@pytest.mark.parametrize("name", attacks_for("convnet"))
def test_more_radius_never_hurts_where_everything_is_out_of_reach(name: str) -> None:
    """With an ε so small that no float changes, an attack reports only the clean errors."""
    x, y = digits("test")
    threat = Threat("linf", 1e-9)
    rec = RandomizedEnsemble([convnet(0), convnet(1)])
    result = attack(name, threat)(rec, x[:20], y[:20])
    assert torch.equal(result.errors, rec.errors(x[:20], y[:20]))
    assert set(result.sources) == {"clean"}


def test_sources_name_the_attack_that_found_the_worst_case() -> None:
    given, result = case("convnet", "linf"), found("suite", "linf", "convnet")
    clean = given.rec.risk(given.x, given.y)
    for source, risk, before in zip(result.sources, result.risk, clean, strict=True):
        assert (source == "clean") == (risk == before)
    assert {"saddle"} <= set(result.sources)


def test_found_is_a_value() -> None:
    result = found("pgd", "linf", "mlp")
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.risk = torch.zeros(1)  # type: ignore[misc]
