"""Training losses. A training loss calls the member itself, so each makes just the passes it needs.

``loss(forward, examples)`` returns the loss per image [n] and the member's logits at x_adv [n, C]; `forward` is
the member being trained. All hold for any number of classes ≥ 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from randens.attacks.losses import margins, mce
from randens.training.recipe import LossPart

__all__ = [
    "Examples",
    "Forward",
    "TrainingLoss",
    "bounded_risk",
    "cross_entropy",
    "divergence",
    "margin_cross_entropy",
    "passes",
    "trades",
    "training_loss",
]


@dataclass(frozen=True)
class Examples:
    """A batch with its adversarial inputs."""

    x: Tensor
    x_adv: Tensor
    y: Tensor


Forward = Callable[[Tensor], Tensor]
TrainingLoss = Callable[[Forward, Examples], tuple[Tensor, Tensor]]

_TRADES_WEIGHT = 6.0


def cross_entropy(forward: Forward, examples: Examples) -> tuple[Tensor, Tensor]:
    """CE(f(x_adv), y)."""
    z = forward(examples.x_adv)
    return F.cross_entropy(z, examples.y, reduction="none"), z


def margin_cross_entropy(weight: float = 1.0) -> TrainingLoss:
    """MCE(f(x_adv), y) = CE + w/(C−1) Σ_{j≠y} −log softmax(−z)_j, both terms from one forward pass."""

    def loss(forward: Forward, examples: Examples) -> tuple[Tensor, Tensor]:
        z = forward(examples.x_adv)
        return mce(z, examples.y, weight), z

    return loss


def trades(weight: float = _TRADES_WEIGHT) -> TrainingLoss:
    """CE(f(x), y) + β KL(softmax f(x) ‖ softmax f(x_adv)); both passes carry a gradient."""

    def loss(forward: Forward, examples: Examples) -> tuple[Tensor, Tensor]:
        z, z_adv = forward(examples.x), forward(examples.x_adv)
        natural = F.cross_entropy(z, examples.y, reduction="none")
        return natural + weight * divergence(z.log_softmax(dim=-1), z_adv), z_adv

    return loss


def divergence(log_probs: Tensor, z: Tensor) -> Tensor:
    """KL(exp(log_probs) ‖ softmax(z)) over the last dimension."""
    return (log_probs.exp() * (log_probs - z.log_softmax(dim=-1))).sum(dim=-1)


def bounded_risk(z: Tensor, y: Tensor) -> Tensor:
    """Return σ(−m) of the margin m, [n]: between 0 and 1 like the error, so a misclassified input costs at most 1."""
    return torch.sigmoid(-margins(z[None], y)[0])


def training_loss(part: LossPart) -> TrainingLoss:
    """The loss that a recipe names."""
    if part.name == "cross-entropy":
        return cross_entropy
    if part.name == "mce":
        return margin_cross_entropy(1.0 if part.weight is None else part.weight)
    return trades(_TRADES_WEIGHT if part.weight is None else part.weight)


def passes(part: LossPart) -> int:
    """Forward (and backward) passes of the member per image."""
    return 2 if part.name == "trades" else 1
