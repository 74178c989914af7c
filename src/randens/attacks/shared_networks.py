"""Gradients of members that average the same networks, with one pass per network.

The margin of an average against class c is the average of the networks' differences z_y − z_c, and so is its gradient.
Averages of the same networks mostly have the same runner-up, so one backward pass per network and point is
enough for nearly all of them. Where they differ, each further class takes one more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from randens.attacks.members import GradientMembers
from randens.ensemble import to_layout

__all__ = ["SharedPlanes", "shared_planes"]


@dataclass(frozen=True)
class SharedPlanes:
    """Decision boundaries of all members at k points.

    z: logits [M, k, C]. gaps: the G smallest z_y − z_c of every member [M, k, G]; gradients: theirs [M, k, G, d]. All
    are zero where a member was not wanted. forwards, backwards: network passes.
    """

    z: Tensor
    gaps: Tensor
    gradients: Tensor
    forwards: int
    backwards: int


def shared_planes(
    members: GradientMembers, points: Tensor, y: Tensor, wanted: Tensor, count: int
) -> SharedPlanes:
    """The `count` nearest boundaries of the members `wanted` [k, M] at `points` [k, ...] with labels y [k]."""
    needed = members.needed(wanted)
    rows = [needed[:, network].nonzero().flatten() for network in range(needed.shape[1])]
    graphs = [_graph(members, network, points[part]) for network, part in enumerate(rows)]
    classes = next(z.shape[1] for _, z in graphs if len(z))
    outputs = []
    for part, (_, answer) in zip(rows, graphs, strict=True):
        filled = points.new_zeros(len(points), classes)
        if len(part):
            filled[part] = answer.detach().to(points.dtype)
        outputs.append(filled)
    count = min(count, classes - 1)
    size = len(members.parts)
    z = torch.stack([members.combined(i, [outputs[b] for b in part]) for i, part in enumerate(members.parts)])
    right = y.expand(size, -1).unsqueeze(2)
    near = (z.gather(2, right) - z).scatter(2, right, torch.inf).topk(count, dim=2, largest=False)
    use = wanted.T.unsqueeze(2)
    gradients = points.new_zeros(size, len(points), count, points[0].numel())
    forwards = sum(len(part) * price for part, price in zip(rows, members.passes, strict=True))
    backwards = 0
    for network, part in enumerate(rows):
        if not len(part):
            continue
        users = [i for i, networks in enumerate(members.parts) if network in networks]
        asked = torch.zeros(len(points), classes, dtype=torch.bool, device=points.device)
        for i in users:
            asked |= torch.zeros_like(asked).scatter(1, near.indices[i], True) & use[i]
        turn = asked.cumsum(dim=1) - 1
        for slot in range(int(asked.sum(dim=1).max())):
            here = (asked & (turn == slot))[part]
            mine = here.any(dim=1).nonzero().flatten()
            if slot == 0:
                inputs, answer = graphs[network]
            else:
                # At a few points another average has another runner-up: only these points are run again.
                inputs, answer = _graph(members, network, points[part[mine]])
                forwards += len(mine) * members.passes[network]
                here = here[mine]
            labels = y[part] if slot == 0 else y[part[mine]]
            other = here.int().argmax(dim=1)
            value = answer.gather(1, labels.unsqueeze(1)) - answer.gather(1, other.unsqueeze(1))
            slope = _gradient(value, inputs).flatten(1)
            backwards += len(inputs) * members.passes[network]
            where = part if slot == 0 else part[mine]
            for i in users:
                share = members.share(i, network)
                hit = ((near.indices[i][where] == other.unsqueeze(1)) & use[i][where]).unsqueeze(2)
                # Not hit × slope, because a NaN slope must not reach members that do not need it.
                gradients[i, where] += torch.where(hit, share * slope.unsqueeze(1), 0.0)
    gaps = torch.where(use, near.values, torch.zeros_like(near.values))
    return SharedPlanes(z, gaps, gradients, forwards, backwards)


def _graph(members: GradientMembers, network: int, points: Tensor) -> tuple[Tensor, Tensor]:
    inputs = to_layout(points).detach().requires_grad_(True)
    return inputs, members.run(network, inputs) if len(points) else points.new_zeros(0, 0)


def _gradient(value: Tensor, inputs: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(inputs)
    (gradient,) = torch.autograd.grad(value.sum(), inputs, allow_unused=True)
    return torch.zeros_like(inputs) if gradient is None else gradient
