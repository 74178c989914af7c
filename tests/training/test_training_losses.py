"""Losses: values by the formula, passes by counting."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from randens.training.losses import passes, training_loss
from randens.training.recipe import LossPart


def _by_formula(name: str, z: Tensor, z_adv: Tensor, y: Tensor) -> Tensor:
    right = F.cross_entropy(z_adv, y, reduction="none")
    if name == "mce":
        others = -torch.log((-z_adv).softmax(dim=1)).scatter(1, y.unsqueeze(1), 0.0)
        return right + 0.7 * others.sum(dim=1) / (z.shape[1] - 1)
    divergence = F.kl_div(z_adv.log_softmax(1), z.softmax(1), reduction="none").sum(dim=1)
    return F.cross_entropy(z, y, reduction="none") + 0.7 * divergence if name == "trades" else right


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize(("name", "count"), [("cross-entropy", 1), ("mce", 1), ("trades", 2)])
def test_losses_are_the_formulas_in_as_many_passes_as_they_say(name: str, count: int, classes: int) -> None:
    generator, model, calls = torch.Generator().manual_seed(0), nn.Linear(4, classes), []
    x, noise = torch.randn(2, 5, 4, generator=generator)
    y = torch.randint(0, classes, (5,), generator=generator)

    def counted(x: Tensor) -> Tensor:
        calls.append(x)
        z: Tensor = model(x)
        return z

    part = LossPart.model_validate({"name": name, "weight": 0.7})
    values, logits = training_loss(part)(counted, x, x + noise, y)
    assert len(calls) == passes(part) == count
    assert torch.equal(logits, model(x + noise))
    torch.testing.assert_close(values, _by_formula(name, model(x), logits, y))
