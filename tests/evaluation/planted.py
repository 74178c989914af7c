"""Linear members on a line, whose fooled sets can be read off."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks, models
from randens.attacks import Attack

THREAT = Threat("linf", 0.2)


def threshold(direction: float, at: float) -> nn.Module:
    """Says class 1 where direction·(x − at) > 0, else class 0."""
    member = models.create("linear", classes=2, input_shape=(1,), seed=0)
    with torch.no_grad():
        weight, bias = list(member.parameters())
        weight.copy_(torch.tensor([[0.0], [direction]]))
        bias.copy_(torch.tensor([0.0, -direction * at]))
    return member


def members(*thresholds: tuple[float, float]) -> list[nn.Module]:
    return [threshold(direction, at) for direction, at in thresholds]


def on_a_line(
    thresholds: Sequence[tuple[float, float]], points: Sequence[float], probs: Sequence[float] | None = None
) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """An ensemble, inputs and labels, all of class 0."""
    rec = RandomizedEnsemble(members(*thresholds), probs, threat=THREAT)
    return rec, torch.tensor(points).reshape(-1, 1), torch.zeros(len(points), dtype=torch.int64)


def exact() -> Attack:
    return attacks.create("exact", THREAT)


def random_linear(
    count: int, seed: int, features: int = 4, n: int = 30
) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """Random linear members with three classes, labelled by the mean of their logits: mostly right, often fooled."""
    made = [
        models.create("linear", classes=3, input_shape=(features,), seed=100 * seed + i) for i in range(count)
    ]
    x = torch.rand(n, features, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        y = torch.stack([m(x) for m in made]).mean(0).argmax(1)
    return RandomizedEnsemble(made), x, y
