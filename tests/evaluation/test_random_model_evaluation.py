"""Random defences evaluated on fresh draws: intervals that cover the truth, known cases, bad models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.randomised_defences import DIGITS, NoisyLinear, noisy_linear
from scipy.stats import binom
from torch import Tensor, nn

import randens
from randens import RandomizedEnsemble, RandomizedModel, Threat, attacks
from randens.attacks import Attack
from randens.audit import audit
from randens.core.errors import InputError
from randens.evaluation import (
    StochasticEvaluation,
    bounded_mean,
    draw_statistics,
    evaluate_stochastic,
    exact_binomial,
    score,
    single_draw,
)
from randens.evaluation.draw_statistics import Scores, gradient_noise, randomness
from randens.evaluation.intervals import widened

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


# ---- intervals -----------------------------------------------------------------------------------------------------


def test_exact_binomial_intervals_are_those_of_the_tables() -> None:
    none, half = exact_binomial(0, 10), exact_binomial(5, 10)
    assert (none.low, round(none.high, 4)) == (0.0, 0.3085)
    assert (round(half.low, 4), round(half.high, 4)) == (0.1871, 0.8129)
    assert exact_binomial(10, 10).high == 1.0
    with pytest.raises(InputError, match="successes is 11 of 10"):
        exact_binomial(11, 10)


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


def test_widening_needs_many_inputs_to_be_narrow() -> None:
    inner = exact_binomial(500, 1000)
    few, many = widened(inner, 20), widened(inner, 100_000)
    assert few.low < many.low < inner.low < inner.high < many.high < few.high
    assert many.high - inner.high < 0.01


@pytest.mark.parametrize("shared", [False, True])
def test_intervals_cover_the_closed_form_in_at_least_93_of_100_repetitions(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaussian noise before a linear model under its optimal attack: the truth is Φ of the margin.

    Over draws for fixed inputs, and over inputs and draws for their distribution, whose truth is a mean over many.
    """
    monkeypatch.setattr(draw_statistics, "_BUILDS", 40)
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
        fixed = score(made(model), optimal(model, x, y), y, 10, seed=1_000_000 * (repetition + 1))
        assert (fixed.shared > 1) == shared
        found = fixed.over_draws(0.95)
        over_draws += found.low <= truth <= found.high
        other, (xs, ys) = noisy_linear(40, seed=repetition)
        sampled = score(made(other), optimal(other, xs, ys), ys, 10, seed=1_000_000 * (repetition + 1))
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


def test_answers_that_share_a_draw_are_not_counted_as_independent() -> None:
    """All inputs have one draw in common and one answer: n inputs say no more than one."""
    values = np.repeat(np.array([[1.0, 0.0, 1.0, 1.0] * 5]), 500, axis=0)
    together = Scores(values, values.mean(axis=1, keepdims=True), np.zeros(500, dtype=np.int64))
    apart = Scores(values, values.mean(axis=1, keepdims=True), np.arange(500))
    one, own = together.over_draws(0.95), apart.over_draws(0.95)
    assert float(one) == float(own) == 0.75
    assert own.high - own.low < 0.02
    assert one.high - one.low > 0.3
    wide = together.over_inputs(0.95)
    assert wide.low < one.low
    assert wide.high > one.high


# ---- the linear case -----------------------------------------------------------------------------------------------


def test_the_noisy_linear_model_has_its_closed_form_accuracy() -> None:
    linear, (x, y) = noisy_linear(60)
    truth = float(linear.truth(x, y, EPS).mean())
    found = randens.evaluate(RandomizedModel(linear, 16), (x, y), quick(THREAT))
    assert isinstance(found, StochasticEvaluation)
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
    # All draws have the same gradient: no noise, no conflict.
    assert found.noise.variance < 1e-6
    assert found.noise.reach == pytest.approx(1.0, abs=1e-4)
    assert found.scoring_draws >= 16
    assert found.shared == 1


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    linear, (x, y) = noisy_linear(20)
    model = RandomizedModel(linear, 4)
    once, twice = (evaluate_stochastic(model, (x, y), quick(THREAT), tolerance=0.2) for _ in range(2))
    other = evaluate_stochastic(model, (x, y), quick(THREAT), tolerance=0.2, seed=1)
    assert once.to_json()["points"] == twice.to_json()["points"]
    assert once.to_json()["points"] != other.to_json()["points"]


def test_draws_are_added_until_the_attacked_ones_are_no_longer_fitted() -> None:
    """On few draws the attack fits their noise; the gap to fresh draws closes as K grows."""
    model = DIGITS["dropout"](32)
    images = randens.data.load("digits", "test").subset(slice(0, 30))
    attack = attacks.create("adaptive-pgd-margin", Threat("linf", 0.1), steps=6)
    found = evaluate_stochastic(model, images, attack, tolerance=1e-6)
    assert [stage.draws for stage in found.stages] == [8, 16, 32]
    assert found.stages[0].bias > found.stages[-1].bias
    assert found.stages[0].fresh > found.stages[-1].fresh
    assert not found.converged
    assert "attack more draws (draws=64)" in str(found)
    early = evaluate_stochastic(model, images, attack, tolerance=0.9)
    assert [stage.draws for stage in early.stages] == [8]
    assert early.converged


