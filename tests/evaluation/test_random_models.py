"""Randomized defenses evaluated on fresh draws: intervals that cover the truth, known cases, bad models."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.randomized_defenses import DIGITS, NoisyLinear, noisy_linear
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from tests.evaluation.evaluated import evaluate_random
from torch import Tensor, nn

import randens
from randens import RandomizedEnsemble, RandomizedModel, Threat, attacks, audit
from randens.attacks import Attack
from randens.core.errors import InputError, RandensError
from randens.evaluation import RandomEvaluation, random_models
from randens.evaluation.random_models import score
from randens.risk.intervals import Scores, bounded_mean

THREAT = Threat("linf", 0.1, bounds=None)
EPS = 0.1


def quick(threat: Threat) -> list[Attack]:
    return [
        attacks.create("eot", threat, steps=8, samples=4),
        attacks.create("adaptive-pgd-margin", threat, steps=5),
    ]


def optimal(model: NoisyLinear, x: Tensor, y: Tensor) -> Tensor:
    """The best attack on a noisy linear model: every coordinate against the label, to the edge of the ball."""
    return x - EPS * (2 * y[:, None] - 1) * model.w.detach().sign()


@pytest.mark.parametrize("p", [0.03, 0.3, 0.6])
@pytest.mark.parametrize("n", [5, 40])
def test_bounded_means_cover_zeros_and_ones_exactly_as_often_as_promised(p: float, n: int) -> None:
    """All n + 1 counts enumerated: the chance that the interval contains p."""
    chance = 0.0
    for count in range(n + 1):
        found = bounded_mean([1.0] * count + [0.0] * (n - count), 0.9)
        chance += binom.pmf(count, n, p) if found.low <= p <= found.high else 0.0
    assert chance >= 0.9


def test_bounded_means_use_the_variance_of_many_values() -> None:
    steady = np.full(20_000, 0.5) + 0.01 * np.resize([1, -1], 20_000)
    wild = np.resize([0.0, 1.0], 20_000)
    narrow, wide = bounded_mean(steady), bounded_mean(wild)
    assert narrow.high - narrow.low < 0.2 * (wide.high - wide.low)
    # Maurer and Pontil's half-width, with a quarter of 5 % in each of two tails and two bounds.
    scale = np.log(2 / 0.0125)
    half = np.sqrt(2 * steady.var(ddof=1) * scale / 20_000) + 7 * scale / (3 * 19_999)
    assert narrow.high == pytest.approx(0.5 + half, abs=1e-6)
    for bad in ([], [1.2], [float("nan")]):
        with pytest.raises(InputError, match="values"):
            bounded_mean(bad)


@pytest.mark.parametrize("shared", [False, True])
def test_intervals_cover_the_closed_form_in_at_least_93_of_100_repetitions(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaussian noise before a linear model under its optimal attack: the truth is Φ of the margin.

    Over draws for fixed inputs, and over inputs and draws for their distribution, whose truth is a mean over many.
    """
    monkeypatch.setattr(random_models, "_BUILDS", 40)
    many_model, (many_x, many_y) = noisy_linear(200_000, seed=99)
    population = float(many_model.truth(many_x, many_y, EPS).mean())
    model, (x, y) = noisy_linear(40)
    truth = float(model.truth(x, y, EPS).mean())
    assert 0.4 < truth < 0.75

    def made(linear: NoisyLinear) -> RandomizedModel:
        if not shared:
            return RandomizedModel(linear, 8)
        return RandomizedModel(lambda _: Offset(linear), 8)

    over_draws = over_inputs = 0
    for repetition in range(100):
        fixed = score(
            RandomizedEnsemble([made(model)]), optimal(model, x, y), y, 10, seed=1_000_000 * (repetition + 1)
        )
        assert (fixed.shared > 1) == shared
        found = fixed.over_draws(0.95)
        over_draws += found.low <= truth <= found.high
        other, (xs, ys) = noisy_linear(40, seed=repetition)
        sampled = score(
            RandomizedEnsemble([made(other)]),
            optimal(other, xs, ys),
            ys,
            10,
            seed=1_000_000 * (repetition + 1),
        )
        found = sampled.over_inputs(0.95)
        over_inputs += found.low <= population <= found.high
        assert shared or found.high - found.low < 0.6
    assert over_draws >= 93
    assert over_inputs >= 93


class Offset(nn.Module):
    """One draw of a noisy linear model as a module: the noise enters through w·noise alone."""

    noise: Tensor

    def __init__(self, linear: NoisyLinear) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("noise", linear.sigma * torch.randn(len(linear.w)))

    def forward(self, x: Tensor) -> Tensor:
        margin = (x + self.noise) @ self.linear.w
        return torch.stack([-margin, margin], dim=1) / 2


