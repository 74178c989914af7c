"""Adversaries that make the training examples: PGD, FGSM-RS, N-FGSM and, for the paper's overfitting figure, ARC.

The attacks of `randens.attacks` keep the worst of all points. These adversaries return their last point,
which is what the methods train on; this needs no passes beyond the gradients. The attacked members are in
eval mode, and only the input has a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from randens import attacks
from randens.attacks.losses import (
    Loss,
    expected_bounded_risk,
    expected_cross_entropy,
    expected_mce,
    mean_logit_cross_entropy,
    mean_logit_mce,
    mixture_cross_entropy,
    mixture_mce,
)
from randens.ensemble import RandomizedEnsemble
from randens.threat import Threat
from randens.training.losses import Forward, divergence
from randens.training.recipe import AdversaryPart

__all__ = [
    "Adversary",
    "Arc",
    "FGSMRS",
    "NFGSM",
    "TrainingPGD",
    "Start",
    "Victims",
    "adversary",
    "projection",
]

_LEVELS: dict[tuple[str, str], Loss] = {
    ("cross-entropy", "loss"): expected_cross_entropy,
    ("cross-entropy", "softmax"): mixture_cross_entropy,
    ("cross-entropy", "logits"): mean_logit_cross_entropy,
    ("mce", "loss"): expected_mce,
    ("mce", "softmax"): mixture_mce,
    ("mce", "logits"): mean_logit_mce,
    # The bounded risk is its own loss; the recipe's choice of loss does not apply to it.
    ("cross-entropy", "bounded"): expected_bounded_risk,
    ("mce", "bounded"): expected_bounded_risk,
}
Objective = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Victims:
    """The members under attack, how to run each (in lower precision, compiled), and their probabilities [M].

    Members that are never drawn are left out.
    """

    members: tuple[nn.Module, ...]
    forwards: tuple[Forward, ...]
    probs: Tensor

    @staticmethod
    def of(members: Sequence[nn.Module], probs: Tensor, forwards: Sequence[Forward] | None = None) -> Victims:
        drawn = [i for i, p in enumerate(probs.tolist()) if p > 0]
        runs = members if forwards is None else forwards
        return Victims(tuple(members[i] for i in drawn), tuple(runs[i] for i in drawn), probs[drawn])

    def only(self, index: int) -> Victims:
        """Return one of the members alone."""
        return Victims((self.members[index],), (self.forwards[index],), torch.ones_like(self.probs[:1]))

    def logits(self, x: Tensor) -> Tensor:
        """[M, n, C], float32."""
        return torch.stack([forward(x) for forward in self.forwards])


@dataclass(frozen=True)
class Start:
    """A batch, the starting point of the search for each input, and a seed for later random choices."""

    x: Tensor
    y: Tensor
    point: Tensor
    seed: int = 0

    def __getitem__(self, rows: slice) -> Start:
        """A part of the batch."""
        return Start(self.x[rows], self.y[rows], self.point[rows], self.seed)


@dataclass(frozen=True)
class Adversary(ABC):
    """`begin` draws the random start for a whole batch; `craft` continues from there, for any part of it.

    They are separate so that several processes can share one batch and still use the same random numbers.
    """

    threat: Threat
    level: str
    loss: str = field(default="cross-entropy", kw_only=True)

    @property
    def radius(self) -> float:
        """Radius of the random start, in units of ε; 0 is the clean input."""
        return 1.0

    @property
    def gradients(self) -> int:
        """Input gradients per image and member."""
        return 1

    def begin(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the starting point of the search for every input."""
        return self.threat.scaled(self.radius).random(x, generator) if self.radius else x

    @abstractmethod
    def craft(self, victims: Victims, start: Start) -> Tensor:
        """Adversarial inputs."""

    def passes(self, victims: int) -> int:
        """Member passes, forward and as many backward, per image."""
        return victims * (self.gradients + (self.level == "kl"))

    def climb(self, victims: Victims, start: Start) -> Callable[[Tensor, float], Tensor]:
        """The steepest step of a given length from a point (not yet projected)."""
        objective = self._objective(victims, start)

        def moved(point: Tensor, length: float) -> Tensor:
            with torch.enable_grad():
                variable = point.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(objective(victims.logits(variable)).sum(), variable)
            return self.threat.step(point, gradient, length)

        return moved

    def _objective(self, victims: Victims, start: Start) -> Objective:
        """Return the objective as a function of the members' logits; "kl" is TRADES's Σ α_i KL(f_i(x) ‖
        f_i(x')).
        """
        if self.level == "kl":
            with torch.no_grad():
                clean = victims.logits(start.x).log_softmax(dim=-1)
            return lambda z: victims.probs.to(z.dtype) @ divergence(clean, z)
        loss = _LEVELS[self.loss, self.level]
        return lambda z: loss(z, start.y, victims.probs)


