"""Ensembles of every kind that attacks must handle, small enough to attack all of them with everything."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from tests.attacks.planted import Planted, planted
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks, data
from randens.attacks import Attack, AttackResult

# Without a box, with one, and both in float64 members.
KINDS = ("planted", "convnet", "mlp", "zero-weight")
NORMS = ("linf", "l2", "l1")


@functools.cache
def digits(split: str = "train") -> tuple[Tensor, Tensor]:
    """Handwritten digits, [n, 1, 8, 8] in [0, 1], and their labels."""
    images = data.load("digits", split)
    return images.x, images.y


@functools.cache
def convnet(seed: int) -> nn.Module:
    """A small convolutional network with BatchNorm, trained for a second on the digits."""
    x, y = digits()
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 12, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(192, 10),
    )
    return _trained(net, x, y, seed, epochs=3)


@functools.cache
def mlp(seed: int) -> nn.Module:
    """A smooth network on three features and four classes: the quadrants of the first two."""
    x, y = quadrants(600)
    torch.manual_seed(100 + seed)
    return _trained(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4)), x, y, seed, epochs=12)


def quadrants(n: int) -> tuple[Tensor, Tensor]:
    """Vectors [n, 3] and the quadrant of their first two coordinates."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(7))
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def _trained(net: nn.Module, x: Tensor, y: Tensor, seed: int, epochs: int) -> nn.Module:
    """Descent with momentum, by hand: the first optimizer of a process takes seconds to load."""
    generator, parameters = torch.Generator().manual_seed(seed), list(net.parameters())
    momentum = [torch.zeros_like(p) for p in parameters]
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), 64):
            gradients = torch.autograd.grad(nn.functional.cross_entropy(net(x[rows]), y[rows]), parameters)
            with torch.no_grad():
                for parameter, pull, gradient in zip(parameters, momentum, gradients, strict=True):
                    parameter.sub_(0.1 * pull.mul_(0.9).add_(gradient))
    return net.eval()


def case(kind: str, norm: str, n: int = 8) -> Planted:
    """`n` inputs for the ensemble of this kind; ε is chosen so that some members are fooled and some are not."""
    if kind == "planted":
        return planted(norm, n=n, members=4, d=12, probs=[0.4, 0.3, 0.2, 0.1])
    if kind in ("mlp", "zero-weight"):
        x, y = quadrants(n)
        boxed = kind == "mlp"
        threat = Threat(norm, {"linf": 0.4, "l2": 0.5, "l1": 0.6}[norm], (-1.0, 1.0) if boxed else None)
        probs = [0.5, 0.25, 0.25] if boxed else [0.7, 0.0, 0.3]
        members = [copy.deepcopy(mlp(i)).double() for i in range(3)]
        # Two of five inputs lie on the ends of this box.
        return Planted(RandomizedEnsemble(members, probs), x.double().clamp(-1, 1), y, threat)
    x, y = digits("test")
    threat = Threat(norm, {"linf": 0.1, "l2": 0.5, "l1": 2.0}[norm])
    return Planted(RandomizedEnsemble([convnet(0), convnet(1)]), x[:n].clone(), y[:n].clone(), threat)


def attack(name: str, threat: Threat, **options: Any) -> Attack:
    """The attack with few steps where it has them: the properties must hold at any budget."""
    made = attacks.create(name, threat)
    small = {k: v for k, v in _SMALL.items() if k in made.__dataclass_fields__}
    return attacks.create(name, threat, **({"restarts": min(2, made.restarts)} | small | options))


_SMALL = {"steps": 3, "queries": 8, "moves": 2, "iterations": 10, "constants": 2}


@functools.cache
def found(name: str, norm: str, kind: str) -> AttackResult:
    """What the attack finds in the case, computed once for all tests."""
    given = case(kind, norm)
    return attack(name, given.threat)(given.rec, given.x, given.y)


def attacks_for(kind: str) -> tuple[str, ...]:
    """Every registered attack that takes ensembles of this kind; of the presets only the fast one."""
    slow = ("standard", "suite", "thorough", "square")  # "random" is square with fewer queries
    return tuple(name for name in BUILT_IN if name not in slow and (name != "exact" or kind == "planted"))


BUILT_IN = tuple(name for name in attacks.names() if name not in ("momentum", "finite"))
# Legality under the other norms is tried where an optimum is known and where a box cuts the ball.
ALL = [
    (name, norm, kind)
    for kind in KINDS
    for norm in (NORMS if kind in ("planted", "mlp") else NORMS[:1])
    for name in attacks_for(kind)
]
