"""Gradients of stacked fully connected networks, written out: what autograd finds, in a third of its time.

For AT and `bounded`, with PGD on the cross-entropy and the margin-maximising cross-entropy (MCE) as the loss: what the
long trainings of the study need. Everything else is left to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from randens.models import Classifier
from randens.training.adversaries import Adversary, TrainingPGD, projection
from randens.training.methods import Bounded, Method
from randens.training.recipe import Recipe

__all__ = ["Batch", "Images", "Layers", "fits", "learn"]

Slope = Callable[[Tensor, Tensor], Tensor]
"""Of a loss: logits [S, n, C] and labels as 0 and 1 [S, n, C] → the gradient at the logits [S, n, C]."""


def fits(recipe: Recipe) -> bool:
    """Whether `learn` can take this recipe's steps."""
    known = recipe.method in ("at", "bounded") and recipe.model.name == "mlp"
    losses = recipe.adversary.loss == "cross-entropy" and (recipe.loss.name, recipe.loss.weight) == (
        "mce",
        None,
    )
    return known and losses and recipe.adversary.name == "pgd" and recipe.adversary.level == "auto"


@dataclass(frozen=True)
class Layers:
    """S networks: weights [S, out, in] and biases [S, out] of every layer.

    The networks' inputs are (x − mean) / std. The first layer's weights and bias here are those that do the same to x,
    so that images are not normalised at every step of an attack.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    mean: Tensor
    std: Tensor

    @staticmethod
    def of(values: Sequence[Tensor], network: Classifier) -> Layers:
        """values: weight and bias of every layer in turn. network: one of them, for its normalisation."""
        shape = tuple(network.input_shape)
        none = network.mean is None or network.std is None
        mean, std = (torch.zeros(1), torch.ones(1)) if none else (network.mean, network.std)
        assert mean is not None
        assert std is not None
        mean, std = (value.expand(shape).reshape(-1) for value in (mean, std))
        first = values[0] / std
        return Layers((first, *values[2::2]), (values[1] - first @ mean, *values[3::2]), mean, std)

    def forward(self, x: Tensor) -> list[Tensor]:
        """x [S, n, D] → the inputs of every layer, and last the logits."""
        values = [x]
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            z = torch.baddbmm(bias.unsqueeze(1), values[-1], weight.transpose(1, 2))
            values.append(z if number + 1 == len(self.weights) else z.relu_())
        return values

    def backward(self, values: Sequence[Tensor], slope: Tensor) -> list[Tensor]:
        """Gradients at the outputs of every layer, from the first to the last, whose is `slope`."""
        slopes = [slope]
        for weight, value in zip(self.weights[:0:-1], values[-2:0:-1], strict=True):
            slopes.append(torch.bmm(slopes[-1], weight).mul_(value > 0))
        return slopes[::-1]

    def at_inputs(self, values: Sequence[Tensor], slope: Tensor) -> Tensor:
        """The gradient at x, [S, n, D]."""
        return torch.bmm(self.backward(values, slope)[0], self.weights[0])

    def at_weights(self, values: Sequence[Tensor], slope: Tensor) -> list[Tensor]:
        """The gradients at weight and bias of every layer in turn, as `of` takes them."""
        found = []
        for value, at_output in zip(values, self.backward(values, slope), strict=False):
            found += [torch.bmm(at_output.transpose(1, 2), value), at_output.sum(dim=1)]
        found[0] = (found[0] - found[1].unsqueeze(2) * self.mean) / self.std
        return found


@dataclass(frozen=True)
class Batch:
    """Images [S, n, D], labels [S, n], where the attack begins, and the values that a pixel may take (linf only)."""

    x: Tensor
    y: Tensor
    point: Tensor
    limits: tuple[Tensor, Tensor] | None

    def rows(self, chosen: slice) -> Batch:
        """A part of the images of every run."""
        limits = None if self.limits is None else (self.limits[0][:, chosen], self.limits[1][:, chosen])
        return Batch(self.x[:, chosen], self.y[:, chosen], self.point[:, chosen], limits)

    def times(self, size: int) -> Batch:
        """The same for so many members."""
        limits = None if self.limits is None else (_times(self.limits[0], size), _times(self.limits[1], size))
        return Batch(_times(self.x, size), self.y.repeat(size, 1), _times(self.point, size), limits)


@dataclass(frozen=True)
class Images:
    """The training images, and for linf the values that each pixel may take, which are worked out once an epoch."""

    x: Tensor
    y: Tensor
    limits: tuple[Tensor, Tensor] | None

    @staticmethod
    def of(x: Tensor, y: Tensor, craft: Adversary) -> Images:
        """craft: the adversary of this epoch."""
        plain = craft.threat.norm == "linf" and craft.radius == 1
        return Images(x, y, craft.threat.interval(x) if plain else None)

    def batch(self, rows: Tensor, craft: Adversary, generators: Sequence[torch.Generator]) -> Batch:
        """rows [S, n]: the images of every run, whose attack begins where its generator says, as the engine's does."""
        if self.limits is None:
            x = self.x[rows]
            begun = [craft.begin(one, generator) for one, generator in zip(x, generators, strict=True)]
            return Batch(x.flatten(2), self.y[rows], torch.stack(begun).flatten(2), None)
        # Copies whole rows, where indexing goes number by number.
        x, low, high = (F.embedding(rows, value.flatten(1)) for value in (self.x, *self.limits))
        eps = craft.threat.eps
        for one, generator in zip(noise := torch.empty_like(x), generators, strict=True):
            one.uniform_(-eps, eps, generator=generator)
        return Batch(x, self.y[rows], torch.minimum(torch.maximum(x + noise, low), high), (low, high))