# ---- worked cases on the digits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DIGITS)
def test_random_defences_on_the_digits(case: str, tmp_path: Path) -> None:
    threat = Threat("linf", 0.1)
    images = randens.data.load("digits", "test").subset(slice(0, 30))
    model = DIGITS[case](8)
    found = evaluate_stochastic(model, images, quick(threat), tolerance=0.1)
    assert found.natural.value > 0.75
    assert found.robust.value < found.natural.value - 0.1
    # A single draw's accuracy is far off: too low, as it counts chance as attack success.
    assert found.single_draw < found.robust_over_draws.low - 0.03
    assert found.spread.deviation > 0.005
    assert 0 < found.noise.reach <= 1 + 1e-6
    assert found.noise.agreement > found.noise.single
    assert found.x_adv is not None
    assert float((found.x_adv - images.x).abs().max()) <= 0.1 + 1e-6
    # Scoring the perturbed inputs again with other draws gives the same result.
    again = score(model, found.x_adv, images.y, 60, seed=77).over_draws(0.999)
    assert again.low <= found.robust_over_draws.high
    assert again.high >= found.robust_over_draws.low
    # No single attack is better than the choice between all of them, except by chance.
    assert found.robust.value <= min(a.accuracy for a in found.adversaries) + 0.03
    document = json.loads(found.save(tmp_path / "found.json").read_text(encoding="utf-8"))
    assert document["robust"]["value"] == pytest.approx(np.mean(document["points"]["robust"]))
    assert "did not know the draws that answer" in document["knowledge"]
    assert document["stages"][-1]["draws"] == found.draws


def test_an_ensemble_with_random_members_is_exact_over_members() -> None:
    """Half the time the noisy model, half the time a constant one: accuracies are halved and added."""

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[1.0, 0.0]]).expand(len(x), 2) + 0 * x[:, :1]

    linear, (x, y) = noisy_linear(60)
    rec = RandomizedEnsemble([RandomizedModel(linear, 8), Constant()], [0.5, 0.5])
    found = evaluate_stochastic(rec, (x, y), quick(THREAT))
    truth = 0.5 * float(linear.truth(x, y, EPS).mean()) + 0.5 * float((y == 0).double().mean())
    assert found.robust_over_draws.low - 0.005 <= truth <= found.robust_over_draws.high
    assert found.members[1] == (float((y == 0).double().mean()),) * 2
    assert found.kind == "global, not random"
    assert isinstance(randens.evaluate(rec, (x, y), quick(THREAT)), StochasticEvaluation)


def test_curves_and_advice_refuse_random_members() -> None:
    linear, data = noisy_linear(8)
    rec = RandomizedEnsemble([RandomizedModel(linear, 4), linear], threat=THREAT)
    attack = attacks.create("pgd", THREAT, steps=2)
    with pytest.raises(InputError, match="members that answer at random"):
        randens.curve(rec, data, [0.1], attack, bounds=None)
    with pytest.raises(InputError, match="members that answer at random"):
        randens.evaluation.advise(rec, data, attack)
    with pytest.raises(InputError, match="members that answer at random"):
        randens.optimize_sampling(rec, data, attack)


# ---- audit and single questions ------------------------------------------------------------------------------------


def test_the_audit_passes_a_model_with_good_gradients_and_enough_draws() -> None:
    linear, (x, y) = noisy_linear(24)
    found = audit(RandomizedModel(linear, 16), (x, y), THREAT)  # type: ignore[arg-type]
    names = [check.name for check in found.checks]
    assert names == [
        "random-at-all",
        "seed-decides",
        "gradients-above-noise",
        "flat-loss-is-not-noise",
        "saturated-in-draws",
    ]
    assert found.complete
    assert found["gradients-above-noise"].passed
    assert found["flat-loss-is-not-noise"].passed


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
    found = audit(RandomizedModel(Scrambled(), 4), (x, y), Threat("linf", 0.05))  # type: ignore[arg-type]
    assert not found["gradients-above-noise"].passed
    assert "samples=128" in found["gradients-above-noise"].advice
    assert not found.passed


