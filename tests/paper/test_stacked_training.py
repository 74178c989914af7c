"""Networks trained side by side are the networks that the engine trains one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from paper.when_does_drawing_pay import by_hand, stacked
from tests.training.small_runs import small
from torch import nn

from randens import models
from randens.attacks.losses import margins
from randens.training import Recipe, train

SETTINGS = {
    "ema": 0.9,
    "validation": {"keep": "last", "steps": 2, "size": 60},
    "sampling": {"method": "uniform"},
}


def _apart(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def test_row_r_goes_through_network_r_mod_s() -> None:
    networks = [
        models.create("mlp", classes=3, input_shape=(1, 2, 2), width=4, depth=1, seed=s) for s in range(3)
    ]
    x = torch.rand(6, 1, 2, 2)
    z = stacked.Stack(networks)(x)
    for row in range(6):
        assert torch.allclose(z[row], networks[row % 3](x[row : row + 1])[0], atol=1e-6)
    (first, *_) = stacked.Stack(networks).states()
    assert all(torch.equal(first[name], value) for name, value in networks[0].state_dict().items())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_weights_are_the_engines_up_to_rounding(tmp_path: Path, norm: str) -> None:
    recipes = [small(**SETTINGS, seed=seed, threat={"norm": norm}) for seed in (3, 4)]
    made = stacked.train(recipes)
    for recipe, found in zip(recipes, made, strict=True):
        rec = train(recipe, tmp_path / str(recipe.seed))
        assert _apart(rec.members[0], found.members[0]) < 1e-5
    assert _apart(made[0].members[0], made[1].members[0]) > 0.01


@pytest.mark.parametrize("members", [1, 2])
def test_bounded_members_are_the_engines_up_to_rounding(tmp_path: Path, members: int) -> None:
    first = [train(small(**SETTINGS, seed=seed), tmp_path / str(seed)).members[0] for seed in range(members)]
    given = [str(tmp_path / str(seed)) for seed in range(members)]
    recipe = small(**SETTINGS, method="bounded", weight=0.5, members=members, first=given, seed=9)
    rec = train(recipe, tmp_path / "together")
    (found,) = stacked.train([recipe], [first])
    assert max(map(_apart, rec.members, found.members)) < 1e-5
    assert min(map(_apart, first, found.members)) > 1e-3


def test_written_out_gradients_are_those_of_autograd() -> None:
    network = models.create(
        "mlp", classes=4, input_shape=(1, 3, 3), width=5, depth=2, mean=0.4, std=0.3, seed=1
    )
    values = [value.detach().unsqueeze(0) for value in network.parameters()]
    layers = by_hand.Layers.of(values, network)
    x, y = torch.rand(7, 1, 3, 3, requires_grad=True), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    (gradient,) = torch.autograd.grad(torch.sigmoid(-margins(network(x)[None], y)).sum(), x)
    seen = layers.forward(x.detach().view(1, 7, 9))
    slope = by_hand._bounded(seen[-1], torch.nn.functional.one_hot(y, 4)[None].float())
    assert torch.allclose(layers.at_inputs(seen, slope)[0], gradient.view(7, 9), atol=1e-6)


def test_runs_of_several_members_do_not_depend_on_what_is_trained_beside_them() -> None:
    first = [stacked.train([small(**SETTINGS, seed=seed)])[0].members[0] for seed in (1, 2)]
    recipe = small(**SETTINGS, method="bounded", weight=0.5, members=2, seed=9)
    one = stacked.train([recipe], [first])[0]
    both = stacked.train([recipe, recipe.model_copy(update={"seed": 10})], [first, first])
    assert max(map(_apart, one.members, both[0].members)) < 1e-4
    assert max(map(_apart, both[0].members, both[1].members)) > 1e-3
    assert one.passes == both[1].passes > 0


def test_recipes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="more than their seeds"):
        stacked.train([small(**SETTINGS), small(**SETTINGS, epochs=3)])
    staged: Recipe = small(**SETTINGS, method="barre", members=2)
    with pytest.raises(ValueError, match="the engine trains it"):
        stacked.train([staged])
