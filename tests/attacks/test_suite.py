"""Presets, and inputs that attacks give up: no passes where every boundary is far."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.attacks.cases import BUILT_IN
from tests.attacks.planted import linear
from tests.attacks.test_search import Quantized
from torch import Tensor, nn

import randens
from randens.attacks import Search, suite

THREAT = randens.Threat("linf", 0.1, bounds=None)


def member(weight: list[float], bias: float) -> nn.Module:
    """Two classes; class 0 wins by weight·x + bias."""
    return linear(torch.tensor([weight, [0.0] * len(weight)]), torch.tensor([bias, 0.0]))


def zeros(n: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(n, 2), torch.zeros(n, dtype=torch.int64)


def test_presets_are_attacks_and_their_parts_differ() -> None:
    for preset in suite.PRESETS:
        made = randens.attacks.create(preset, THREAT)
        assert (made.name, made) == (preset, suite.Suite(THREAT, preset=preset))
        parts = suite.parts(preset, THREAT)
        assert len({part.name for part in parts}) == len(parts)
        assert all(part.threat is THREAT for part in parts)
    assert randens.attacks.create("suite", THREAT) == randens.attacks.create("standard", THREAT)


@pytest.mark.parametrize("name", BUILT_IN)
def test_names_are_found_in_any_case_and_told_again(name: str) -> None:
    made = randens.attacks.create(f" {name.upper()} ", THREAT)
    assert made == randens.attacks.create(name, eps=0.1).__class__(**vars(made))
    assert made.name == ("standard" if name == "suite" else name)
    assert dataclasses.replace(made, seed=3).name == made.name


def test_every_preset_attacks_and_names_the_part_that_found_the_worst_case() -> None:
    """A change of 0.1 fools this member at once."""
    for preset, source in (("fast", "saddle"), ("standard", "saddle"), ("thorough", "fgsm")):
        found = randens.attacks.create(preset, THREAT)(member([1, 1], 0.05), *zeros(2))
        assert found.risk.tolist() == [1.0, 1.0]
        assert found.sources == (source, source)


@pytest.mark.parametrize(
    ("members", "preset", "attacked"),
    [
        # A change of 0.1 moves these margins by 0.2 of 1 at most: every search for one of them alone fails.
        ([member([1, 1], 1.0), member([1, -1], 1.0)], "standard", [0]),
        # Either member can be fooled, but not both: the opposite change is needed.
        ([member([1, 0], 0.05), member([-1, 0], 0.05)], "standard", [3]),
        # Searches without gradients tell nothing.
        ([member([1, 1], 1.0), Quantized(member([1, -1], 1.0))], "standard", [3]),
        ([member([1, 1], 1.0)], "thorough", [3]),
    ],
)
def test_joint_attacks_leave_out_inputs_that_resist_alone(
    members: list[nn.Module], preset: str, attacked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    monkeypatch.setattr(suite._Adaptive, "search", lambda _, s: called.append(len(s.open)))
    s = Search(randens.RandomizedEnsemble(members).eval().requires_grad_(False), *zeros(3), THREAT)
    suite.Suite(THREAT, preset=preset).search(s)
    assert called == attacked
    assert not bool(s.left_out.any())


@pytest.mark.parametrize(
    ("bias", "fooled", "queries"), [(1.0, False, 15), (0.19, True, 45), (0.21, False, 43)]
)
def test_random_search_gives_up_far_members_only(bias: float, fooled: bool, queries: int) -> None:
    """By a quarter of the queries the far member has at least 0.8 of its margin left; the last one ends at 0.05."""
    found = randens.attacks.RandomSearch(THREAT, queries=40)(member([1, 1], bias), *zeros(4))
    assert bool(found.errors.all()) == bool(found.errors.any()) == fooled
    assert found.cost.forwards / 4 <= queries
    assert fooled or found.cost.forwards / 4 >= queries - 5


class Step(nn.Module):
    """A tree of one threshold, which no change of 0.1 reaches: the margin is 1 at every point tried."""

    def forward(self, x: Tensor) -> Tensor:
        above = (x[:, :1] > 0.2).float()
        return torch.cat([1 - above, above], dim=1)


def test_random_search_goes_on_where_margins_say_nothing() -> None:
    found = randens.attacks.RandomSearch(THREAT, queries=40)(Step(), *zeros(4))
    assert not found.errors.any()
    assert found.cost.forwards / 4 >= 40
