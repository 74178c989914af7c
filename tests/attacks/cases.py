"""Ensembles of every kind that attacks must handle, small enough to attack all of them with everything."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from tests.attacks.planted import planted
from torch import Tensor, nn

from randens import RandomizedEnsemble, Threat, attacks, data
from randens.attacks import Attack, Found

KINDS = ("planted", "convnet", "mlp", "zero-weight", "identical")
NORMS = ("linf", "l2")


@dataclass(frozen=True)
class Case:
    """An ensemble, inputs and labels, and the threat they are attacked under."""

    rec: RandomizedEnsemble
    x: Tensor
    y: Tensor
    threat: Threat


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
    return _trained(untrained_mlp(), x, y, seed, epochs=12)


def untrained_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4))


def quadrants(n: int) -> tuple[Tensor, Tensor]:
    """Vectors [n, 3] and the quadrant of their first two coordinates."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(7))
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def _trained(net: nn.Module, x: Tensor, y: Tensor, seed: int, epochs: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), 64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return net.eval()


def case(kind: str, norm: str, n: int = 8) -> Case:
    """`n` inputs for the ensemble of this kind; ε is chosen so that some members are fooled and some are not."""
    if kind == "planted":
        made = planted(norm, n=n, members=4, d=12, probs=[0.4, 0.3, 0.2, 0.1])
        return Case(made.rec, made.x, made.y, made.threat)
    if kind in ("mlp", "zero-weight"):
        x, y = quadrants(n)
        threat = Threat(norm, 0.4 if norm == "linf" else 0.5, None)
        probs = [0.5, 0.25, 0.25] if kind == "mlp" else [0.7, 0.0, 0.3]
        return Case(RandomizedEnsemble([mlp(0), mlp(1), mlp(2)], probs), x, y, threat)
    x, y = digits("test")
    threat = Threat(norm, 0.1 if norm == "linf" else 0.5)
    if kind == "convnet":
        rec = RandomizedEnsemble([convnet(0), convnet(1)])
    else:
        rec = RandomizedEnsemble([convnet(0)] * 3, [0.2, 0.3, 0.5])
    return Case(rec, x[:n].clone(), y[:n].clone(), threat)


def attack(name: str, threat: Threat, **options: object) -> Attack:
    """The attack with few steps where it has them: the properties must hold at any budget."""
    made = attacks.create(name, threat, precision="float32")
    small = {k: v for k, v in _SMALL.items() if k in made.__dataclass_fields__}
    small |= {"restarts": min(2, made.restarts)}
    return attacks.create(name, threat, **({"precision": "float32"} | small | options))


_SMALL = {"steps": 3, "queries": 8, "preset": "fast", "relinearisations": 2, "iterations": 10}


@functools.cache
def found(name: str, norm: str, kind: str) -> Found:
    """What the attack finds in the case, computed once for all tests."""
    given = case(kind, norm)
    return attack(name, given.threat)(given.rec, given.x, given.y)


def attacks_for(kind: str) -> tuple[str, ...]:
    """Every registered attack that takes ensembles of this kind."""
    return tuple(name for name in BUILT_IN if name != "exact" or kind == "planted")


BUILT_IN = tuple(name for name in attacks.names() if not name.startswith("test-"))
ALL = [(name, norm, kind) for kind in KINDS for norm in NORMS for name in attacks_for(kind)]
