"""Losses: values by the formula, gradients by finite differences, passes by counting."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from randens.training.losses import Examples, TrainingLoss, passes, training_loss
from randens.training.recipe import LossPart


def _loss(name: str, weight: float | None = None) -> TrainingLoss:
    return training_loss(LossPart.model_validate({"name": name, "weight": weight}))


def _problem(classes: int, seed: int = 0) -> tuple[nn.Module, Examples]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(4, classes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, classes, (5,), generator=generator)
    return model, Examples(x, x + 0.1 * noise, y)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("loss", [_loss("cross-entropy"), _loss("mce", 0.7), _loss("trades", 3.0)])
def test_gradients_match_finite_differences(classes: int, loss: TrainingLoss) -> None:
    model, examples = _problem(classes)
    weights = list(model.parameters())
    values, _ = loss(model, examples)
    gradients = torch.autograd.grad(values.sum(), weights)
    step = 1e-6
    for weight, gradient in zip(weights, gradients, strict=True):
        for index in range(weight.numel()):
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    weight.view(-1)[index] += sign * step
                    ends.append(float(loss(model, examples)[0].sum()))
                    weight.view(-1)[index] -= sign * step
            slope = (ends[0] - ends[1]) / (2 * step)
            assert slope == pytest.approx(float(gradient.reshape(-1)[index]), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_mce_is_the_papers_formula(classes: int) -> None:
    model, examples = _problem(classes)
    z = model(examples.x_adv).detach()
    expected = []
    for row, label in zip(z, examples.y.tolist(), strict=True):
        right = -torch.log(torch.softmax(row, 0)[label])
        others = [-torch.log(torch.softmax(-row, 0)[j]) for j in range(classes) if j != label]
        expected.append(float(right + 0.7 * sum(others) / (classes - 1)))
    values, logits = _loss("mce", 0.7)(model, examples)
    assert values.tolist() == pytest.approx(expected)
    assert torch.equal(logits, z)


def test_trades_is_natural_loss_plus_divergence() -> None:
    model, examples = _problem(3)
    z, z_adv = model(examples.x), model(examples.x_adv)
    kl = F.kl_div(z_adv.log_softmax(1), z.softmax(1), reduction="none").sum(1)
    expected = F.cross_entropy(z, examples.y, reduction="none") + 3.0 * kl
    assert torch.allclose(_loss("trades", 3.0)(model, examples)[0], expected)
    same = Examples(examples.x, examples.x, examples.y)
    assert torch.allclose(
        _loss("trades", 3.0)(model, same)[0], F.cross_entropy(z, examples.y, reduction="none")
    )


@pytest.mark.parametrize(("name", "count"), [("cross-entropy", 1), ("mce", 1), ("trades", 2)])
def test_a_loss_makes_no_more_passes_than_it_says(name: str, count: int) -> None:
    model, examples = _problem(3)
    calls = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        z: Tensor = model(x)
        return z

    part = LossPart.model_validate({"name": name})
    training_loss(part)(counted, examples)
    assert calls == passes(part) == count