def test_the_noisy_linear_model_has_its_closed_form_accuracy() -> None:
    linear, (x, y) = noisy_linear(60)
    truth = float(linear.truth(x, y, EPS).mean())
    found = evaluate_random(RandomizedModel(linear, 16), (x, y), quick(THREAT))
    assert found.robust_over_draws.low <= truth <= found.robust_over_draws.high
    assert found.robust_over_draws.high - found.robust_over_draws.low < 0.03
    assert found.robust.low < found.robust_over_draws.low
    assert (
        found.natural_over_draws.low <= float(linear.truth(x, y, 0.0).mean()) <= found.natural_over_draws.high
    )
    # The attack that was found is the optimal one, to within what the choice between draws leaves open.
    assert found.x_adv is not None
    assert float(linear.truth(x, y, EPS).mean()) >= float(linear.truth(found.x_adv, y, 0.0).mean()) - 0.01
    # A single draw gives another number.
    assert found.single_draw < truth - 0.2
    assert found.scoring_draws >= 16
    assert found.scores.shared == 1


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    linear, data = noisy_linear(20)
    model = RandomizedModel(linear, 4)
    seeded = [attacks.create("eot", THREAT, steps=4, samples=2, seed=seed) for seed in (0, 0, 1)]
    once, twice, other = (evaluate_random(model, data, attack).to_json() for attack in seeded)
    assert once == twice
    assert once["robust"] != other["robust"]


