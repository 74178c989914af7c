"""Presets, and inputs that attacks give up: no passes where every boundary is far."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.cases import convnet, digits
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


class Masked(nn.Module):
    """The same answers without gradients."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).detach()


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.2), ("l2", 1.0), ("l1", 5.0)])
def test_square_finds_without_gradients_most_of_what_gradients_find(norm: str, eps: float) -> None:
    x, y = (part[:24] for part in digits("test"))
    threat = randens.Threat(norm, eps)
    white = randens.attacks.create("apgd-margin", threat)(convnet(0), x, y)
    blind = randens.attacks.create("square", threat, queries=400)(Masked(convnet(0)), x, y)
    assert float(white.risk.mean()) > 0.5
    assert float(blind.risk.mean()) >= float(white.risk.mean()) - 0.1
    assert blind.cost.backwards == 0


def test_the_suite_asks_square_only_where_gradients_are_missing() -> None:
    x, y = (part[:12] for part in digits("test"))
    threat = randens.Threat("linf", 0.2)
    attack = randens.attacks.create("standard", threat)
    mixed = randens.RandomizedEnsemble([convnet(0), Masked(convnet(1))])
    both = attack(randens.RandomizedEnsemble([convnet(0), convnet(1)]), x, y)
    found = attack(mixed, x, y)
    assert "square" not in both.sources
    assert "square" in found.sources
    assert found.flags["zero_gradient"][1] > 0.5
    assert float(found.risk.mean()) >= float(both.risk.mean()) - 0.1
    assert both.cost.forwards < 5 * 12 * 100


@pytest.mark.parametrize("count", [1, 3])
def test_runs_of_coordinates_where_there_are_no_squares(count: int) -> None:
    """Every coordinate needs its own sign: three members that agree, far enough for no smaller change."""
    weight = [1.0, -1.0, 1.0, 1.0, -1.0, -1.0]
    members = [Masked(member(weight, 0.5)) for _ in range(count)]
    found = randens.attacks.Square(THREAT, queries=200)(
        randens.RandomizedEnsemble(members), torch.zeros(3, 6), torch.zeros(3, dtype=torch.int64)
    )
    assert found.risk.tolist() == [1.0] * 3
