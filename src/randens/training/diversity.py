"""What makes members differ: tied paths, distilled features, the linearised game, a bounded risk, teachers.

The methods of `randens.training.methods` that are designed to make drawing pay use these functions. Drawing
lowers the risk only if the members' gradients conflict, so that one perturbation cannot fool all members; see
`randens.conflict`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from randens.attacks.losses import margins
from randens.threat import Threat
from randens.training.adversaries import Adversary, Start, Victims
from randens.training.losses import Forward, divergence

__all__ = [
    "RandomPath",
    "bounded_risk",
    "distilled",
    "game_value",
    "overlap",
    "taught",
    "tied_paths",
]


def tied_paths(members: Sequence[nn.Module]) -> list[nn.Module]:
    """Members that share every tensor except the weights of one middle layer, which are mutually orthogonal.

    The shared tensors are those of the first member. The layer is the middle one of all convolutions and
    linear layers. Filter by filter, the members' copies are orthogonal and have the norm of the first
    member's filter, up to the number of dimensions of the filter.
    """
    trunk = members[0]
    layer = _middle(trunk)
    shared = [*trunk.parameters(), *trunk.buffers()]
    own = _weight(trunk, layer)
    memo = {id(tensor): tensor for tensor in shared if tensor is not own}
    paths = [trunk, *(copy.deepcopy(trunk, dict(memo)) for _ in members[1:])]
    stacked = torch.stack([_weight(member, layer).detach().flatten(1) for member in members], dim=1)
    norms = stacked[:, :1].norm(dim=2, keepdim=True)
    for start in range(0, len(members), stacked.shape[2]):  # no more orthogonal copies than dimensions
        block = stacked[:, start : start + stacked.shape[2]]
        stacked[:, start : start + block.shape[1]] = torch.linalg.qr(block.transpose(1, 2)).Q.transpose(1, 2)
    with torch.no_grad():
        for index, path in enumerate(paths):
            weight = _weight(path, layer)
            weight.copy_((stacked[:, index] * norms[:, 0]).view_as(weight))
    return paths


def overlap(paths: Sequence[nn.Module]) -> Tensor:
    """Mean squared cosine between the paths' copies of the middle layer, over filters and pairs: 0 if orthogonal."""
    layer = _middle(paths[0])
    rows = torch.stack([_weight(path, layer).flatten(1) for path in paths], dim=1)
    unit = nn.functional.normalize(rows, dim=2)
    cosines = torch.einsum("oik,ojk->oij", unit, unit).triu(1)
    return cosines.square().sum() / (len(rows) * len(paths) * (len(paths) - 1) / 2)


def _weight(member: nn.Module, layer: str) -> nn.Parameter:
    return member.get_parameter(f"{layer}.weight")


def _middle(member: nn.Module) -> str:
    names: list[str] = [
        name for name, part in member.named_modules() if isinstance(part, (nn.Conv2d, nn.Linear))
    ]
    return names[len(names) // 2]


@dataclass(frozen=True)
class RandomPath(Victims):
    """Members under attack; every step draws one of them and uses it alone: one pass per step for any M."""

    generator: torch.Generator = field(default_factory=torch.Generator)

    @staticmethod
    def among(victims: Victims, seed: int) -> RandomPath:
        """The victims' paths, drawn evenly by a generator of `seed`."""
        one = torch.ones(1, dtype=victims.probs.dtype, device=victims.probs.device)
        return RandomPath(victims.members, victims.forwards, one, torch.Generator().manual_seed(seed))

    def logits(self, x: Tensor) -> Tensor:
        drawn = int(torch.randint(len(self.forwards), (), generator=self.generator))
        return self.forwards[drawn](x)[None]


def distilled(craft: Adversary, victim: Forward, start: Start, order: Tensor) -> Tensor:
    """Inputs near x whose logits by `victim` are those of other images, x[order]: its non-robust features.

    min ‖f(x') − f(x[order])‖² over the ball, by as many steps as `craft` takes (after DVERGE, Yang et al. 2020).
    """
    with torch.no_grad():
        goal = victim(start.x[order])
    point, steps = start.point, craft.gradients
    for _ in range(steps):
        with torch.enable_grad():
            variable = point.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((victim(variable) - goal).square().sum(), variable)
        stride = max(2.5 / steps, 0.5) * craft.threat.eps if steps > 1 else craft.threat.eps
        point = craft.threat.project(point - stride * craft.threat.steepest(gradient), start.x)
    return point.detach()


def game_value(forwards: Sequence[Forward], x: Tensor, y: Tensor, threat: Threat) -> tuple[Tensor, Tensor]:
    """The value of the linearised game with one perturbation of size ε, per input and in units of ε, [n].

    With margins m_i and their gradients w_i at x: J = mean_i m_i/(ε‖w_i‖_q) − ‖mean_i w_i/‖w_i‖_q‖_q, the value at
    λ uniform of the game between a perturbation and the members. Where J > 0 one perturbation cannot fool all
    linearised members. J does not change with the scale of a member's logits, so vanishing gradients do not raise
    it. The second result, bool [n], says where it counts: all margins positive, all gradients usable.
    """
    distances, directions, usable = [], [], torch.ones(len(x), dtype=torch.bool, device=x.device)
    with torch.enable_grad():
        variable = x.detach().requires_grad_()
        for forward in forwards:
            margin = margins(forward(variable)[None], y)[0]
            (slope,) = torch.autograd.grad(margin.sum(), variable, create_graph=True)
            flat = slope.flatten(1)
            norm = flat.abs().sum(dim=1) if threat.norm == "linf" else flat.norm(dim=1)
            usable = usable & (margin > 0) & (norm > 1e-6)
            safe = norm.clamp_min(1e-6)
            distances.append(margin / (threat.eps * safe))
            directions.append(flat / safe[:, None])
        joint = torch.stack(directions).mean(dim=0)
        reach = joint.abs().sum(dim=1) if threat.norm == "linf" else joint.norm(dim=1)
    return torch.stack(distances).mean(dim=0) - reach, usable.detach()


def bounded_risk(z: Tensor, y: Tensor) -> Tensor:
    """Return σ(−m) of the margin m, [n]: between 0 and 1 like the error, so a misclassified input costs at most 1."""
    return torch.sigmoid(-margins(z[None], y)[0])


def taught(z: Tensor, lessons: Tensor) -> Tensor:
    """KL(softmax of the teachers' mean logits ‖ softmax z), per input."""
    return divergence(lessons.log_softmax(dim=-1), z)
