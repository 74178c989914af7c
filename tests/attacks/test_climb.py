"""Climbs: which set to aim at next by the linear models, what is ruled out, and members passed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.attacks.planted import Planted, planted, truth, unequal
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import Search, saddle
from randens.attacks.climb import Targets
from randens.attacks.run import attacking


def searching(case: Planted) -> Search:
    return Search(case.rec, case.x, case.y, case.threat)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_target_for_linear_members_is_the_heaviest_reachable_set(norm: str) -> None:
    case = unequal(norm, n=12, seed=2)
    optimum = truth(case)
    s = searching(case)
    targets = Targets(s)
    first: dict[int, Any] = {}
    with attacking(case.rec):
        for _ in range(3):  # a call plays a limited number of games
            rows, sets = targets.next(s, saddle.refuted, 0.0)
            first = dict(zip(rows.tolist(), sets, strict=True)) | first
    # Every input has a set heavier than nothing; none that can be reached is ruled out.
    named = s.risk(torch.stack([first[row] for row in range(12)])).numpy()
    assert bool((named >= optimum - 1e-9).all())
    assert float((named <= optimum + 1e-9).mean()) >= 0.8


def test_targets_are_not_named_again_and_always_heavier_than_the_best() -> None:
    case = unequal("linf", n=6, seed=3)
    s = searching(case)
    targets = Targets(s)
    before: dict[int, Any] = {}
    with attacking(case.rec):
        for _ in range(4):
            rows, sets = targets.next(s, saddle.refuted, 0.05)
            for row, chosen in zip(rows.tolist(), sets, strict=True):
                assert all(not bool((chosen | ~old).all()) for old in before.get(row, []))
                before.setdefault(row, []).append(chosen)
        assert max(map(len, before.values())) > 1
        # What is no heavier than a known set is not named.
        s.record(torch.arange(6), s.x, torch.ones_like(s.clean))
        assert len(targets.next(s, saddle.refuted, 0.05)[0]) == 0


def test_proofs_rule_out_what_contains_them_without_a_pass_or_a_second_game(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = planted("linf", n=6)
    solved: list[int] = []
    original = saddle.linearized_game

    def counted(s: Search, rows: Tensor, *rest: Any) -> Any:
        solved.append(len(rows))
        return original(s, rows, *rest)

    monkeypatch.setattr(saddle, "linearized_game", counted)
    # With so small a radius the linear models rule out every set.
    s = Search(case.rec, case.x, case.y, case.threat.scaled(1e-4))
    with attacking(case.rec):
        targets = Targets(s)
        assert len(targets.next(s, saddle.refuted, 0.05)[0]) == 0
        first, passes = len(solved), s.cost.passes
        assert len(targets.next(s, saddle.refuted, 0.05)[0]) == 0
    # One game per member at most, as a proof against one of them is one against all sets with it.
    assert first == len(solved) <= 6
    assert s.cost.passes == passes


def test_large_ensembles_have_no_list_of_sets_and_are_attacked_all_the_same() -> None:
    case = planted("l2", n=3, members=9)
    s = searching(case)
    with attacking(case.rec):
        rows, sets = Targets(s).next(s, saddle.refuted, 0.05)
    assert len(rows) == len(sets) == 0
    found = attacks.create("saddle", case.threat, restarts=1)(case.rec, case.x, case.y)
    assert float(found.risk.mean()) > 0


def test_members_that_many_searches_have_not_fooled_are_passed_over() -> None:
    case = planted("linf", n=3)
    s = searching(case)
    with attacking(case.rec):
        for resisted, passes in ((5, False), (0, True)):
            s.resisted.fill_(resisted)
            before = s.cost.passes
            attacks.create("lattice", case.threat, orders=1, steps=2).search(s)
            assert (s.cost.passes > before) == passes


@pytest.mark.parametrize(("scale", "together"), [(1.0, True), (0.2, False)])
def test_an_input_is_moved_as_if_it_were_alone(scale: float, together: bool) -> None:
    """Rows in any order, of which some are fooled or given up before others; single members and sets of up to five."""
    case = planted("linf", n=8)
    attack, rows = saddle.Saddle(case.threat.scaled(scale)), torch.tensor([6, 1, 4, 3, 7])
    targets = (torch.ones(5, 5).tril() if together else torch.eye(5)).bool()

    def moved(some: slice, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = Search(case.rec, case.x, case.y, attack.threat)
        return *attack.reach(s, rows[some], start, targets[some]), s.resisted[rows[some]]

    with attacking(case.rec):
        start = Search(case.rec, case.x, case.y, attack.threat).start(1)[rows]
        points, verdicts, resisted = moved(slice(0, 5), start)
        assert bool((verdicts if together else resisted).any())
        for k in range(5):
            point, verdict, alone = moved(slice(k, k + 1), start[k : k + 1])
            torch.testing.assert_close(points[k : k + 1], point, rtol=0, atol=1e-5)
            assert torch.equal(verdicts[k : k + 1], verdict)
            assert torch.equal(resisted[k : k + 1], alone)


def test_failed_searches_for_one_member_are_counted() -> None:
    """A member whose margin is more than ε can change resists; one that is fooled does not count."""
    case = planted("linf", n=20)
    for name in ("pgd", "saddle"):
        s = searching(case)
        with attacking(case.rec):
            attacks.create(name, case.threat).search(s)
        assert not bool((s.resisted.bool() & s.foolable).any())
        assert bool((s.resisted.bool() == ~s.foolable).all()) or name != "pgd"
        assert 0 < int(s.resisted.bool().sum()) < s.resisted.numel()


class Curved(nn.Module):
    """Two classes with z₀ − z₁ = `margin`(x₁, x₂). All labels here are 0: fooled where the margin is negative."""

    def __init__(self, margin: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, x: Tensor) -> Tensor:
        gap = self.margin(x[:, 0], x[:, 1])
        return torch.stack([gap / 2, -gap / 2], dim=1)


X, Y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)


def _crossroads() -> RandomizedEnsemble:
    """A to the right, B to the left, C above, each behind a parabola.

    A and B are never fooled together, for x₁ cannot have both signs; A and C are, at (0.6, 0.6), and B and C. The best
    set is {A, C}, 0.69.
    """
    margins = (
        lambda a, b: 0.4 - a + 0.3 * b * b,
        lambda a, b: 0.4 + a + 0.3 * b * b,
        lambda a, b: 0.4 - b + 0.3 * a * a,
    )
    return RandomizedEnsemble([Curved(margin) for margin in margins], [0.4, 0.31, 0.29])


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("name", ["lattice", "saddle"])
def test_a_failed_step_of_the_climb_is_taken_back(name: str, norm: str) -> None:
    """In order of weight: A, then A with B, which fails, then A with C from where A was fooled."""
    for seed in range(5):
        attack = attacks.create(name, Threat(norm, 1.0, None), orders=1, restarts=1, seed=seed)
        assert attack(_crossroads(), X, Y).errors.tolist() == [[True, False, True]]


def test_the_saddle_climber_linearizes_again_where_it_arrives() -> None:
    """The first model at 0 leads to (1, 0), where 1.1 − x₁ − x₁x₂ is still 0.1; the one there leads to (0.71, 0.71)."""
    threat = Threat("l2", 1.0, None)
    alone = RandomizedEnsemble([Curved(lambda a, b: 1.1 - a - a * b)])
    both = RandomizedEnsemble([*alone.members, Curved(lambda _, b: 0.6 - b)])
    for rec in (alone, both):
        assert attacks.create("saddle", threat, orders=1, restarts=1)(rec, X, Y).risk.tolist() == [1.0]
    once = attacks.create("saddle", threat, orders=1, restarts=1, moves=1)
    assert once(alone, X, Y).risk.tolist() == [0.0]