def learn(
    method: Method, stacks: Sequence[nn.Module], network: Classifier, craft: Adversary, batch: Batch
) -> None:
    """Leave the gradients of one batch in the parameters of `stacks`, one for each member, of S runs each."""
    y = batch.y
    size, (runs, images) = len(stacks), y.shape
    parameters = [list(stack.parameters()) for stack in stacks]
    assert isinstance(craft, TrainingPGD)
    with torch.no_grad():
        # Network s of member m is row m·S + s.
        values = [torch.cat([value.detach() for value in same]) for same in zip(*parameters, strict=True)]
        layers = Layers.of(values, network)
        common = method.common(images) if isinstance(method, Bounded) and size > 1 else 0
        joint = _crafted(layers, craft, _bounded, batch.rows(slice(common)))
        own = _crafted(layers, craft, _cross_entropy, batch.rows(slice(common, None)).times(size))
        reached = layers.forward(torch.cat([_times(joint, size), own], dim=1))
        right = _right(y.repeat(size, 1), reached[-1])
        bounded = method.common(images) if isinstance(method, Bounded) else 0
        parts = (
            Bounded.scale * _bounded(reached[-1][:, :bounded], right[:, :bounded]),
            _mce(reached[-1][:, bounded:], right[:, bounded:]),
        )
        gradients = layers.at_weights(reached, torch.cat(parts, dim=1) / images)
        for index, own_parameters in enumerate(parameters):
            for parameter, gradient in zip(own_parameters, gradients, strict=True):
                parameter.grad = gradient[index * runs : (index + 1) * runs]


def _crafted(layers: Layers, craft: TrainingPGD, slope: Slope, batch: Batch) -> Tensor:
    """PGD on images of S runs: [S, n, D]. Where the networks are M times as many, each point serves M of them."""
    runs, images, features = batch.x.shape
    if not images:
        return batch.x
    times = len(layers.biases[0]) // runs
    onto = _onto(craft, batch)
    point, labels = batch.point, batch.y.repeat(times, 1)
    for _ in range(craft.steps):
        values = layers.forward(_times(point, times))
        gradient = layers.at_inputs(values, slope(values[-1], _right(labels, values[-1])))
        gradient = gradient.view(times, runs * images, features)
        gradient = gradient[0] if times == 1 else gradient.sum(dim=0)
        moved = craft.threat.step(point.reshape(gradient.shape), gradient, craft.step)
        point = onto(moved).view(batch.x.shape)
    return point


def _onto(craft: TrainingPGD, batch: Batch) -> Callable[[Tensor], Tensor]:
    if batch.limits is None:
        return projection(craft.threat, batch.x.flatten(0, 1))
    low, high = (limit.flatten(0, 1) for limit in batch.limits)
    return lambda point: torch.minimum(torch.maximum(point, low), high)


def _right(y: Tensor, z: Tensor) -> Tensor:
    return F.one_hot(y, z.shape[-1]).to(z)


def _times(value: Tensor, times: int) -> Tensor:
    return value if times == 1 else value.repeat(times, 1, 1)


def _cross_entropy(z: Tensor, right: Tensor) -> Tensor:
    return _softmax(z) - right


def _mce(z: Tensor, right: Tensor) -> Tensor:
    """Of CE + 1/(C−1) Σ_{j≠y} −log softmax(−z)_j."""
    return _softmax(z) - right + (1 - right) / (z.shape[-1] - 1) - _softmax(-z)


def _bounded(z: Tensor, right: Tensor) -> Tensor:
    """Of σ(−m), m the margin."""
    others = z.masked_fill(right > 0, -torch.inf)
    highest, rival = others.max(dim=-1, keepdim=True)
    lost = torch.sigmoid(highest - (z * right).sum(dim=-1, keepdim=True))
    steep = lost * (1 - lost)
    return (-steep * right).scatter_add_(-1, rival, steep)


def _softmax(z: Tensor) -> Tensor:
    # torch's own is slow over ten classes.
    powers = torch.exp(z - z.amax(dim=-1, keepdim=True))
    return powers / powers.sum(dim=-1, keepdim=True)
