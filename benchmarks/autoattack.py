"""The suite on single networks against AutoAttack: robust accuracy and passes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

import randens
from benchmarks import textbook
from benchmarks.attacks import Side, compared, images
from benchmarks.harness import Row, Settings
from benchmarks.textbook import Counted
from randens import RandomizedEnsemble, Threat
from randens.attacks.members import folded

ABOUT = (
    "Single networks, linf, the suite's presets against AutoAttack (pyautoattack, its standard version: APGD-CE, "
    "targeted APGD and FAB, 5,000 queries of Square): two networks trained for seconds by PGD on handwritten digits, "
    "all test images, ε = 0.1; a ResNet-20 of the zoo, CIFAR-10 test images from 8000 on, which no setting was chosen "
    "on, ε = 8/255. Masked: the same networks without gradients, against Square alone. Passes per image."
)
ZOO, FIRST, IMAGES, DIGITS_EPS = "cifar10-resnet20-at", 8000, 64, 0.1
STANDARD, SQUARE = ("apgd-ce", "apgd-t", "fab-t", "square"), ("square",)


class Masked(nn.Module):
    """A network whose outputs carry no gradients."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.net(x)
        return z.detach()


def rows(settings: Settings) -> Iterator[Row]:
    if importlib.util.find_spec("pyautoattack") is None:
        print("pyautoattack is not installed: left out")
        return
    digits = randens.data.load("digits", "test")[: 60 if settings.quick else None]
    threat = Threat("linf", DIGITS_EPS)
    cases = [(f"digits {name}", _trained(name), *digits, threat) for name in ("mlp", "convnet")]
    if not settings.quick:
        member = randens.zoo.load(ZOO).members[0]
        cases.append((ZOO.removeprefix("cifar10-"), member, *images(FIRST, IMAGES), Threat("linf", 8 / 255)))
    for name, net, x, y, threat in cases:
        yield from _compared(name, net, x, y, threat, ("standard", "thorough"), STANDARD)
        yield from _compared(f"masked {name}", Masked(net), x, y, threat, ("standard",), SQUARE)


def _compared(
    name: str,
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    presets: Sequence[str],
    theirs: Sequence[str],
) -> Iterator[Row]:
    """The presets against AutoAttack's parts `theirs`."""
    alone, counted = (
        RandomizedEnsemble([net]),
        Counted(folded(net, x[:4])),
    )  # the same answers in fewer seconds
    peer = Side.of_theirs(alone, [textbook.autoattack(counted, x, y, threat.eps, theirs)], y, [counted])
    for preset in presets:
        ours = Side.of_ours([randens.attacks.create(preset, threat).run(alone, (x, y))])
        ratio, note = peer.passes / ours.passes, compared(ours, peer)
        yield Row(f"{preset}, {name}", ours.passes, peer.passes, "passes", ratio, "× fewer passes", note)


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
