"""The textbook attack is a legal and working one, and the limit is the sum of the passes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from benchmarks.attacks import Bare, Passes, channels_first, limit, perturbed, textbook_arc_r
from benchmarks.harness import Timed, Timing
from torch import Tensor

from randens import RandomizedEnsemble, Threat, attacks, models
from randens.attacks import Cost, Found
from randens.attacks.compiled import Pass


def _ensemble() -> RandomizedEnsemble:
    shape = (1, 6, 6)
    return RandomizedEnsemble(
        [models.create("mlp", classes=3, input_shape=shape, width=16, seed=seed) for seed in range(3)]
    ).eval()


def _batch(rec: RandomizedEnsemble) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(24, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = torch.stack([member(x) for member in rec.members]).mean(dim=0).argmax(dim=1)
    return x, y


def test_the_textbook_attack_is_legal_and_works() -> None:
    rec = _ensemble()
    x, y = _batch(rec)
    eps = 0.1
    plain = [channels_first(member) for member in rec.members]
    found = textbook_arc_r(plain, x, y, eps, steps=10, planes=2, seed=0)
    assert float((found - x).abs().max()) <= eps + 1e-6
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    clean, risk = rec.risk(x, y), rec.risk(found, y)
    assert bool((risk >= clean).all())
    assert float(risk.mean()) > float(clean.mean()) + 0.1
    # Ours may only be stronger.
    ours = attacks.create("arc-r", Threat("linf", eps))(rec, x, y)
    assert float(ours.risk.mean()) >= float(risk.mean()) - 0.05


def test_the_limit_is_what_the_counted_passes_cost() -> None:
    rec = _ensemble()
    x, y = _batch(rec)
    found: Found = attacks.create("fgsm", Threat("linf", 0.1))(rec, x, y)
    found = Found(
        found.x_adv, found.errors, found.risk, found.clean_errors, found.pool, Cost(48, 24), found.sources
    )
    measured = {
        "forward": Timed(Timing(1.0, 2.0, 3), None),
        "both": Timed(Timing(3.0, 5.0, 3), None),
    }
    # 48 forwards of batches of 24 are two passes, 24 backwards are one: 2·1 + 1·(3 − 1), medians 2·2 + (5 − 2).
    timing = limit([found], x, Passes.of(measured, 24)).timing
    assert timing is not None
    assert timing.best == pytest.approx(4.0)
    assert timing.median == pytest.approx(7.0)


def test_confirmations_are_counted_at_their_own_cost() -> None:
    rec = _ensemble()
    x, y = _batch(rec)
    found: Found = attacks.create("fgsm", Threat("linf", 0.1))(rec, x, y)
    x_adv = x.clone()
    x_adv[:5, ..., 0] += 0.01
    moved = dataclasses.replace(found, x_adv=x_adv, cost=Cost(48, 24))
    still = dataclasses.replace(found, x_adv=x.clone(), cost=Cost(48, 24))
    assert (perturbed(moved, x), perturbed(still, x)) == (5, 0)
    measured = {
        "forward": Timed(Timing(24.0, 48.0, 3), None),
        "both": Timed(Timing(72.0, 120.0, 3), None),
        "confirmation": Timed(Timing(20.0, 30.0, 3), None),
    }
    # An input costs 1 forward, 3 with a gradient and 2 to confirm: 48 + 24·2, and 5 inputs of each member cost 1 more.
    cost = Passes.of(measured, 24, 10)
    members = found.errors.shape[1]
    assert members > 1
    for each, more in ((moved, 5.0 * members), (still, 0.0)):
        timing = limit([each], x, cost).timing
        assert timing is not None
        assert timing.best == pytest.approx(96.0 + more)
    both = limit([moved, still], x, cost).timing
    assert both is not None
    assert both.best == pytest.approx(96.0 + 2.5 * members)
    assert both.median == pytest.approx(48 * 2.0 + 24 * 3.0 + 2.5 * members)


def test_bare_passes_are_as_many_as_asked_for() -> None:
    rec = _ensemble()
    x, y = _batch(rec)
    member = rec.members[0]
    counted: list[bool] = []
    handle = member.register_forward_hook(lambda *_: counted.append(torch.is_grad_enabled()))
    Bare(member, x, y, compiled=False).spend(forwards=5, backwards=3)
    handle.remove()
    assert counted == [True] * 3 + [False] * 2


def test_bare_passes_are_compiled_where_those_of_the_attack_are(monkeypatch: pytest.MonkeyPatch) -> None:
    member = models.create("resnet8", classes=10, input_shape=(3, 8, 8), seed=0, width=4).eval()
    x, y = torch.rand(3, 3, 8, 8), torch.arange(3)
    bare = Bare(member, x, y)
    assert bare.compiled is not None
    made: list[str] = []
    forward, planes = bare.compiled.forward, bare.compiled.planes

    def counted_forward(x: Tensor) -> Pass:
        made.append("forward")
        return forward(x)

    def counted_planes(x: Tensor, right: Tensor, count: int) -> Pass:
        made.append("planes")
        return planes(x, right, count)

    monkeypatch.setattr(bare.compiled, "forward", counted_forward)
    monkeypatch.setattr(bare.compiled, "planes", counted_planes)
    bare.spend(forwards=5, backwards=3)
    assert made == ["planes"] * 3 + ["forward"] * 2
