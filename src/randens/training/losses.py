"""Losses that members minimize, adversaries that maximize them to make the training examples, and steps.

A training loss calls the member itself, so each makes just the passes it needs. Adversaries return their last point,
not the worst as attacks do; the attacked members are in eval mode, and only the input has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from randens import attacks
from randens.attacks import losses as attack_losses
from randens.attacks.losses import cross_entropies, mce
from randens.ensemble import RandomizedEnsemble
from randens.threat import Threat
from randens.training.recipe import AdversaryPart, LossPart, OptimizerPart, SchedulePart

Forward = Callable[[Tensor], Tensor]
TrainingLoss = Callable[[Forward, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""``loss(forward, x, x_adv, y)``: the loss per image [n], and the logits at x_adv [n, C]."""


def divergence(log_probs: Tensor, z: Tensor) -> Tensor:
    """KL(exp(log_probs) ‖ softmax(z)) over the last dimension."""
    return (log_probs.exp() * (log_probs - z.log_softmax(dim=-1))).sum(dim=-1)


OBJECTIVES: dict[tuple[str, str], attack_losses.Loss] = {
    ("cross-entropy", "loss"): attack_losses.expected_cross_entropy,
    ("cross-entropy", "softmax"): attack_losses.mixture_cross_entropy,
    ("cross-entropy", "logits"): attack_losses.mean_logit_cross_entropy,
    ("cross-entropy", "bounded"): attack_losses.expected_bounded_risk,
    ("mce", "loss"): attack_losses.expected_mce,
    ("mce", "softmax"): attack_losses.mixture_mce,
    ("mce", "logits"): attack_losses.mean_logit_mce,
    ("mce", "bounded"): attack_losses.expected_bounded_risk,
}
"""What the training adversary maximizes, by its loss and the level at which the expectation over α is taken."""


def training_loss(part: LossPart) -> TrainingLoss:
    """The loss that a recipe names; TRADES is CE(f(x), y) + β KL(softmax f(x) ‖ softmax f(x_adv))."""

    def trades(forward: Forward, x: Tensor, x_adv: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z, z_adv = forward(x), forward(x_adv)
        weight = 6.0 if part.weight is None else part.weight
        return cross_entropies(z, y) + weight * divergence(z.log_softmax(dim=-1), z_adv), z_adv

    def adversarial(forward: Forward, _: Tensor, x_adv: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = forward(x_adv)
        if part.name == "cross-entropy":
            return cross_entropies(z, y), z
        return mce(z, y, 1.0 if part.weight is None else part.weight), z

    return trades if part.name == "trades" else adversarial


def passes(part: LossPart) -> int:
    """Forward (and backward) passes of the member per image."""
    return 2 if part.name == "trades" else 1


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
        return AttackedMembers.of([self.members[index]], torch.ones(1).to(self.probs), [self.forwards[index]])

    def logits(self, x: Tensor) -> Tensor:
        """[M, n, C], float32."""
        return torch.stack([forward(x) for forward in self.forwards])


@dataclass(frozen=True)
class Start:
    """A batch and its starting points; `place` is (first image, images in all), `count` hears of passes not planned."""

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
        return lambda z: OBJECTIVES[self.loss, self.level](z, start.y, attacked.probs)


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


def optimizer(members: Sequence[nn.Module], part: OptimizerPart) -> torch.optim.Optimizer:
    """The optimizer of a stage; weights that members share appear once."""
    weights = list(dict.fromkeys(p for member in members for p in member.parameters()))
    shared: dict[str, Any] = {"lr": part.lr, "weight_decay": part.weight_decay, "fused": True}
    if part.name == "adamw":
        return torch.optim.AdamW(weights, betas=(part.momentum, 0.999), **shared)
    return torch.optim.SGD(weights, momentum=part.momentum, nesterov=part.nesterov, **shared)


def learning_rate(part: SchedulePart, base: float, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of step number `step`, from 0; cyclic: up from 0 to `base` for the share `peak`, then down to 0."""
    if part.name == "constant":
        return base
    if part.name == "steps":
        epoch = step // steps_per_epoch
        return base * part.factor ** sum(epoch >= milestone for milestone in part.milestones)
    total = steps_per_epoch * epochs
    position = (step + 0.5) / total
    if position < part.peak:
        return base * position / part.peak
    return base * (1 - position) / (1 - part.peak)


@torch.no_grad()
def average(target: nn.Module, source: nn.Module, decay: float, step: int) -> None:
    """target ← d·target + (1 − d)·source, with d = min(decay, (1 + step)/(10 + step)) to forget the random start."""
    rate = 1.0 - min(decay, (1 + step) / (10 + step))
    old = target.state_dict()
    new = source.state_dict()
    floating = [key for key, value in old.items() if value.is_floating_point()]
    torch._foreach_lerp_([old[k] for k in floating], [new[k] for k in floating], rate)
    for key, value in old.items():
        if not value.is_floating_point():
            value.copy_(new[key])
