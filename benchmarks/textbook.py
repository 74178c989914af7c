"""The other sides of the attack benchmarks: ARC-R as its algorithm box reads, other libraries, counted passes."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["Counted", "arc_r", "autoattack", "foolbox_pgd", "torchattacks_pgd"]


class Counted(nn.Module):
    """A frozen copy of a member in torch's default layout, as other code would run it, that counts its passes."""

    def __init__(self, member: nn.Module) -> None:
        super().__init__()
        self.member = copy.deepcopy(member).requires_grad_(False)
        self.eval()
        for parameter in self.member.parameters():
            parameter.data = parameter.data.contiguous()
        self.forwards = 0
        self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        z: Tensor = self.member(x)
        if z.requires_grad:
            z.register_hook(self._count)  # type: ignore[no-untyped-call]
        return z

    def _count(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


def arc_r(
    members: Sequence[nn.Module], x: Tensor, y: Tensor, eps: float, *, steps: int, planes: int, seed: int
) -> Tensor:
    """ARC-R as its algorithm box reads, for equal weights and linf: perturbed inputs.

    Every member is evaluated anew after every step, every plane has its own backward pass, nothing is dropped.
    """
    generator = torch.Generator().manual_seed(seed)

    def risk(points: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.stack([(member(points).argmax(1) != y).float() for member in members]).mean(dim=0)

    def clip(points: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(points, x - eps), x + eps).clamp(0, 1)

    point, best = x.clone(), risk(x)
    for _ in range(steps):
        local, local_best = torch.zeros_like(x), best.clone()
        for position, index in enumerate(torch.randperm(len(members), generator=generator).tolist()):
            distance, normal = _nearest_plane(members[index], clip(point + local), y, planes)
            step = torch.full_like(distance, eps)
            if position:
                inner = (normal * local).flatten(1).sum(dim=1) / normal.flatten(1).abs().sum(dim=1)
                rest = distance - inner
                step = torch.where(
                    rest < eps, eps / (eps - rest).clamp_min(1e-6) * distance + 0.05 * eps, step
                )
            pulled = local - _wide(step.clamp(max=1e3 * eps)) * normal.sign()
            pulled = eps * pulled / _wide(pulled.flatten(1).abs().amax(dim=1).clamp_min(1e-20))
            reached = risk(clip(point + pulled))
            accepted = reached >= local_best
            local = torch.where(_wide(accepted), pulled, local)
            local_best = torch.where(accepted, reached, local_best)
        candidate = clip(point + local)
        reached = risk(candidate)
        accepted = reached >= best
        point = torch.where(_wide(accepted), candidate, point)
        best = torch.where(accepted, reached, best)
    return point


def _nearest_plane(member: nn.Module, points: Tensor, y: Tensor, planes: int) -> tuple[Tensor, Tensor]:
    """Distance in linf and normal of the nearest of the linearized boundaries to the `planes` runners-up."""
    inputs = points.requires_grad_(True)
    z = member(inputs)
    label = z.gather(1, y.unsqueeze(1))
    order = z.detach().scatter(1, y.unsqueeze(1), -torch.inf).topk(planes, dim=1).indices
    (own,) = torch.autograd.grad(label.sum(), inputs, retain_graph=True)
    gaps, normals = [], []
    for plane in range(planes):
        other = z.gather(1, order[:, plane : plane + 1])
        (theirs,) = torch.autograd.grad(other.sum(), inputs, retain_graph=plane < planes - 1)
        gaps.append((label - other).detach().squeeze(1))
        normals.append(own - theirs)
    stacked = torch.stack(normals, dim=1)
    norms = stacked.flatten(2).abs().sum(dim=2).clamp_min(1e-20)
    distance, nearest = (torch.stack(gaps, dim=1).abs() / norms).min(dim=1)
    return distance, stacked[torch.arange(len(y)), nearest]


def _wide(values: Tensor) -> Tensor:
    """One value per image, to be multiplied with images."""
    return values.reshape(-1, 1, 1, 1)


def foolbox_pgd(member: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int) -> Tensor:
    from foolbox.attacks import LinfPGD
    from foolbox.models.pytorch import PyTorchModel

    attack = LinfPGD(rel_stepsize=0.25, steps=steps, random_start=False)
    clipped: Tensor = attack(PyTorchModel(member, bounds=(0, 1), device="cpu"), x, y, epsilons=eps)[1]
    return clipped


def torchattacks_pgd(member: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int) -> Tensor:
    import torchattacks

    attack = torchattacks.PGD(member, eps=eps, alpha=eps / 4, steps=steps, random_start=False)
    found: Tensor = attack(x, y)
    return found


def autoattack(member: nn.Module, x: Tensor, y: Tensor, eps: float, parts: Sequence[str]) -> Tensor:
    """The parts of AutoAttack's standard version in linf."""
    import pyautoattack

    attack = pyautoattack.AutoAttack(member, norm="Linf", eps=eps, seed=0, device="cpu", version="standard")
    attack.attacks_to_run = list(parts)
    found: Tensor = attack.run_standard_evaluation(x, y, batch_size=len(x))[0]
    return found
