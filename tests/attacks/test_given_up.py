"""Inputs that attacks give up: joint attacks and random search make no passes where every boundary is far."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import randens
from randens.attacks import suite
from randens.attacks.search import Search

THREAT = randens.Threat("linf", 0.1, bounds=None)


def member(weight: list[float], bias: float) -> nn.Linear:
    """Two classes; class 0 wins by weight·x + bias."""
    linear = nn.Linear(len(weight), 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([weight, [0.0] * len(weight)]))
        linear.bias.copy_(torch.tensor([bias, 0.0]))
    return linear


def zeros(n: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(n, 2), torch.zeros(n, dtype=torch.int64)


class Rounded(nn.Module):
    """A member whose gradient is zero everywhere."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + (torch.round(x * 1000) / 1000 - x).detach() - x + x.detach())


def test_joint_attacks_leave_out_inputs_that_resist_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of 0.1 moves these margins by 0.2 of 1 at most."""
    rec = randens.RandomizedEnsemble([member([1, 1], 1.0), member([1, -1], 1.0)])
    called: list[int] = []
    monkeypatch.setattr(suite._Adaptive, "search", lambda _, s: called.append(len(s.unfinished)))
    found = suite.Suite(THREAT)(rec, *zeros(3))
    assert not found.errors.any()
    assert not called


def test_joint_attacks_take_members_in_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either member can be fooled, but not both: the opposite change is needed."""
    rec = randens.RandomizedEnsemble([member([1, 0], 0.05), member([-1, 0], 0.05)])
    called: list[int] = []
    monkeypatch.setattr(suite._Adaptive, "search", lambda _, s: called.append(len(s.unfinished)))
    found = suite.Suite(THREAT)(rec, *zeros(3))
    assert found.risk.tolist() == [0.5] * 3
    assert called == [3]


def test_joint_attacks_take_inputs_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    rec = randens.RandomizedEnsemble([member([1, 1], 1.0), Rounded(member([1, -1], 1.0))])
    called: list[int] = []
    monkeypatch.setattr(suite._Adaptive, "search", lambda _, s: called.append(len(s.unfinished)))
    suite.Suite(THREAT)(rec, *zeros(3))
    assert called == [3]


def test_thorough_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rec = randens.RandomizedEnsemble([member([1, 1], 1.0)])
    called: list[int] = []
    monkeypatch.setattr(suite._Adaptive, "search", lambda _, s: called.append(len(s.unfinished)))
    suite.Suite(THREAT, preset="thorough")(rec, *zeros(2))
    assert called == [2, 2]


def test_inputs_left_out_return_after_an_exception() -> None:
    s = Search(randens.RandomizedEnsemble([member([1, 1], 1.0)]), *zeros(3), THREAT)

    def interrupted() -> None:
        with s.leaving_out(torch.tensor([True, False, True])):
            assert s.unfinished.tolist() == [1]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert s.unfinished.tolist() == [0, 1, 2]


def test_random_search_gives_up_far_members_only() -> None:
    """By a quarter of the queries the far member has at least 0.8 of its margin left, the near one is fooled."""
    queries = 40
    far = randens.attacks.RandomSearch(THREAT, queries=queries)(member([1, 1], 1.0), *zeros(4))
    assert far.cost.forwards / 4 <= queries / 4 + 5
    near = randens.attacks.RandomSearch(THREAT, queries=queries)(member([1, 1], 0.19), *zeros(4))
    assert near.errors.all()


def test_random_search_goes_on_where_a_margin_shrinks() -> None:
    """The best change leaves 0.05 of the margin: no quarter of the queries ends the search."""
    queries = 40
    close = randens.attacks.RandomSearch(THREAT, queries=queries)(member([1, 1], 0.21), *zeros(4))
    assert not close.errors.any()
    assert close.cost.forwards / 4 >= queries


class Step(nn.Module):
    """A tree of one threshold, which no change of 0.1 reaches: the margin is 1 at every point tried."""

    def forward(self, x: Tensor) -> Tensor:
        above = (x[:, :1] > 0.2).float()
        return torch.cat([1 - above, above], dim=1)


class Tie(nn.Module):
    """Equal logits at 0, which count as right; elsewhere the margin is larger."""

    def forward(self, x: Tensor) -> Tensor:
        gap = x.abs().sum(dim=1, keepdim=True)
        return torch.cat([gap, torch.zeros_like(gap)], dim=1)


@pytest.mark.parametrize("kind", [Step, Tie])
def test_random_search_goes_on_where_margins_say_nothing(kind: type[nn.Module]) -> None:
    queries = 40
    found = randens.attacks.RandomSearch(THREAT, queries=queries)(kind(), *zeros(4))
    assert not found.errors.any()
    assert found.cost.forwards / 4 >= queries
