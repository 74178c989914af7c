"""The paper's networks and small ones, as plain bodies that map inputs to logits; all sizes scale with `width`."""

from __future__ import annotations

import math
from collections import OrderedDict
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
    """For small images: a 3×3 stem, no pooling; shortcuts without parameters (ResNet-20) or 1×1 `projections`."""

    def __init__(
        self, shape: Sequence[int], classes: int, width: int, blocks: Sequence[int], projections: bool
    ) -> None:
        super().__init__()
        self.conv = _conv(shape[0], width)
        self.bn = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                shortcut: nn.Module = nn.Identity()
                if projections and (stride, inputs) != (1, outputs):
                    one = _conv(inputs, outputs, kernel=1, stride=stride)
                    shortcut = nn.Sequential(one, nn.BatchNorm2d(outputs))
                elif (stride, inputs) != (1, outputs):
                    shortcut = _PadShortcut(inputs, outputs, stride)
                stages.append(_Block(inputs, outputs, stride, shortcut))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.linear(y.mean(dim=(2, 3)))


class MobileNetV1(nn.Module):
    """MobileNetV1 (Howard et al. 2017) for 32×32 images, with the strides that make the paper's 312 MFLOPs."""

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


def convnet(shape: Sequence[int], classes: int, width: int, hidden: int) -> nn.Module:
    """For 8×8 and 28×28 images: convolutions down to 4×4 or 7×7, then two linear layers; no batch normalization."""
    channels, h, w = shape
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    inputs = width
    while True:
        layers += [nn.Conv2d(inputs, 2 * width, 3, stride=2, padding=1), nn.ReLU()]
        inputs, h, w = 2 * width, (h + 1) // 2, (w + 1) // 2
        if max(h, w) <= 7:
            break
    layers += [nn.Flatten(), nn.Linear(inputs * h * w, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(OrderedDict(layers=nn.Sequential(*layers)))


def mlp(shape: Sequence[int], classes: int, width: int, depth: int) -> nn.Module:
    """Fully connected ReLU network of `depth` hidden layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(OrderedDict(layers=nn.Sequential(*layers, nn.Linear(inputs, classes))))


def linear(shape: Sequence[int], classes: int) -> nn.Module:
    """Multinomial logistic regression on the pixels."""
    return nn.Sequential(OrderedDict(flat=nn.Flatten(), linear=nn.Linear(math.prod(shape), classes)))


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
