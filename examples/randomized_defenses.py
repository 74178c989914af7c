"""Four random defenses, scored on draws that no attack has used, beside the number of a single-draw
evaluation.

Gaussian noise before a linear model, where the truth is a closed form; dropout at test time, random resize-and-pad and
a layer with random weights, each in a small network on the digits. `--case` runs one of them, `--json` writes
everything that was measured.

    python examples/randomized_defenses.py --inputs 100
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import norm
from torch import Tensor, nn

import randens
from randens.evaluation import RandomEvaluation

Labelled = tuple[Tensor, Tensor]


class NoisyLinear(nn.Module):
    """Two classes, told apart by the sign of w·(x + σ·noise)."""

    def __init__(self, w: Tensor, sigma: float) -> None:
        super().__init__()
        self.w, self.sigma = nn.Parameter(w), sigma

    def forward(self, x: Tensor) -> Tensor:
        """Logits (−m/2, m/2) of the noisy margin m."""
        margin = (x + self.sigma * torch.randn_like(x)) @ self.w
        return torch.stack([-margin, margin], dim=1) / 2

    def truth(self, x: Tensor, y: Tensor, eps: float) -> Tensor:
        """P(correct) [n] under the best linf attack of radius eps: Φ((±w·x − ε‖w‖₁) / σ‖w‖₂)."""
        w = self.w.detach().double()
        margin = (2 * y - 1) * (x.double() @ w) - eps * w.abs().sum()
        return torch.from_numpy(norm.cdf((margin / (self.sigma * w.norm())).numpy()))


def noisy_linear(n: int, seed: int = 0, dimension: int = 8) -> tuple[NoisyLinear, Labelled]:
    """The model, and n inputs from two overlapping Gaussians."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.linspace(-1, 1.5, dimension)
    y = torch.randint(0, 2, (n,), generator=generator)
    x = (2 * y[:, None] - 1) * w / w.norm() ** 2 + 0.4 * torch.randn(n, dimension, generator=generator)
    return NoisyLinear(w, sigma=0.4), (x, y)


class ResizeAndPad(nn.Module):
    """Shrinks the image to a random size, puts it at a random place (Xie et al. 2018), and runs a network."""

    def __init__(self, network: nn.Module, smallest: int = 6) -> None:
        super().__init__()
        self.network, self.smallest = network, smallest

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits; `generator` decides size and place."""
        whole = x.shape[-1]
        size = int(torch.randint(self.smallest, whole + 1, (1,), generator=generator))
        left, top = torch.randint(0, whole - size + 1, (2,), generator=generator).tolist()
        small = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
        z: Tensor = self.network(F.pad(small, (left, whole - size - left, top, whole - size - top)))
        return z


class RandomWeights(nn.Module):
    """A linear layer whose weights are sampled at every call, around those that were learned."""

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        self.linear, self.sigma = nn.Linear(inputs, outputs), sigma

    def forward(self, x: Tensor) -> Tensor:
        """x times this call's weights."""
        w = self.linear.weight
        return F.linear(x, w + self.sigma * w.std().detach() * torch.randn_like(w), self.linear.bias)


def trained(network: nn.Module, epochs: int = 30) -> nn.Module:
    """The network after a few seconds on the digits' training split."""
    images = randens.data.load("digits", "train")
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    network.train()
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(images), generator=generator), 64):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(network(images.x[rows]), images.y[rows]))
            optimizer.step()
    return network.eval()


def dropout(draws: int) -> randens.RandomizedModel:
    """Dropout that stays on at test time."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    return randens.RandomizedModel(trained(net), draws, active=nn.Dropout)


def resize(draws: int) -> randens.RandomizedModel:
    """Random resize-and-pad before a convolutional network."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 10)
    )
    return randens.RandomizedModel(trained(ResizeAndPad(net)), draws)


def weights(draws: int) -> randens.RandomizedModel:
    """A last layer with random weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), RandomWeights(64, 10, sigma=1.0))
    return randens.RandomizedModel(trained(net), draws)


DIGITS: dict[str, Callable[[int], randens.RandomizedModel]] = {
    "dropout": dropout,
    "resize": resize,
    "weights": weights,
}


def measure(case: str, inputs: int, draws: int) -> tuple[RandomEvaluation, float | None]:
    """The evaluation of one case, and the truth where it is known."""
    found: Any
    if case == "gaussian":
        linear, (x, y) = noisy_linear(inputs)
        threat = randens.Threat("linf", 0.1, bounds=None)
        found = randens.evaluate(randens.RandomizedModel(linear, draws), (x, y), threat=threat)
        return found, float(linear.truth(x, y, 0.1).mean())
    found = randens.evaluate(DIGITS[case](draws), "digits", eps=0.1, limit=inputs)
    return found, None


def main() -> None:
    """Run the cases and print one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=("gaussian", *DIGITS), action="append")
    parser.add_argument("--inputs", type=int, default=100)
    parser.add_argument("--draws", type=int, default=64)
    parser.add_argument("--json", type=Path, help="where everything that was measured goes")
    options = parser.parse_args()
    print("case       natural  robust  over these inputs  one draw prints  in-sample")
    everything: dict[str, Any] = {}
    for case in options.case or ("gaussian", *DIGITS):
        found, truth = measure(case, options.inputs, options.draws)
        narrow = found.robust_over_draws
        print(
            f"{case:<9} {found.natural.value:8.1%} {found.robust.value:7.1%}  [{narrow.low:.1%}, {narrow.high:.1%}]    "
            f"{found.single_draw:12.1%} {found.in_sample:12.1%}"
            + ("" if truth is None else f"   truth {truth:.1%}")
        )
        everything[case] = {**found.to_json(), "truth": truth}
    if options.json is not None:
        options.json.write_text(json.dumps(everything, indent=2), encoding="utf-8")


if __name__ == "__main__":
    np.set_printoptions(precision=3)
    main()