@pytest.mark.parametrize("scale", [1.0, 1e25])  # the squares of the larger gradients are not in float32
def test_gradient_noise_is_what_the_model_makes_it(scale: float) -> None:
    """Margin gradients w + noise: the variance of their mean over S draws is σ²d/S against ‖w‖²."""

    class Rough(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(50))

        def forward(self, x: Tensor) -> Tensor:
            margin = x @ self.w + (x * torch.randn_like(x)).sum(dim=1)
            return scale * torch.stack([0 * margin, margin], dim=1)

    x, y = torch.ones(200, 50), torch.ones(200, dtype=torch.int64)
    found = gradient_noise(RandomizedModel(Rough(), 4), x, y, Threat("l2", 1.0), draws=10)
    assert found.variance == pytest.approx(1 / 10, rel=0.1)
    assert found.single == pytest.approx(1 / 2, abs=0.05)
    assert found.agreement == pytest.approx(1 / 1.1, abs=0.03)
    assert found.reach == pytest.approx((0.1 + 0.9 / 2) ** 0.5, abs=0.03)


def test_one_draw_counts_chance_as_attack_success() -> None:
    """Answers are a coin flip that no attack can change: the accuracy is one half, and one draw prints nearly none."""

    class Coin(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.randn(len(x), 2) + 0 * x[:, :2]

    model = RandomizedModel(Coin(), 4)
    x, y = torch.rand(100, 3), torch.zeros(100, dtype=torch.int64)
    printed, _, passes = single_draw(model, x, y, Threat("linf", 0.1))
    assert printed == 0.0
    assert 100 < passes < 400
    fresh = score(model, x, y, 50).over_draws(0.99)
    assert fresh.low <= 0.5 <= fresh.high


# ---- models that are no usable random models ----------------------------------------------------------------------


def test_a_deterministic_model_is_recognised_and_evaluated_exactly() -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 2)
    x, y = torch.rand(30, 8), torch.randint(0, 2, (30,))
    found = evaluate_stochastic(RandomizedModel(net, 64), (x, y), quick(THREAT))
    exact = attacks.create("adaptive-pgd-margin", THREAT, steps=5)(net, x, y)
    assert not found.randomness.random
    assert found.draws == found.scoring_draws == 1
    assert found.robust.value <= exact.robust_accuracy + 1e-9
    assert found.robust_over_draws.low == found.robust_over_draws.high == found.robust.value
    assert found.bias == 0
    assert str(found).startswith("The model is deterministic")
    assert not audit(RandomizedModel(net, 4), (x, y), THREAT)["random-at-all"].passed  # type: ignore[arg-type]


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
    ("model", "options", "said"),
    [
        (lambda: RandomizedModel(Unseeded(), 4), {}, "model ignores its seed"),
        (lambda: RandomizedModel(Unequal, 4), {}, "class count"),
        (lambda: nn.Linear(8, 2), {}, "without random members"),
        (lambda: RandomizedModel(nn.Linear(8, 2), 4), {"tolerance": 0}, "tolerance is 0"),
        (lambda: RandomizedModel(nn.Linear(8, 2), 4), {"seed": -1}, "seed is -1"),
        (lambda: RandomizedModel(nn.Linear(8, 2), 4), {"attack": None}, "names no threat"),
        (lambda: RandomizedModel(nn.Linear(8, 2), 4), {"attack": [3]}, "attack is"),
    ],
)
def test_models_that_cannot_be_evaluated_are_refused_in_one_sentence(
    model: object, options: dict[str, object], said: str
) -> None:
    x, y = torch.rand(10, 8), torch.randint(0, 2, (10,))
    given = {"attack": quick(THREAT), **options}
    with pytest.raises(InputError, match=said) as error:
        evaluate_stochastic(model(), (x, y), **given)  # type: ignore[operator, arg-type]
    assert "\n" not in str(error.value)


def test_randomness_is_measured_on_logits_and_classes() -> None:
    linear, (x, _) = noisy_linear(40)
    found = randomness(RandomizedModel(linear, 4), x)
    assert found.random
    assert found.seeded
    assert 0 < found.class_changed <= 1
    with pytest.raises(InputError, match="pool cannot be given"):
        randens.evaluate(
            RandomizedModel(linear, 4),
            (x, torch.zeros(40, dtype=torch.int64)),
            quick(THREAT),
            pool=randens.WitnessPool(40, 4),
        )


@pytest.mark.slow
def test_whole_evaluations_cover_the_closed_form_in_at_least_93_of_100_repetitions() -> None:
    """Attacked by `eot`, chosen, scored: the interval over draws contains the truth of the optimal attack."""
    hits = 0
    for repetition in range(100):
        linear, (x, y) = noisy_linear(30, seed=repetition)
        attack = attacks.create("eot", THREAT, steps=10, samples=4)
        found = evaluate_stochastic(
            RandomizedModel(linear, 8), (x, y), attack, seed=repetition, tolerance=0.05
        )
        truth = float(linear.truth(x, y, EPS).mean())
        hits += found.robust_over_draws.low <= truth <= found.robust_over_draws.high
    assert hits >= 93
