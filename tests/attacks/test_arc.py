"""ARC skips passes that its members' linear models make unnecessary, and changes no verdict by that."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.cases import case
from tests.attacks.planted import linear, planted

from randens import RandomizedEnsemble, Threat, attacks
from randens.attacks import walk
from randens.attacks.search import Search


def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for every verdict and give up no input."""
    monkeypatch.setattr(walk, "_NEAR", float("inf"))
    monkeypatch.setattr(walk, "_PATIENCE", 10**9)


def far_apart(members: int, distance: float) -> RandomizedEnsemble:
    """Binary members on a line in three dimensions, each `distance` from the origin's decision boundary (linf)."""
    weight = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    bias = torch.tensor([2 * distance, 0.0])
    return RandomizedEnsemble([linear(weight, bias) for _ in range(members)])


@pytest.mark.parametrize(("distance", "steps"), [(1.4, 2), (1.3, 20)])
def test_inputs_out_of_reach_are_given_up(distance: float, steps: int) -> None:
    rec, n = far_apart(3, distance), 4
    x, y = torch.zeros(n, 3), torch.zeros(n, dtype=torch.int64)
    found = attacks.create("arc-r", Threat("linf", 1.0, None), steps=20)(rec, x, y)
    assert found.risk.tolist() == [0.0] * n
    # One plane per member and step: a forward and, with two classes, one backward pass.
    assert found.cost.backwards == n * 3 * steps
    # Besides, the clean pass: no step came near enough to a boundary for a verdict, and nothing was found.
    assert found.cost.forwards == n * 3 * (steps + 1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["arc", "arc-r"])
def test_nothing_is_lost_on_linear_members(name: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = planted(norm, n=20, seed=3)
    short = attacks.create(name, given.threat)(given.rec, given.x, given.y)
    everything(monkeypatch)
    full = attacks.create(name, given.threat)(given.rec, given.x, given.y)
    assert short.risk.tolist() == full.risk.tolist()
    assert short.cost.forwards < full.cost.forwards


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_nothing_is_lost_on_networks(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = case("convnet", norm, n=32)
    short = attacks.create("arc-r", given.threat)(given.rec, given.x, given.y)
    everything(monkeypatch)
    full = attacks.create("arc-r", given.threat)(given.rec, given.x, given.y)
    assert short.risk.tolist() == full.risk.tolist()
    assert short.cost.forwards < full.cost.forwards


def test_planes_are_kept_where_pulls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls, planes, refused = [0], [0], [0]
    ask, judge = Search.hyperplanes, Search.judge

    def hyperplanes(
        s: Search, rows: torch.Tensor, points: torch.Tensor, index: int, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        planes[0] += len(rows)
        return ask(s, rows, points, index, count)

    def judged(
        s: Search, rows: torch.Tensor, points: torch.Tensor, first: torch.Tensor | None = None
    ) -> torch.Tensor:
        errors = judge(s, rows, points, first)
        pulls[0] += len(rows)
        # With one of two members fooled, a move is refused exactly if it fools no member.
        refused[0] += int((~errors.any(dim=1)).sum())
        return errors

    monkeypatch.setattr(Search, "hyperplanes", hyperplanes)
    monkeypatch.setattr(Search, "judge", judged)
    # The members' gradients are opposite; one is wrong from the start, so a step must fool at least one.
    weight = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    members = [linear(weight, torch.tensor([-0.5, 0.0])), linear(-weight, torch.tensor([2.0, 0.0]))]
    found = attacks.create("arc", Threat("linf", 1.0, None), steps=5)(
        RandomizedEnsemble(members), torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    )
    assert found.risk.tolist() == [0.5]
    assert (pulls[0], refused[0] > 0) == (10, True)
    # Each member's plane is taken anew only after the point has moved.
    assert planes[0] < pulls[0]
