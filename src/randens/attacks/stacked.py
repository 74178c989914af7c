"""Small fully connected members of one shape, run together: one batched product per layer instead of one per member.

In a network of a few thousand weights most time is overhead between operations, so M of them together cost
little more than one. Convolutions are not stacked: grouped convolutions are slower on a CPU than separate
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from randens.models import Classifier, networks

__all__ = ["Stack", "StackedPass", "stack_of"]

threshold_backward = torch.ops.aten.threshold_backward.grad_input
_LARGEST = 2**16  # weights of a member; larger members use the processor fully on their own

Layer = tuple[Tensor, Tensor]
"""A linear layer: weight [out, in] and bias [out]."""


class Stack:
    """M networks of one shape, run together. Gradients are computed here: torch's autograd takes longer than the
    products.

    Weights are kept in both layouts, [M, out, in] and [M, in, out]: products with a transposed view are slower.
    """

    def __init__(self, networks: Sequence[Sequence[Layer]]) -> None:
        layers = list(zip(*networks, strict=True))
        self.weights = [torch.stack([w for w, _ in layer]) for layer in layers]
        self.transposed = [weight.transpose(1, 2).contiguous() for weight in self.weights]
        self.biases = [torch.stack([b for _, b in layer]).unsqueeze(1) for layer in layers]
        self._parts: dict[tuple[int, int], _Part] = {}

    def __len__(self) -> int:
        return len(self.weights[0])

    def at(self, inputs: Tensor, members: Tensor) -> StackedPass:
        """Inputs [p, ...], input j through network members[j]; members [p] ascending, p ≥ 1."""
        first, last = int(members[0]), int(members[-1])
        if first == last:
            return self.at_each(inputs, [first])
        counts = torch.bincount(members, minlength=len(self)).tolist()
        most, place = max(counts), None
        if any(count != most for count in counts[first : last + 1]):
            # Every network gets as many rows as the largest group; the padding's outputs are not read.
            shift = torch.tensor(
                [(i - first) * most - sum(counts[:i]) for i in range(len(self))], device=members.device
            )
            place = torch.arange(len(members), device=members.device) + shift[members]
        rows = _spread(inputs.detach().flatten(1), place, (last + 1 - first, most))
        return _run(self._part(first, last), rows, place, inputs.shape)

    def at_each(self, inputs: Tensor, networks: Sequence[int]) -> StackedPass:
        """Every input [k, ...] through each of the networks, ascending: rows [len(networks)·k], network by network."""
        rows = inputs.detach().flatten(1).expand(len(networks), -1, -1)  # no copies: all read the same inputs
        shape = torch.Size([len(networks) * len(inputs), *inputs.shape[1:]])
        first, last = networks[0], networks[-1]
        gapless = last - first + 1 == len(networks)
        part = self._part(first, last) if gapless else self._taken(list(networks))
        return _run(part, rows, None, shape)

    def _part(self, first: int, last: int) -> _Part:
        """Views of neighbouring networks, which are kept: making them takes as long as a small product."""
        if (first, last) not in self._parts:
            self._parts[first, last] = self._taken(slice(first, last + 1))
        return self._parts[first, last]

    def _taken(self, networks: slice | list[int]) -> _Part:
        kinds = self.weights, self.transposed, self.biases
        weights, transposed, biases = ([each[networks] for each in kind] for kind in kinds)
        return _Part(weights, transposed[:-1], biases[:-1], biases[-1].transpose(1, 2))


@dataclass(frozen=True, eq=False)
class _Part:
    """Some networks of a stack: weights [networks, out, in] of all layers; transposed weights and biases of all but the
    last; the last bias [networks, C, 1].
    """

    weights: list[Tensor]
    transposed: list[Tensor]
    biases: list[Tensor]
    last: Tensor


def _run(part: _Part, hidden: Tensor, place: Tensor | None, shape: torch.Size) -> StackedPass:
    """The networks of `part`, each on its own rows of `hidden` [networks, rows, d]; no tensor here has a gradient."""
    groups, active = (hidden.shape[0], hidden.shape[1]), []
    for weight, bias in zip(part.transposed, part.biases, strict=True):
        hidden = torch.baddbmm(bias, hidden, weight).relu_()
        active.append(hidden)
    # Few classes: the product is several times as fast with the rows as columns.
    z = torch.baddbmm(part.last, part.weights[-1], hidden.transpose(1, 2)).transpose(1, 2)
    return StackedPass(_gathered(z, place), shape, place, groups, active, part.weights)


@dataclass(frozen=True, eq=False)
class StackedPass:
    """One pass of a `Stack` over p inputs of `shape`: logits z [p, C], and what the backward pass needs.

    groups: networks and rows of each; place [p]: the inputs' rows among theirs, None where they are in order; active:
    outputs of the ReLUs [networks, rows, width]; weights: of the layers [networks, out, in].
    """

    z: Tensor
    shape: torch.Size
    place: Tensor | None
    groups: tuple[int, int]
    active: list[Tensor]
    weights: list[Tensor]

    def gradient(self, slopes: Tensor) -> Tensor:
        """Σ_c slopes_c ∂z_c/∂input for every input, [p, ...]; slopes [p, C]."""
        return self.gradients(slopes.unsqueeze(1)).reshape(self.shape)

    def gradients(self, slopes: Tensor) -> Tensor:
        """The gradients of G combinations of the logits, [p, G, ...]; slopes [p, G, C]."""
        planes, (networks, rows) = slopes.shape[1], self.groups
        spread = _spread(slopes.detach().flatten(1), self.place, self.groups)
        gradient = torch.bmm(spread.reshape(networks, rows * planes, -1), self.weights[-1])
        for weight, active in zip(self.weights[-2::-1], self.active[::-1], strict=True):
            # Not a product with `active > 0`, whose mixed types are several times slower.
            each = gradient if planes == 1 else gradient.view(networks, rows, planes, -1)
            threshold_backward(each, active if planes == 1 else active.unsqueeze(2), 0, grad_input=each)
            gradient = torch.bmm(gradient, weight)
        found = _gathered(gradient.reshape(networks, rows, -1), self.place)
        return found.reshape(self.shape[0], planes, *self.shape[1:])


def _spread(rows: Tensor, place: Tensor | None, groups: tuple[int, int]) -> Tensor:
    """Rows [p, d] as [networks, rows, d], each at its place; zero elsewhere."""
    if place is not None:
        rows = rows.new_zeros(groups[0] * groups[1], rows.shape[1]).index_copy_(0, place, rows)
    return rows.reshape(*groups, rows.shape[1])


def _gathered(rows: Tensor, place: Tensor | None) -> Tensor:
    """The reverse of `_spread`."""
    flat = rows.flatten(0, 1)
    return flat if place is None else flat.index_select(0, place)


def stack_of(members: Sequence[nn.Module]) -> Stack | None:
    """The members as a stack; None if one of them is not a small fully connected ReLU network, or shapes differ."""
    if len(members) < 2:
        return None
    chains = [_layers(member) for member in members]
    found = [chain for chain in chains if chain]
    if len(found) < len(members) or sum(w.numel() for w, _ in found[0]) > _LARGEST:
        return None
    shapes = {tuple((w.shape, w.dtype, w.device) for w, _ in chain) for chain in found}
    return Stack(found) if len(shapes) == 1 else None


def _layers(member: nn.Module) -> list[Layer] | None:
    """Weights and biases of the linear layers, if there is a ReLU between each two; None for any other network."""
    ours = type(member) is Classifier
    parts = _parts(member.body if isinstance(member, Classifier) and ours else member)
    if not parts or _hooked(member) or any(isinstance(parts[end], nn.ReLU) for end in (0, -1)):
        return None
    layers: list[Layer] = []
    before: nn.Module | None = None
    for part in parts:
        if isinstance(part, nn.Linear):
            if isinstance(before, nn.Linear):
                return None
            weight = part.weight.detach()
            bias = weight.new_zeros(len(weight)) if part.bias is None else part.bias.detach()
            layers.append((weight, bias))
        before = part
    if isinstance(member, Classifier):
        layers[0] = _normalised(*layers[0], member)
    return layers


def _normalised(weight: Tensor, bias: Tensor, member: Classifier) -> Layer:
    """The first layer for inputs that are not normalised: W((x − μ)/σ) + b = (W/σ)x + (b − (W/σ)μ)."""
    zero = weight.new_zeros(member.input_shape)
    if member.std is not None:
        weight = weight / (zero + member.std.to(zero)).flatten()
    if member.mean is not None:
        bias = bias - weight @ (zero + member.mean.to(zero)).flatten()
    return weight, bias


def _parts(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a plain chain in the order in which they act, without those that change nothing here."""
    kind = type(module)
    if _hooked(module) or module.training:
        return None
    if kind in (nn.Linear, nn.ReLU):
        return [module]
    if kind in (nn.Identity, nn.Dropout) or (isinstance(module, nn.Flatten) and module.start_dim == 1):
        return []
    if kind not in (nn.Sequential, networks.MLP, networks.Linear):
        return None
    found = [_parts(child) for child in module.children()]
    return None if any(part is None for part in found) else [layer for part in found for layer in part or []]


def _hooked(module: nn.Module) -> bool:
    """Whether the module has hooks, which act when it is called."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks)
