"""Random classifiers as mixtures of frozen draws: deterministic, independent of the batch, and without side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from randens import RandomizedEnsemble, RandomizedModel, Threat, attacks
from randens.core.errors import InputError
from randens.random_model import FrozenDraw, expanded
from randens.witness.fingerprints import fingerprint

THREAT = Threat("linf", 0.1)


class Noise(nn.Module):
    """Adds noise from torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x + 0.5 * torch.randn_like(x))
        return z


class GivenNoise(Noise):
    """Adds noise from the generator that it is given."""

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        z: Tensor = self.linear(x + 0.5 * torch.randn(x.shape, generator=generator))
        return z


class Branching(Noise):
    """Takes a branch that depends on its random number, which torch cannot batch."""

    def forward(self, x: Tensor) -> Tensor:
        shift = int(torch.randint(0, 5, (1,)))
        z: Tensor = self.linear(x.roll(shift, dims=1) + 0.1 * torch.randn_like(x))
        return z


class Weights(Noise):
    """Draws its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.linear.weight + torch.randn_like(self.linear.weight), self.linear.bias)


def linear(seed: int) -> nn.Module:
    """A factory that uses the global generator, which is seeded for it."""
    del seed
    return nn.Linear(5, 3)


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)).train()


KINDS: dict[str, Callable[[], Any]] = {
    "global": Noise,
    "generator": GivenNoise,
    "branching": Branching,
    "weights": Weights,
    "dropout": dropout,
    "factory": lambda: linear,
}


def model(kind: str, draws: int = 4) -> RandomizedModel:
    torch.manual_seed(3)
    return RandomizedModel(KINDS[kind](), draws, seed=5)


def inputs(n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_draw_is_one_classifier_whatever_the_batch(kind: str) -> None:
    x, _ = inputs()
    random = model(kind)
    draw = random.freeze(7)
    with torch.no_grad():
        z = draw(x)
        torch.testing.assert_close(draw(x[[4, 1, 2]]), z[[4, 1, 2]])
        torch.testing.assert_close(torch.cat([draw(row[None]) for row in x]), z)
        torch.testing.assert_close(random.freeze(7)(x), z)
        assert not torch.allclose(random.freeze(8)(x), z)


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_has_a_draw_of_its_own_when_the_model_answers(kind: str) -> None:
    x, _ = inputs(1)
    random = model(kind)
    with torch.no_grad():
        rows = random(x.repeat(6, 1))
        assert len({tuple(row) for row in rows.tolist()}) > 1
        assert not torch.equal(random(x.repeat(6, 1)), rows)


def test_draws_have_the_law_of_the_model() -> None:
    """Noise of standard deviation 0.5 before a linear layer: logits have mean Wx + b and covariance 0.25 W Wᵀ."""
    random = model("global")
    x, _ = inputs(1)
    assert isinstance(random.module, Noise)
    layer = random.module.linear
    with torch.no_grad():
        mean, covariance = layer(x)[0], 0.25 * layer.weight @ layer.weight.T
        frozen = torch.cat([random.freeze(s)(x) for s in range(800)])
        rows = random.sample(x.repeat(5000, 1), 9)
    for z, slack in ((frozen, 0.08), (rows, 0.03)):
        assert float((z.mean(dim=0) - mean).abs().max()) < slack
        assert float((z.T.cov() - covariance).abs().max()) < slack


@pytest.mark.parametrize("kind", KINDS)
def test_neither_generators_nor_modes_are_touched(kind: str) -> None:
    x, y = inputs()
    random = model(kind)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    modes = [m.training for m in random.modules()]
    attacks.create("adaptive-pgd-margin", THREAT, steps=2)(random, x, y)
    random(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert [m.training for m in random.modules()] == modes


def test_layers_named_active_stay_random_in_eval_mode() -> None:
    x, _ = inputs()
    net = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 3)).eval()
    random = RandomizedModel(net, 4, active=nn.Dropout).eval()
    assert not torch.equal(random.freeze(1)(x), random.freeze(2)(x))
    assert not net[1].training
    still = RandomizedModel(net, 4)
    assert torch.equal(still.freeze(1)(x), still.freeze(2)(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["eot", "saddle"])
def test_attacks_take_a_random_model_and_report_its_frozen_draws(kind: str, name: str) -> None:
    x, y = inputs()
    random = model(kind)
    options = {"steps": 3, "samples": 2} if name == "eot" else {"restarts": 1}
    found = attacks.create(name, THREAT, **options)(random, x, y)
    assert found.errors.shape == (6, 4)
    draws = random.ensemble()
    assert torch.equal(draws.errors(found.x_adv, y), found.errors)
    assert float((found.x_adv - x).abs().max()) <= 0.1 + 1e-6
    assert bool((found.risk >= found.clean_errors.double().mean(dim=1) - 1e-12).all())
    assert found.cost.forwards > 0


def test_an_ensemble_of_random_members_is_expanded_with_its_probabilities() -> None:
    plain = nn.Linear(5, 3)
    rec = RandomizedEnsemble([model("global"), plain, model("dropout")], [0.5, 0.3, 0.2])
    assert rec.stochastic
    finite = expanded(rec)
    assert len(finite) == 9
    np.testing.assert_allclose(finite.probs.numpy(), [0.125] * 4 + [0.3] + [0.05] * 4)
    assert finite.members[4] is plain
    assert not finite.stochastic
    assert fingerprint(finite) != fingerprint(expanded(rec, first=2))
    seeds = [int(m.seed) for m in finite.members if isinstance(m, FrozenDraw)]
    assert seeds == [0, 1, 2, 3, 0, 1, 2, 3]
    x, y = inputs()
    with pytest.raises(InputError, match="answer at random"):
        rec.errors(x, y)
    assert rec(x).shape == (6, 3)
    assert attacks.create("fgsm", THREAT)(rec, x, y).errors.shape == (6, 9)


def test_expected_gradients_average_over_fresh_draws() -> None:
    """On a noisy linear model every draw's margin has the same gradient, so the mean is exact."""
    from randens.attacks.eot import draw_gradients, sources

    random = model("global")
    x, y = inputs()

    def loss(z: Tensor, labels: Tensor, probs: Tensor) -> Tensor:
        return probs.to(z.dtype) @ z.gather(2, labels.expand(len(z), -1).unsqueeze(2)).squeeze(2)

    found = draw_gradients(sources(random.ensemble()), x, y, loss, 7, seed=3)
    assert found.z.shape == (7, 6, 3)
    assert isinstance(random.module, Noise)
    torch.testing.assert_close(found.mean, random.module.linear.weight[y].detach())
    assert not torch.allclose(found.z[0], found.z[1])


def failing(seed: int) -> nn.Module:
    if seed == 17:
        raise ValueError("no such checkpoint")
    return nn.Linear(5, 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomizedModel(Noise(), draws=1), "draws is 1; it must be a whole number from 2 to 65536"),
        (lambda: RandomizedModel(Noise(), draws=True), "draws is True"),
        (lambda: RandomizedModel(3), "model is int"),  # type: ignore[arg-type]
        (lambda: RandomizedModel(failing, 64).ensemble(), r"the factory fails at seed 17 \(ValueError"),
        (lambda: RandomizedModel(lambda s: s, 4).freeze(2), "the factory returned a int"),  # type: ignore
        (lambda: RandomizedModel(Noise(), active=nn.Dropout), "active is Dropout; Noise has no such layer"),
        (lambda: RandomizedModel(Noise()).freeze(-1), "seed is -1"),
        (
            lambda: RandomizedModel(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)).train()),
            "batch normalization in training mode",
        ),
    ],
)
def test_bad_models_are_refused_in_one_sentence(make: object, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        make()  # type: ignore[operator]
    assert "\n" not in str(error.value)
