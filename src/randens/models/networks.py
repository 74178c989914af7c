"""The paper's networks and the small ones for quick work, as plain bodies that map inputs [n, ...] to logits.

`width` is the number of channels or units of the first layer, with which all others scale. `Classifier` normalizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


class _PadShortcut(nn.Module):
    """Option A of He et al. (2016): every second pixel, zeros for the new channels; nothing to learn or multiply."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inputs, self.stride = inputs, stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class _Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, stride=stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Residual network for small images: a 3×3 stem without pooling, then stages of basic blocks.

    ResNet-20 (and 8) has three stages from 16 channels with parameter-free shortcuts (option A); ResNet-18 has four
    from 64 with 1×1 projections (option B).
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        width: int,
        blocks: Sequence[int],
        projections: bool,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.conv = _conv(shape[0], width, stride=stride)
        self.bn = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                shortcut = _shortcut(inputs, outputs, stride, projections)
                stages.append(_Block(inputs, outputs, stride, shortcut))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.linear(y.mean(dim=(2, 3)))


def _shortcut(inputs: int, outputs: int, stride: int, projections: bool) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if projections:
        return nn.Sequential(_conv(inputs, outputs, kernel=1, stride=stride), nn.BatchNorm2d(outputs))
    return _PadShortcut(inputs, outputs, stride)


class MobileNetV1(nn.Module):
    """MobileNetV1 (Howard et al. 2017) for 32×32 images: thirteen depthwise-separable blocks.

    The stem and the fourth block keep the resolution, the form whose cost is the paper's 312 MFLOPs.
    """

    MULTIPLES = (2, 4, 4, 8, 8, 16, 16, 16, 16, 16, 16, 32, 32)
    STRIDED = (1, 5, 11)

    def __init__(self, shape: Sequence[int], classes: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(shape[0], width), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        inputs = width
        for index, multiple in enumerate(self.MULTIPLES):
            outputs = width * multiple
            layers += [
                _conv(inputs, inputs, stride=2 if index in self.STRIDED else 1, groups=inputs),
                nn.BatchNorm2d(inputs),
                nn.ReLU(inplace=True),
                _conv(inputs, outputs, kernel=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.features(x).mean(dim=(2, 3)))


class _InSequence(nn.Module):
    """Layers that are applied one after the other."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class ConvNet(_InSequence):
    """For 8×8 and 28×28 images: convolutions down to 4×4 or 7×7, then two linear layers; no batch normalization."""

    def __init__(self, shape: Sequence[int], classes: int, width: int, hidden: int) -> None:
        channels, h, w = shape
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        inputs = width
        while True:
            layers += [nn.Conv2d(inputs, 2 * width, 3, stride=2, padding=1), nn.ReLU()]
            inputs, h, w = 2 * width, (h + 1) // 2, (w + 1) // 2
            if max(h, w) <= 7:
                break
        layers += [nn.Flatten(), nn.Linear(inputs * h * w, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
        super().__init__(layers)


class StridedNet(_InSequence):
    """Three 3×3 convolutions of stride 2 with batch normalization, then one linear layer: the cheapest for 32×32."""

    def __init__(self, shape: Sequence[int], classes: int, width: int) -> None:
        inputs, h, w = shape
        layers: list[nn.Module] = []
        for outputs in (width, 2 * width, 4 * width):
            layers += [_conv(inputs, outputs, stride=2), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs, h, w = outputs, (h + 1) // 2, (w + 1) // 2
        super().__init__([*layers, nn.Flatten(), nn.Linear(inputs * h * w, classes)])


class MLP(_InSequence):
    """Fully connected ReLU network of `depth` hidden layers."""

    def __init__(self, shape: Sequence[int], classes: int, width: int, depth: int) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = math.prod(shape)
        for _ in range(depth):
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        super().__init__([*layers, nn.Linear(inputs, classes)])


class Linear(nn.Module):
    """Multinomial logistic regression on the pixels."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(math.prod(shape), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))


def initialize(body: nn.Module) -> None:
    """He-normal convolutions (fan-out); linear layers of unit gain, so that initial logits are small."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size) // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=math.sqrt(1 / module.in_features))
            nn.init.zeros_(module.bias)
