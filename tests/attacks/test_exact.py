"""The exact optimum: against brute force, and its proofs, which must not verify once they are altered."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.planted import linear, planted
from torch import nn

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import exact


def solve(case_: object) -> list[tuple[exact.LinearProblem, exact.Optimum]]:
    rec, x, y, threat = (getattr(case_, k) for k in ("rec", "x", "y", "threat"))
    probs = rec.probs.numpy()
    return [(p, exact.optimum(p, probs)) for p in exact.problems(rec.members, x, y, threat)]


@settings(max_examples=10)
@given(st.integers(0, 1000), st.sampled_from(["linf", "l2", "l1"]), st.booleans(), st.sampled_from([2, 3]))
def test_the_optimum_equals_that_of_brute_force(seed: int, norm: str, boxed: bool, classes: int) -> None:
    """Two dimensions, three members: every δ of a fine grid is tried."""
    case = planted(norm, n=2, members=3, d=2, classes=classes, boxed=boxed, probs=[0.5, 0.3, 0.2], seed=seed)
    line = np.linspace(-case.threat.eps, case.threat.eps, 241)
    grid = np.array(list(itertools.product(line, line)))
    if norm != "linf":
        grid = grid[np.linalg.norm(grid, int(case.threat.p), axis=1) <= case.threat.eps]
    probs = case.rec.probs.numpy()
    for (problem, found), x in zip(solve(case), case.x.double().numpy(), strict=True):
        legal = grid
        if boxed:
            moved = x + grid
            legal = grid[((moved >= 0) & (moved <= 1)).all(axis=1)]
        reached = problem.margins[None] + np.einsum("mcd,gd->gmc", problem.gradients, legal)
        # What the grid reaches the optimum reaches; what the optimum claims holds at its δ.
        values = (reached < -problem.tau[:, None]).any(axis=2) @ probs
        assert values.max(initial=0.0) <= found.value + 1e-9
        at_delta = problem.margins + problem.gradients @ found.delta
        assert float((at_delta < 0).any(axis=1) @ probs) >= found.value - 1e-9
        assert exact.verify(problem, found, probs)


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_proofs_verify_and_altered_ones_do_not(norm: str, classes: int, boxed: bool) -> None:
    case = planted(norm, n=4, members=3, d=12, classes=classes, boxed=boxed, probs=[0.5, 0.3, 0.2])
    probs = case.rec.probs.numpy()
    # The same classifiers with logits in other units, in which λ must be given, too.
    for member, unit in zip(case.rec.members, (1.0, 7.0, 0.2), strict=True):
        for parameter in member.parameters():
            parameter.data.mul_(unit)
    refuted = moved = 0
    for problem, found in solve(case):
        assert exact.verify(problem, found, probs)

        def holds(
            problem: exact.LinearProblem = problem, found: exact.Optimum = found, **change: object
        ) -> bool:
            return exact.verify(problem, dataclasses.replace(found, **change), probs)  # type: ignore[arg-type]

        if found.fooled and (problem.margins[list(found.fooled)] > 0).all():
            moved += 1
            assert not holds(delta=found.delta * 50)  # outside the ball
            assert not holds(delta=0 * found.delta)  # fools no member
        if found.value < 1:
            refuted += 1
            assert not holds(refutations=())
            assert not holds(refutations=_with(found, lambda w: 0 * w))
            assert not holds(refutations=_with(found, lambda w: 2 * w))
            assert not holds(
                refutations=_with(found, lambda w: np.r_[-1.0, 2.0, w[2:]][: len(w)] if len(w) > 1 else -w)
            )
        if found.fooled:
            # "No member can be fooled" needs a refutation of a fooled set: no λ gives one.
            assert not holds(fooled=(), value=0.0)
            reached = (problem.margins + problem.gradients @ found.delta)[list(found.fooled)].argmin(axis=1)
            for weights in np.random.default_rng(0).dirichlet(np.ones(len(found.fooled)), 20):
                lie = exact.Refutation(found.fooled, tuple(int(t) for t in reached), weights)
                assert not holds(fooled=(), value=0.0, refutations=(*found.refutations, lie))
    assert moved
    assert refuted


def _with(found: exact.Optimum, change: Callable[[exact.Array], exact.Array]) -> tuple[exact.Refutation, ...]:
    return tuple(dataclasses.replace(r, weights=change(r.weights)) for r in found.refutations)


def test_opposed_members_cannot_both_be_fooled() -> None:
    """Two members with opposite weights at distance ½: one of them at a time, by hand."""
    one = linear(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0.5, 0.5]))
    other = linear(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([1.0, 0.0]))
    rec = RandomizedEnsemble([one, other], [0.4, 0.6])
    x, y = torch.tensor([[0.25, 0.0]]), torch.zeros(1, dtype=torch.int64)
    for norm in ("linf", "l2"):
        result = attacks.create("exact", Threat(norm, 0.5, None))(rec, x, y)
        assert result.risk.tolist() == [0.6]
        assert result.errors.tolist() == [[False, True]]
        # Neither within reach of a smaller ball; the box forbids the heavier one.
        assert attacks.create("exact", Threat(norm, 0.2, None))(rec, x, y).risk.tolist() == [0.0]
        assert attacks.create("exact", Threat(norm, 0.5, (-1.0, 0.3)))(rec, x, y).risk.tolist() == [0.4]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_constant_member_is_wrong_everywhere_or_nowhere(norm: str) -> None:
    constant = linear(torch.zeros(2, 1), torch.tensor([1.0, 0.0]))
    sloped = linear(torch.tensor([[0.0], [1.0]]), torch.zeros(2))
    rec = RandomizedEnsemble([constant, sloped])
    attack = attacks.create("exact", Threat(norm, 0.5, None))
    found = attack(rec, torch.tensor([[0.3], [0.7], [-0.3], [-0.7]]), torch.tensor([1, 1, 0, 0]))
    assert found.errors.tolist() == [[True, True], [True, False], [False, True], [False, False]]


def test_linear_members_of_any_form_are_recognized() -> None:
    """Images, normalization, two linear layers: still linear."""
    x = torch.rand(5, 1, 4, 4)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 5), nn.Linear(5, 3)).eval()
    weight, bias = exact.affine(net, x)
    z = net(x).detach().double().numpy()
    np.testing.assert_allclose(x.double().flatten(1).numpy() @ weight.T + bias, z, atol=1e-5)
    result = attacks.create("exact", Threat("linf", 0.3))(net, x, net(x).argmax(dim=1))
    assert torch.equal(RandomizedEnsemble([net]).errors(result.x_adv, net(x).argmax(dim=1)), result.errors)