@dataclass(frozen=True)
class TrainingPGD(Adversary):
    """δ ← Π(δ + step·μ_p(∇ objective)), from a random point of the ball of radius `start`·ε (Eq. 95)."""

    steps: int
    step: float
    start: float = 1.0

    @property
    def radius(self) -> float:
        return self.start

    @property
    def gradients(self) -> int:
        return self.steps

    def craft(self, victims: Victims, start: Start) -> Tensor:
        moved, onto = self.climb(victims, start), projection(self.threat, start.x)
        point = start.point
        for _ in range(self.steps):
            point = onto(moved(point, self.step))
        return point


@dataclass(frozen=True)
class FGSMRS(Adversary):
    """One step from a random point of the ball, back into the ball (Wong, Rice and Kolter)."""

    step: float

    def craft(self, victims: Victims, start: Start) -> Tensor:
        return self.threat.project(self.climb(victims, start)(start.point, self.step), start.x)


@dataclass(frozen=True)
class NFGSM(Adversary):
    """One step from a noisier point, clipped to the box but not to the ball (de Jorge et al.).

    The larger noise prevents catastrophic overfitting of single-step training.
    """

    step: float
    noise: float

    @property
    def radius(self) -> float:
        return self.noise

    def craft(self, victims: Victims, start: Start) -> Tensor:
        point = self.climb(victims, start)(start.point, self.step)
        return point if self.threat.bounds is None else point.clamp(*self.threat.bounds)


@dataclass(frozen=True)
class Arc(Adversary):
    """ARC or ARC-R on the randomized ensemble; the paper's Appendix finds that training on it overfits."""

    name: str
    steps: int

    @property
    def radius(self) -> float:
        return 0.0

    def craft(self, victims: Victims, start: Start) -> Tensor:
        rec = RandomizedEnsemble(list(victims.members), victims.probs)
        batch = max(1, len(start.x))
        attack = attacks.create(
            self.name,
            self.threat,
            steps=self.steps,
            seed=start.seed,
            precision="float32",
            batch_size=batch,
        )
        return attack(rec, start.x, start.y).x_adv.to(start.x.device)

    def passes(self, victims: int) -> int:
        # At most, per step and member: gradients to two boundaries, and all members' verdicts on a candidate.
        return self.steps * victims * (2 + victims)


def projection(threat: Threat, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a cheaper `threat.project` onto the set around x, without float64 arithmetic at every step.

    linf: the interval is computed once for all steps. l2: in the precision of the inputs, with a radius
    smaller by a millionth of ε, so that rounding leaves no point outside.
    """
    if threat.norm == "linf":
        low, high = threat.interval(x)
        return lambda point: torch.minimum(torch.maximum(point, low), high)
    if threat.norm != "l2":
        return lambda point: threat.project(point, x)
    box = threat.bounds or (-torch.inf, torch.inf)

    def onto(point: Tensor) -> Tensor:
        delta = point.clamp(*box) - x
        norms = delta.square().flatten(1).sum(dim=1).sqrt().clamp_min(1e-12)
        scale = ((1 - 1e-6) * threat.eps / norms).clamp_max(1.0)
        return x + delta * scale.view(-1, *[1] * (x.dim() - 1))

    return onto


def adversary(part: AdversaryPart, threat: Threat, level: str) -> Adversary:
    """Return the adversary that a recipe names; `level` is the method's default, for "auto" in the recipe."""
    chosen = level if part.level == "auto" else part.level
    if part.name == "pgd":
        step = part.step or threat.eps / 4
        return TrainingPGD(threat, chosen, part.steps, step, part.start, loss=part.loss)
    if part.name == "fgsm-rs":
        return FGSMRS(threat, chosen, part.step or 1.25 * threat.eps, loss=part.loss)
    if part.name == "n-fgsm":
        return NFGSM(threat, chosen, part.step or threat.eps, part.noise, loss=part.loss)
    return Arc(threat, chosen, part.name, part.steps)
