"""Adversaries that make the training examples: PGD, FGSM-RS, N-FGSM and, for the paper's overfitting figure, ARC.

They return their last point, not the worst as attacks do, so they need no passes beyond the gradients. The attacked
members are in eval mode, and only the input has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from randens import attacks
from randens.ensemble import RandomizedEnsemble
from randens.threat import Threat
from randens.training.losses import Forward, divergence, objective
from randens.training.recipe import AdversaryPart


@dataclass(frozen=True)
class AttackedMembers:
    """The members under attack, how to run each (in lower precision, compiled), and their probabilities [M]."""

    members: tuple[nn.Module, ...]
    forwards: tuple[Forward, ...]
    probs: Tensor

    @staticmethod
    def of(
        members: Sequence[nn.Module], probs: Tensor, forwards: Sequence[Forward] | None = None
    ) -> AttackedMembers:
        """The members that are ever sampled; the others are left out."""
        sampled = [i for i, p in enumerate(probs.tolist()) if p > 0]
        runs = members if forwards is None else forwards
        return AttackedMembers(
            tuple(members[i] for i in sampled), tuple(runs[i] for i in sampled), probs[sampled]
        )

    def only(self, index: int) -> AttackedMembers:
        """One of the members alone."""
        return AttackedMembers(
            (self.members[index],), (self.forwards[index],), torch.ones_like(self.probs[:1])
        )

    def logits(self, x: Tensor) -> Tensor:
        """[M, n, C], float32."""
        return torch.stack([forward(x) for forward in self.forwards])


@dataclass(frozen=True)
class Start:
    """A batch, the starting points, a seed for later random choices, the place of this rank's part in the whole batch
    (first image, images in all), and what to call with passes that no plan foresees.
    """

    x: Tensor
    y: Tensor
    point: Tensor
    seed: int = 0
    place: tuple[int, int] = (0, 0)
    count: Callable[[int, int], None] = lambda *_: None

    def __getitem__(self, rows: slice) -> Start:
        """A part of the batch."""
        return replace(self, x=self.x[rows], y=self.y[rows], point=self.point[rows])


@dataclass(frozen=True)
class Adversary:
    """δ ← Π(δ + step·μ_p(∇ objective)), from a random point of the ball of radius `radius`·ε (Eq. 95).

    One step from radius 1 is FGSM-RS (Wong, Rice and Kolter). One step from a noisier point, clipped to the box but
    not to the ball (`projects` False), is N-FGSM (de Jorge et al.), which prevents catastrophic overfitting. `arc` is
    ARC or ARC-R instead, which climb no loss; training on them overfits (the paper's appendix).

    `begin` makes the random start of a whole batch; `craft` goes on from there for any part, e.g. one process's.
    """

    threat: Threat
    level: str
    steps: int
    step: float = 0.0
    radius: float = 1.0
    loss: str = "cross-entropy"
    projects: bool = True
    arc: str | None = None

    def begin(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The starting point of the search for every input."""
        return self.threat.scaled(self.radius).random(x, generator) if self.radius else x

    def craft(self, attacked: AttackedMembers, start: Start) -> Tensor:
        """Adversarial inputs."""
        if self.arc is not None:
            rec = RandomizedEnsemble(list(attacked.members), attacked.probs)
            attack = attacks.create(
                self.arc, self.threat, steps=self.steps, seed=start.seed, batch_size=max(1, len(start.x))
            )
            found = attack(rec, start.x, start.y)
            start.count(found.cost.forwards, found.cost.backwards)
            return found.x_adv.to(start.x.device)
        value = self._objective(attacked, start)
        point = start.point
        for _ in range(self.steps):
            with torch.enable_grad():
                variable = point.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(value(attacked.logits(variable)).sum(), variable)
            point = self.threat.step(point, gradient, self.step)
            if self.projects:
                point = self.threat.project(point, start.x)
            elif self.threat.bounds is not None:
                point = point.clamp(*self.threat.bounds)
        return point

    def passes(self, attacked: int) -> int:
        """Member passes, forward and as many backward, per image; ARC's are not known beforehand and count as 0."""
        return 0 if self.arc else attacked * (self.steps + (self.level == "kl"))

    def alone(self) -> Adversary:
        """The same adversary of a single member."""
        return self if self.level == "kl" else replace(self, level="loss")

    def _objective(self, attacked: AttackedMembers, start: Start) -> Callable[[Tensor], Tensor]:
        """A function of the members' logits; "kl" is TRADES's Σ α_i KL(f_i(x) ‖ f_i(x'))."""
        if self.level == "kl":
            with torch.no_grad():
                clean = attacked.logits(start.x).log_softmax(dim=-1)
            return lambda z: attacked.probs.to(z.dtype) @ divergence(clean, z)
        return lambda z: objective(self.loss, self.level, z, start.y, attacked.probs)


def adversary(part: AdversaryPart, threat: Threat, level: str) -> Adversary:
    """The adversary that a recipe names; `level` is the method's default, for "auto" in the recipe."""
    chosen = level if part.level == "auto" else part.level
    if part.name == "pgd":
        return Adversary(threat, chosen, part.steps, part.step or threat.eps / 4, part.start, part.loss)
    if part.name == "fgsm-rs":
        return Adversary(threat, chosen, 1, part.step or 1.25 * threat.eps, loss=part.loss)
    if part.name == "n-fgsm":
        step = part.step or threat.eps
        return Adversary(threat, chosen, 1, step, part.noise, part.loss, projects=False)
    return Adversary(threat, chosen, part.steps, radius=0.0, arc=part.name)
