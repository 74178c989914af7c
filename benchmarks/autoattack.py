"""The suite on single networks against AutoAttack: robust accuracy and passes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import randens
from benchmarks import textbook
from benchmarks.attacks import Side, compared, images
from benchmarks.harness import Row, Settings
from benchmarks.textbook import Counted
from randens import RandomizedEnsemble, Threat

ABOUT = (
    "Single networks, linf, the suite's presets against AutoAttack (pyautoattack: APGD-CE, targeted APGD, 500 queries "
    "of Square): two networks trained for seconds by PGD on handwritten digits, all test images, ε = 0.1; ResNet-20s "
    "of the zoo, CIFAR-10 test images from 6000 on, ε = 8/255. Passes per image."
)
NETWORKS = ("cifar10-resnet20-at",)
FIRST, IMAGES, DIGITS_EPS = 6000, 64, 0.1


def rows(settings: Settings) -> Iterator[Row]:
    if importlib.util.find_spec("pyautoattack") is None:
        print("pyautoattack is not installed: left out")
        return
    x, y = (
        randens.data.load("digits", "test")[:60] if settings.quick else randens.data.load("digits", "test")[:]
    )
    for name in ("mlp", "convnet"):
        yield from _compared(f"digits {name}", _trained(name), x, y, Threat("linf", DIGITS_EPS))
    if settings.quick:
        return
    x, y = images(FIRST, IMAGES)
    for name in NETWORKS:
        member = randens.zoo.load(name).members[0]
        yield from _compared(name.removeprefix("cifar10-"), member, x, y, Threat("linf", 8 / 255))


def _compared(name: str, member: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Iterator[Row]:
    alone, counted = RandomizedEnsemble([member]), Counted(member)
    theirs = Side.of_theirs(alone, [textbook.autoattack(counted, x, y, threat.eps)], y, [counted])
    for preset in ("standard", "thorough"):
        ours = Side.of_ours([randens.attacks.create(preset, threat).run(alone, (x, y))])
        ratio, note = theirs.passes / ours.passes, compared(ours, theirs)
        yield Row(f"{preset}, {name}", ours.passes, theirs.passes, "passes", ratio, "× fewer passes", note)


def _trained(name: str) -> nn.Module:
    """A network on the digits, trained for 40 epochs on points of three PGD steps."""
    x, y = randens.data.load("digits", "train")[:]
    threat, generator = Threat("linf", DIGITS_EPS), torch.Generator().manual_seed(0)
    net = randens.models.create(name, classes=10, input_shape=(1, 8, 8), seed=0).train()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for _ in range(40):
        for part in torch.split(torch.randperm(len(x), generator=generator), 64):
            point = x[part]
            for _ in range(3):
                point.requires_grad_()
                (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(net(point), y[part]), point)
                point = threat.project(threat.step(point.detach(), gradient, threat.eps / 2), x[part])
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(point), y[part]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return net.eval()