def test_draws_are_added_until_the_attacked_ones_are_no_longer_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On few draws the attack fits their noise; the gap to fresh draws closes as K grows."""
    model = DIGITS["dropout"](32)
    images = randens.data.load("digits", "test").subset(slice(0, 30))
    attack = attacks.create("adaptive-pgd-margin", Threat("linf", 0.1), steps=6)
    monkeypatch.setattr(random_models, "TOLERANCE", 0.9)
    early = evaluate_random(model, images, attack)
    assert (early.draws, early.converged) == (8, True)
    monkeypatch.setattr(random_models, "TOLERANCE", 1e-2)
    monkeypatch.setattr(random_models, "_MOST", 32)
    found = evaluate_random(model, images, attack)
    assert found.draws == 32
    assert early.fresh - early.in_sample > found.fresh - found.in_sample


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 12))
def test_attempts_are_unbiased(draws_made: int, right: int, attempts: int) -> None:
    right, attempts = min(right, draws_made), min(attempts, draws_made)
    values = np.array([[1.0] * right + [0.0] * (draws_made - right)])
    found = Scores(values, values.astype(int), np.zeros(1, int), np.zeros(1, dtype=np.int64)).after(
        attempts, 0.95
    )
    assert found == pytest.approx(math.comb(right, attempts) / math.comb(draws_made, attempts))


def test_votes_take_the_majority_and_every_draw_once() -> None:
    predicted, y = np.array([[0, 0, 1, 1, 1, 0], [2, 2, 2, 1, 0, 1]]), np.array([0, 1])
    scores = Scores((predicted == y[:, None]).astype(float), predicted, y, np.arange(2))
    assert scores.votes(3, 0.95) == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert scores.votes(1, 0.95) == pytest.approx(scores.values.mean())
    assert scores.votes(2, 0.95) == pytest.approx(((1 + 0 + 0.5) / 3 + (0 + 0.5 + 0.5) / 3) / 2)
    with pytest.raises(InputError, match="votes is 7"):
        scores.votes(7, 0.95)


def test_retries_hurt_and_votes_help_a_noisy_model() -> None:
    linear, data = noisy_linear(40)
    found = evaluate_random(RandomizedModel(linear, 8), data, quick(THREAT))
    assert float(found.after(1)) == pytest.approx(float(found.robust))
    assert found.after(8) < found.after(2) < found.after(1)
    assert found.after(2).low <= found.after(2) <= found.after(2).high
    assert found.votes(9) > found.votes(1)
    shown = evaluate_random(RandomizedModel(linear, 8), data, quick(THREAT), attempts=[2])
    assert shown.more["robust after 2 attempts"] == found.after(2)
    assert len(shown.to_json()["more"]) == len(shown.table().records) - 4 == 1
    with pytest.raises(InputError, match="attempts is inf"):
        evaluate_random(RandomizedModel(linear, 8), data, quick(THREAT), attempts=float("inf"))
    with pytest.raises(InputError, match="draw is 'client'"):
        found.after(2, "client")


@pytest.mark.parametrize("case", DIGITS)
def test_randomized_defenses_on_the_digits(case: str, tmp_path: Path) -> None:
    threat = Threat("linf", 0.1)
    images = randens.data.load("digits", "test").subset(slice(0, 30))
    model = DIGITS[case](8)
    found = evaluate_random(model, images, quick(threat))
    assert found.natural.value > 0.75
    assert found.robust.value < found.natural.value - 0.1
    # A single draw's accuracy is far off: too low, as it counts chance as attack success.
    assert found.single_draw < found.robust_over_draws.low - 0.03
    assert found.x_adv is not None
    assert float((found.x_adv - images.x).abs().max()) <= 0.1 + 1e-6
    # Scoring the perturbed inputs again with other draws gives the same result.
    again = score(RandomizedEnsemble([model]), found.x_adv, images.y, 60, seed=77).over_draws(0.999)
    assert again.low <= found.robust_over_draws.high
    assert again.high >= found.robust_over_draws.low
    # No single attack is better than the choice between all of them, except by chance.
    assert found.robust.value <= min(a.accuracy for a in found.adversaries) + 0.03
    document = json.loads(found.save(tmp_path / "found.json").read_text(encoding="utf-8"))
    assert RandomEvaluation.from_json(document).to_json() == document
    assert document["robust"]["value"] == float(found.robust)
    assert "fresh draws per input that answer" in " ".join(document["sentences"])
    assert "robust" in repr(found)
    assert len(found.to_frame()) == 4


def test_an_ensemble_with_random_members_is_exact_over_members() -> None:
    """Half the time the noisy model, half the time a constant one: accuracies are halved and added."""

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[1.0, 0.0]]).expand(len(x), 2) + 0 * x[:, :1]

    linear, (x, y) = noisy_linear(60)
    rec = RandomizedEnsemble([RandomizedModel(linear, 8), Constant()], [0.5, 0.5])
    found = evaluate_random(rec, (x, y), quick(THREAT))
    truth = 0.5 * float(linear.truth(x, y, EPS).mean()) + 0.5 * float((y == 0).double().mean())
    assert found.robust_over_draws.low - 0.005 <= truth <= found.robust_over_draws.high


def test_the_audit_passes_a_model_with_good_gradients_and_enough_draws() -> None:
    linear, (x, y) = noisy_linear(24)
    found = audit(RandomizedModel(linear, 16), (x, y), threat=THREAT)
    names = [check.name for check in found.checks]
    assert names == ["random-at-all", "seed-decides", "gradients-above-noise", "saturated-in-draws"]
    assert found["gradients-above-noise"].passed


def test_the_audit_sees_gradients_that_are_noise_and_draws_that_are_too_few() -> None:
    """Random masks that hide all but a few pixels, each draw another sign: single gradients say nothing."""

    class Scrambled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((400,), 0.05))

        def forward(self, x: Tensor) -> Tensor:
            margin = x @ self.w + 400 * (x * torch.randn_like(x)).mean(dim=1)
            return torch.stack([-margin, margin], dim=1)

    generator = torch.Generator().manual_seed(1)
    x = torch.rand(24, 400, generator=generator)
    y = torch.ones(24, dtype=torch.int64)
    found = audit(RandomizedModel(Scrambled(), 4), (x, y), eps=0.05)
    assert not found["gradients-above-noise"].passed
    assert "samples=128" in found["gradients-above-noise"].advice
    assert not found.passed


def test_a_deterministic_model_is_recognised_and_evaluated_exactly() -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 2)
    x, y = torch.rand(30, 8), torch.randint(0, 2, (30,))
    found = evaluate_random(RandomizedModel(net, 64), (x, y), quick(THREAT))
    exact = attacks.create("adaptive-pgd-margin", THREAT, steps=5)(net, x, y)
    assert not found.randomness.random
    assert found.draws == found.scoring_draws == 1
    assert found.robust.value <= exact.robust_accuracy + 1e-9
    assert found.robust_over_draws.low == found.robust_over_draws.high == found.robust.value
    assert found.fresh == found.in_sample
    assert found.sentences()[0].startswith("The model is deterministic")
    assert not audit(RandomizedModel(net, 4), (x, y), threat=THREAT)["random-at-all"].passed


class Unseeded(nn.Module):
    """Random numbers from NumPy's global generator, which no seed of torch's reaches."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2] + float(np.random.default_rng().normal())  # the same for both logits would not show


class Unequal(nn.Module):
    """Another number of classes for every third draw."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3 if seed % 3 == 2 else 2)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x)
        return z


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: RandomizedModel(Unseeded(), 4), "model ignores its seed"),
        (lambda: RandomizedModel(Unequal, 4), "Unequal returned 3 logits, and 2 were"),
        (Unseeded, "the model is random: .* wrap it in randens.RandomizedModel"),
    ],
)
def test_models_that_cannot_be_evaluated_are_refused_in_one_sentence(model: object, said: str) -> None:
    x, y = torch.rand(10, 8), torch.randint(0, 2, (10,))
    with pytest.raises(RandensError, match=said) as error:
        evaluate_random(model(), (x, y), quick(THREAT))  # type: ignore[operator]
    assert "\n" not in str(error.value)
