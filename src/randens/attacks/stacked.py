"""Small fully connected members of one shape, run together: one batched product per layer instead of one per member.

In a network of a few thousand weights most time is overhead between operations, so M of them together cost
little more than one. Convolutions are not stacked: grouped convolutions are slower on a CPU than separate
ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from randens.models import Classifier, networks

__all__ = ["Stack", "stack_of"]

_LARGEST = 2**16  # weights of a member; larger members use the processor fully on their own

Layer = tuple[Tensor, Tensor]
"""A linear layer: weight [out, in] and bias [out]."""


class Stack:
    """M networks of one shape: ``stack(x [M, m, ...]) -> logits [M, m, C]``, row i through network i."""

    def __init__(self, networks: Sequence[Sequence[Layer]]) -> None:
        layers = list(zip(*networks, strict=True))
        self.weights = [torch.stack([w.t() for w, _ in layer]) for layer in layers]
        self.biases = [torch.stack([b for _, b in layer]).unsqueeze(1) for layer in layers]

    def __len__(self) -> int:
        return len(self.weights[0])

    def __call__(self, x: Tensor) -> Tensor:
        hidden = x.flatten(2)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, torch.relu(hidden) if number else hidden, weight)
        return hidden

    def at(self, inputs: Tensor, members: Tensor) -> Tensor:
        """Logits [p, C] of inputs [p, ...], input j through network members[j]; members [p] ascending."""
        counts = torch.bincount(members, minlength=len(self))
        # Every network gets as many rows as the largest group; the padding's outputs are not read.
        most = int(counts.max())
        begins = counts.cumsum(0) - counts
        place = members * most + torch.arange(len(members), device=members.device) - begins[members]
        padded = inputs.new_zeros(len(self) * most, *inputs.shape[1:]).index_copy(0, place, inputs)
        answers: Tensor = self(torch.unflatten(padded, 0, (len(self), most))).flatten(0, 1)
        return answers.index_select(0, place)


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
