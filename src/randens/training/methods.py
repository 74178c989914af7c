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
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens.attacks.losses import bounded_risk
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble
from randens.training.losses import Adversary, AttackedMembers, Forward, Start, TrainingLoss

Weights = NDArray[np.float64]
Members = Sequence[nn.Module]


@dataclass(frozen=True)
class StageMembers:
    """The members of a stage: those that are `finished` and those being `trained`, and α over both."""

    finished: Members
    trained: Members
    probs: Weights

    @property
    def all(self) -> list[nn.Module]:
        return [*self.finished, *self.trained]


@dataclass(frozen=True)
class Batch:
    """A batch for the members in training, adversarial inputs of each, how to run each, and this rank's `place`."""

    x: Tensor
    y: Tensor
    x_adv: Sequence[Tensor]
    forwards: Sequence[Forward]
    place: tuple[int, int]


class Method:
    """Adversarial training; the other methods override what they do differently.

    level: where the training adversary takes the expectation over the members. inherits: whether member m
    starts from f_{m−1}. reweighs: whether α is optimized while a member is trained; descends: whether α
    changes by mirror descent. sweeps, attack: α at the end is swept over a grid, under an attack of the
    method's own. watched: whether training stops if the new member's own robust accuracy drops. weight: the
    recipe's, if the method has one.
    """

    name: ClassVar[str] = "at"
    level: ClassVar[str] = "loss"
    inherits: ClassVar[bool] = False
    reweighs: ClassVar[bool] = False
    descends: ClassVar[bool] = False
    sweeps: ClassVar[bool] = False
    attack: ClassVar[str | None] = None
    watched: ClassVar[bool] = True

    def __init__(self, weight: float | None = None) -> None:
        self.weight = weight

    def stages(self, members: int) -> list[int]:
        """Return the number of members that each stage trains at once."""
        return [1] * members

    def attacked(self, stage: StageMembers) -> tuple[Members, Weights]:
        """The members that the training adversary attacks, with their probabilities."""
        return stage.trained, uniform(len(stage.trained))

    def validated(self, stage: StageMembers) -> RandomizedEnsemble:
        """The ensemble by whose risk under attack on validation data the checkpoints of a stage are compared."""
        return RandomizedEnsemble(stage.all, stage.probs)

    def examples(self, craft: Adversary, attacked: AttackedMembers, start: Start, size: int) -> list[Tensor]:
        """Adversarial inputs for each of the `size` members in training."""
        return [craft.craft(attacked, start)] * size

    def losses(self, loss: TrainingLoss, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Return, per member in training, the loss of every image [n] and its logits [n, C]."""
        pairs = zip(batch.forwards, batch.x_adv, strict=True)
        return [loss(forward, batch.x, x_adv, batch.y) for forward, x_adv in pairs]


class IAT(Method):
    """Independent adversarial training: M times AT, each with its own seed."""

    name = "iat"

    def validated(self, stage: StageMembers) -> RandomizedEnsemble:
        return RandomizedEnsemble(list(stage.trained))


class MRBoost(Method):
    """Boosting the margin of the deterministic ensemble; its randomized form is MRBoost-R."""

    name = "mrboost"
    level = "logits"

    def attacked(self, stage: StageMembers) -> tuple[Members, Weights]:
        return stage.all, uniform(len(stage.all))

    def validated(self, stage: StageMembers) -> RandomizedEnsemble:
        return RandomizedEnsemble([DeterministicEnsemble(stage.all)])


class _OnTheMixture(Method):
    """Training on the adversarial examples of the randomized ensemble itself."""

    level = "softmax"

    def attacked(self, stage: StageMembers) -> tuple[Members, Weights]:
        return stage.all, stage.probs


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
    """Pinot et al.: later members see f_1's adversarial examples only, and are as fragile as naturally trained ones."""

    name = "bat"
    sweeps = True
    # The attack of its authors. Under a stronger attack, all weight would be on f_1.
    attack = "adaptive-pgd-l"
    watched = False

    def attacked(self, stage: StageMembers) -> tuple[Members, Weights]:
        return stage.all[:1], uniform(1)


class Bounded(Method):
    """AT of all members; a share `weight` of the batch minimizes σ(−margin) at examples of an attack on its mean."""

    name = "bounded"
    level = "bounded"
    scale = 4.0  # the slope of cross-entropy at margin 0, up to a factor

    def __init__(self, weight: float | None = None) -> None:
        super().__init__(0.5 if weight is None else weight)

    def stages(self, members: int) -> list[int]:
        return [members]

    def common(self, place: tuple[int, int], images: int) -> int:
        """How many images of this part are attacked for all members at once: a share of the whole batch's first."""
        first, total = place
        return min(max(round((self.weight or 0.0) * total) - first, 0), images)

    def examples(self, craft: Adversary, attacked: AttackedMembers, start: Start, size: int) -> list[Tensor]:
        common = self.common(start.place, len(start.x))
        joint = craft.craft(attacked, start[:common])
        alone = craft.alone()
        rest = start[common:]
        return [torch.cat([joint, alone.craft(attacked.only(index), rest)]) for index in range(size)]

    def losses(self, loss: TrainingLoss, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        common = self.common(batch.place, len(batch.x))
        made = []
        for own, z in super().losses(loss, batch):
            joint = self.scale * bounded_risk(z[:common], batch.y[:common])
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
