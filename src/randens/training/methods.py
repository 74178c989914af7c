"""The methods: how a member starts, what the training adversary attacks, how α changes.

| method  | member m starts from | training adversary on                    | α                                |
|---------|----------------------|------------------------------------------|----------------------------------|
| AT      | fresh                | f_1                                      | –                                |
| IAT     | fresh                | f_m alone                                | optimized at the end             |
| MRBoost | fresh or f_{m−1}     | mean logits of f_1..f_m                  | uniform; optimized at the end    |
| BARRE   | f_{m−1}              | mixture Σα_i softmax_i, f_1..f_m         | optimized every E_o epochs       |
| BAT     | fresh                | f_1 alone, for all later members         | swept at the end; known broken   |
| joint   | fresh, all at once   | mixture Σα_i softmax_i of all            | mirror descent after every epoch |
| bounded | fresh, all at once   | f_i alone; for a share Σα_i σ(−margin_i) | uniform; optimized at the end    |

`first` in a recipe takes members from earlier runs instead of fresh ones. Everything else is the same for all
methods: data, batches, budget, checkpoints and the first member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble
from randens.training.adversaries import Adversary, Start, Victims
from randens.training.losses import Examples, Forward, TrainingLoss, bounded_risk

__all__ = ["METHODS", "METHOD_NAMES", "Lesson", "Method", "Roster", "Weights", "mirror_descent", "uniform"]

Weights = NDArray[np.float64]
Members = Sequence[nn.Module]


@dataclass(frozen=True)
class Roster:
    """The members of a stage: those that are `finished` and those being `trained`, and α over both."""

    finished: Members
    trained: Members
    probs: Weights

    @property
    def everyone(self) -> list[nn.Module]:
        return [*self.finished, *self.trained]


@dataclass(frozen=True)
class Lesson:
    """A batch for the members in training: adversarial inputs of each, and the function that runs each."""

    x: Tensor
    y: Tensor
    x_adv: Sequence[Tensor]
    forwards: Sequence[Forward]


class Method:
    """Adversarial training; the other methods override what they do differently.

    level: where the training adversary takes the expectation over the members. inherits: whether member m
    starts from f_{m−1}. reweighs: whether α is optimized while a member is trained; descends: whether α
    changes by mirror descent. choice, attack: how α is chosen at the end, if not by the recipe. watched:
    whether training stops if the new member's own robust accuracy drops. weight: the recipe's, if the method has one.
    """

    name: ClassVar[str] = "at"
    level: ClassVar[str] = "loss"
    inherits: ClassVar[bool] = False
    reweighs: ClassVar[bool] = False
    descends: ClassVar[bool] = False
    choice: ClassVar[str | None] = None
    attack: ClassVar[str | None] = None
    watched: ClassVar[bool] = True

    def __init__(self, weight: float | None = None) -> None:
        self.weight = weight

    def stages(self, members: int) -> list[int]:
        """Return the number of members that each stage trains at once."""
        return [1] * members

    def victims(self, roster: Roster) -> tuple[Members, Weights]:
        """The members that the training adversary attacks, with their probabilities."""
        return roster.trained, uniform(len(roster.trained))

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        """The ensemble by whose risk under attack on validation data the checkpoints of a stage are compared."""
        return RandomizedEnsemble(list(roster.trained))

    def examples(self, craft: Adversary, victims: Victims, start: Start, size: int) -> list[Tensor]:
        """Adversarial inputs for each of the `size` members in training."""
        return [craft.craft(victims, start)] * size

    def losses(self, loss: TrainingLoss, lesson: Lesson) -> list[tuple[Tensor, Tensor]]:
        """Return, per member in training, the loss of every image [n] and its logits [n, C]."""
        pairs = zip(lesson.forwards, lesson.x_adv, strict=True)
        return [loss(forward, Examples(lesson.x, x_adv, lesson.y)) for forward, x_adv in pairs]


class IAT(Method):
    """Independent adversarial training: M times AT, each with its own seed."""

    name = "iat"


class MRBoost(Method):
    """Boosting the margin of the deterministic ensemble; its randomized form is MRBoost-R."""

    name = "mrboost"
    level = "logits"

    def victims(self, roster: Roster) -> tuple[Members, Weights]:
        return roster.everyone, uniform(len(roster.everyone))

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        return RandomizedEnsemble([DeterministicEnsemble(roster.everyone)])


class _OnTheMixture(Method):
    """Training on the adversarial examples of the randomized ensemble itself."""

    level = "softmax"

    def victims(self, roster: Roster) -> tuple[Members, Weights]:
        return roster.everyone, roster.probs

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        return RandomizedEnsemble(roster.everyone, roster.probs)


class BARRE(_OnTheMixture):
    """Algorithm 2: f_m starts from f_{m−1} and learns the adversarial examples of f_1..f_m."""

    name = "barre"
    inherits = True
    reweighs = True


class Joint(_OnTheMixture):
    """Train all members at once: one attack on the mixture per batch, and a step of every member on its examples."""

    name = "joint"
    descends = True

    def stages(self, members: int) -> list[int]:
        return [members]


class BAT(Method):
    """Boosted adversarial training (Pinot et al.): later members are trained only on f_1's adversarial
    examples. They are as fragile as naturally trained networks, which weak attacks do not show."""

    name = "bat"
    choice = "sweep"
    # The attack of its authors. Under a stronger attack, all weight would be on f_1.
    attack = "adaptive-pgd-l"
    watched = False

    def victims(self, roster: Roster) -> tuple[Members, Weights]:
        return roster.everyone[:1], uniform(1)

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        return RandomizedEnsemble(roster.everyone, roster.probs)


class Bounded(Method):
    """AT of all members at once, each on its own examples. For a share of the batch, `weight`, the loss is
    σ(−margin), a smooth form of the ensemble's risk, at the examples of an attack that maximizes the members' mean
    of it. A bounded loss gives little weight to examples that are far from correct, so members may differ in the
    inputs they classify correctly.
    """

    name = "bounded"
    level = "bounded"
    scale = 4.0  # the slope of cross-entropy at margin 0, up to a factor

    def __init__(self, weight: float | None = None) -> None:
        super().__init__(0.5 if weight is None else weight)

    def stages(self, members: int) -> list[int]:
        return [members]

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        return RandomizedEnsemble(roster.everyone)

    def common(self, images: int) -> int:
        """Return how many images at the start of a batch are attacked for all members at once."""
        return round((self.weight or 0.0) * images)

    def examples(self, craft: Adversary, victims: Victims, start: Start, size: int) -> list[Tensor]:
        common = self.common(len(start.x))
        joint = craft.craft(victims, start[:common])
        alone = craft if craft.level == "kl" else replace(craft, level="loss")
        rest = start[common:]
        return [torch.cat([joint, alone.craft(victims.only(index), rest)]) for index in range(size)]

    def losses(self, loss: TrainingLoss, lesson: Lesson) -> list[tuple[Tensor, Tensor]]:
        common = self.common(len(lesson.x))
        made = []
        for own, z in super().losses(loss, lesson):
            joint = self.scale * bounded_risk(z[:common], lesson.y[:common])
            made.append((torch.cat([joint, own[common:]]), z))
        return made


METHOD_NAMES = {
    "at": "AT",
    "iat": "IAT",
    "mrboost": "MRBoost",
    "mrboost-r": "MRBoost-R",
    "barre": "BARRE",
    "bat": "BAT",
    "joint": "Joint training",
    "bounded": "Bounded-risk training",
}
"""The methods' names in sentences and tables."""

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Method, IAT, MRBoost, BARRE, BAT, Joint, Bounded)
}


def uniform(members: int) -> Weights:
    """1/M for each."""
    return np.full(members, 1 / members)


def mirror_descent(probs: Weights, losses: Weights, rate: float) -> Weights:
    """One step on the simplex: α_i ∝ α_i exp(−rate·loss_i)."""
    logs = np.log(probs) - rate * losses
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()
