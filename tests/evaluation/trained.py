"""Small members, trained in a second, and wrappers that mask their gradients."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, data, models
from randens.data import Data

THREAT = Threat("linf", 0.1)


@functools.cache
def digits(split: str) -> Data:
    """The digits, read once."""
    return data.load("digits", split)


@functools.cache
def _weights(name: str, seed: int) -> dict[str, Tensor]:
    """Weights after a few epochs of single-step adversarial training on digits."""
    train = digits("train")
    x, y = train.x, train.y
    member = _fresh(name, seed)
    optimizer = torch.optim.SGD(member.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(8):
        for rows in torch.split(torch.randperm(len(x), generator=generator), 64):
            inputs = x[rows].clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(F.cross_entropy(member(inputs), y[rows]), inputs)
            moved = (x[rows] + THREAT.eps * gradient.sign()).clamp(0, 1)
            optimizer.zero_grad()
            F.cross_entropy(member(moved), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return member.state_dict()


def _fresh(name: str, seed: int) -> nn.Module:
    sizes = {"mlp": {"width": 32, "depth": 2}, "convnet": {"width": 4, "hidden": 16}, "linear": {}}[name]
    return models.create(name, classes=10, input_shape=(1, 8, 8), seed=seed, mean=0.3, std=0.4, **sizes)


def member(name: str = "mlp", seed: int = 0) -> nn.Module:
    """A trained member; the same every time."""
    made = _fresh(name, seed)
    made.load_state_dict(_weights(name, seed))
    return made.eval()


def ensemble(*names: str) -> RandomizedEnsemble:
    """Trained members with their own seeds."""
    chosen = names or ("mlp", "mlp")
    return RandomizedEnsemble([member(name, seed) for seed, name in enumerate(chosen)], threat=THREAT).eval()


class Scaled(nn.Module):
    """Logits times a constant: the same classifier, with a saturated loss."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(x) * self.factor
        return z


class Quantised(nn.Module):
    """Inputs rounded to a few levels: nearly the same classifier, without gradients."""

    def __init__(self, inner: nn.Module, levels: int = 15) -> None:
        super().__init__()
        self.inner, self.levels = inner, levels

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(torch.round(x * self.levels) / self.levels)
        return z


class Random(nn.Module):
    """Noise on the logits at every call."""

    def __init__(self, inner: nn.Module, seed: int = 0) -> None:
        super().__init__()
        self.inner = inner
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.inner(x)
        return z + 3 * torch.randn(z.shape, generator=self.generator)

    def __deepcopy__(self, memo: dict[int, object]) -> Random:
        return Random(self.inner)


class Probabilities(nn.Module):
    """A softmax at the end."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.inner(x), dim=1)
