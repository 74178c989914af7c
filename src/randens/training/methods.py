"""The methods: how a member starts, what the training adversary attacks, how α changes.

| method  | member m starts from | training adversary on            | α                                |
|---------|----------------------|----------------------------------|----------------------------------|
| AT      | fresh                | f_1                              | –                                |
| IAT     | fresh                | f_m alone                        | optimised at the end             |
| MRBoost | fresh or f_{m−1}     | mean logits of f_1..f_m          | uniform; optimised at the end    |
| BARRE   | f_{m−1}              | mixture Σα_i softmax_i, f_1..f_m | optimised every E_o epochs       |
| BAT     | fresh                | f_1 alone, for all later members | swept at the end; known broken   |
| joint   | fresh, all at once   | mixture Σα_i softmax_i of all    | mirror descent after every epoch |
| columns | f_{m−1}              | f_m; a share is the attacker's   | optimised at the end             |

Methods that are designed to make members differ train all of them at once, with α uniform. They start from
the members of earlier runs if the recipe names them (`first`):

| method   | training adversary on                    | what differs                                               |
|----------|------------------------------------------|------------------------------------------------------------|
| shared   | f_i alone; for a share the mixture       | between IAT (share 0) and joint training (share 1)         |
| paths    | a path drawn at every step               | one network; orthogonal copies of one middle layer         |
| features | f_i alone, or another member's features  | f_i learns to ignore features that only another one uses   |
| conflict | f_i alone                                | reward for the value of the linearised game                |
| bounded  | f_i alone; for a share Σα_i σ(−margin_i) | the share descends the bounded risk of the mixture         |
| distil   | f_i alone                                | f_i learns the mean logits of the members it started from  |

Everything else is the same for all methods: data, batches, budget, checkpoints and the first member.
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
from randens.threat import Threat
from randens.training import columns, diversity
from randens.training.adversaries import Adversary, Start, Victims
from randens.training.losses import Examples, Forward, TrainingLoss

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
    """A batch for the members trained on it: adversarial inputs of each, and the function that runs each.

    `members` are the modules behind `forwards`, `teachers` the frozen members that the stage started from.
    """

    x: Tensor
    y: Tensor
    x_adv: Sequence[Tensor]
    forwards: Sequence[Forward]
    members: Members
    teachers: Members
    threat: Threat


class Method:
    """Adversarial training; the other methods override what they do differently.

    level: where the training adversary takes the expectation over the members. inherits: whether member m
    starts from f_{m−1}. reweighs: whether α is optimised while a member is trained; descends: whether α
    changes by mirror descent. choice, attack: how α is chosen at the end, if not by the recipe. watched:
    whether training stops if the new member's own robust accuracy drops. parallel: whether several processes
    may share a batch. independent: whether a member's training does not depend on the other members.
    studies: whether it examines the finished members before each stage (`study`).
    """

    name: ClassVar[str] = "at"
    level: ClassVar[str] = "loss"
    inherits: ClassVar[bool] = False
    reweighs: ClassVar[bool] = False
    descends: ClassVar[bool] = False
    choice: ClassVar[str | None] = None
    attack: ClassVar[str | None] = None
    watched: ClassVar[bool] = True
    parallel: ClassVar[bool] = True
    independent: ClassVar[bool] = False
    studies: ClassVar[bool] = False

    weight: ClassVar[float | None] = None

    def __init__(self, weight: float | None = None) -> None:
        if weight is not None:
            self.weight = weight  # type: ignore[misc]

    def stages(self, members: int) -> list[int]:
        """Return the number of members that each stage trains at once."""
        return [1] * members

    def victims(self, roster: Roster) -> tuple[Members, Weights]:
        """The members that the training adversary attacks, with their probabilities."""
        return roster.trained, uniform(len(roster.trained))

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        """The ensemble by whose risk under attack on validation data the checkpoints of a stage are compared."""
        return RandomizedEnsemble(list(roster.trained))

    def begun(self, members: list[nn.Module]) -> list[nn.Module]:
        """Return the members of a stage at the start of training."""
        return members

    def study(self, craft: Adversary, finished: Victims, start: Start) -> bool:  # noqa: ARG002
        """Examine the finished members on training images before the next stage; False ends the run."""
        return True

    def learners(self, members: int, seed: int) -> list[int]:  # noqa: ARG002
        """Return the members that are trained on this batch; `seed` is for methods that choose at random."""
        return list(range(members))

    def examples(
        self, craft: Adversary, victims: Victims, start: Start, learners: Sequence[int]
    ) -> list[Tensor]:
        """Adversarial inputs for every learner."""
        return [craft.craft(victims, start)] * len(learners)

    def losses(self, loss: TrainingLoss, lesson: Lesson) -> list[tuple[Tensor, Tensor]]:
        """Return, per learner, the loss of every image [n] and its logits [n, C]."""
        pairs = zip(lesson.forwards, lesson.x_adv, strict=True)
        return [loss(forward, Examples(lesson.x, x_adv, lesson.y)) for forward, x_adv in pairs]

    def passes(self, craft: Adversary, victims: int, training: int, size: int) -> tuple[int, int]:
        """Member passes per image to craft and to train; `training` passes are one member's by its loss."""
        return craft.passes(victims), training * size


class IAT(Method):
    """Independent adversarial training: M times AT, each with its own seed."""

    name = "iat"
    independent = True


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


class Columns(Method):
    """Column generation: a share of a member's examples is drawn from the attacker's mixed strategy against
    the earlier members (`randens.training.columns`). The other examples are its own adversarial examples, so
    that the member itself stays robust. Training ends early if the last member did not lower the value of the
    game.
    """

    name = "columns"
    level = "softmax"
    inherits = True
    studies = True
    parallel = False
    weight = 0.5
    strategy: columns.Strategy | None = None
    numbers: NDArray[np.int64] | None = None

    def study(self, craft: Adversary, finished: Victims, start: Start) -> bool:
        assert start.images is not None
        self.numbers = start.images.numpy()
        self.strategy = columns.attackers_strategy(craft, finished, start)
        return columns.improves(self.strategy)

    def examples(
        self, craft: Adversary, victims: Victims, start: Start, learners: Sequence[int]
    ) -> list[Tensor]:
        made = craft.craft(victims, start)
        if self.strategy is not None and self.numbers is not None and start.images is not None:
            images = start.images.numpy()
            _, number, place = np.intersect1d(images, self.numbers, return_indices=True)
            inputs = np.full(len(images), -1, dtype=np.int64)
            inputs[number] = place
            inputs[round((self.weight or 0.0) * len(images)) :] = -1
            made = self.strategy.draw(made, inputs, start.seed)
        return [made] * len(learners)


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


class _Together(Method):
    """IAT in one stage, the base of other methods: all members at once, each on its own adversarial examples."""

    def stages(self, members: int) -> list[int]:
        return [members]

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        return RandomizedEnsemble(roster.everyone)

    def examples(
        self, craft: Adversary, victims: Victims, start: Start, learners: Sequence[int]
    ) -> list[Tensor]:
        return [craft.craft(victims.only(index), start) for index in learners]


class Shared(_Together):
    """AT of every member, but a share of the examples are those of the mixture, the same for all members. So
    each member stays robust and is also trained against the ensemble's adversary. 0 is IAT, 1 joint
    training.
    """

    name = "shared"
    level = "softmax"
    weight = 0.5

    def common(self, images: int) -> int:
        """Return how many images at the start of a batch are attacked for all members at once."""
        return round((self.weight or 0.0) * images)

    def examples(
        self, craft: Adversary, victims: Victims, start: Start, learners: Sequence[int]
    ) -> list[Tensor]:
        rows = torch.arange(len(start.x), device=start.x.device)
        common = self.common(len(rows))
        joint = craft.craft(victims, start.rows(rows[:common]))
        alone = craft if craft.level == "kl" else replace(craft, level="loss")
        rest = start.rows(rows[common:])
        return [torch.cat([joint, alone.craft(victims.only(index), rest)]) for index in learners]


class Paths(_Together):
    """One network with M orthogonal copies of a middle layer; one copy, drawn at random, per batch and per step of
    the attack. A batch costs as much as with one network, for any M."""

    name = "paths"
    parallel = False
    weight = 0.1

    def begun(self, members: list[nn.Module]) -> list[nn.Module]:
        return diversity.tied_paths(members)

    def learners(self, members: int, seed: int) -> list[int]:
        return [int(torch.randint(members, (), generator=torch.Generator().manual_seed(seed)))]

    def examples(
        self, craft: Adversary, victims: Victims, start: Start, learners: Sequence[int]
    ) -> list[Tensor]:
        return [craft.craft(diversity.RandomPath.among(victims, start.seed), start)] * len(learners)

    def losses(self, loss: TrainingLoss, lesson: Lesson) -> list[tuple[Tensor, Tensor]]:
        apart = self.weight * diversity.overlap(lesson.members)
        return [(losses + apart, z) for losses, z in super().losses(loss, lesson)]

    def passes(self, craft: Adversary, victims: int, training: int, size: int) -> tuple[int, int]:  # noqa: ARG002
        return craft.passes(1), training


class Features(_Together):
    """Half of a member's examples are its own adversarial ones. The other half have the features of another
    image for the next member, so that the two members rely on different features (DVERGE on top of AT)."""

    name = "features"

    def examples(
        self, craft: Adversary, victims: Victims, start: Start, learners: Sequence[int]
    ) -> list[Tensor]:
        generator = torch.Generator().manual_seed(start.seed)
        order = torch.randperm(len(start.x), generator=generator).to(start.x.device)
        half = (torch.arange(len(start.x)) % 2 == 0).to(start.x.device)
        shift = 1 + int(torch.randint(max(1, len(learners) - 1), (), generator=generator))
        made = []
        for index in learners:
            other = victims.forwards[(index + shift) % len(learners)]
            x_adv = craft.craft(victims.only(index), start.rows(half))
            moved = diversity.distilled(craft, other, start, order)
            moved[half] = x_adv
            made.append(moved)
        return made

    def passes(self, craft: Adversary, victims: int, training: int, size: int) -> tuple[int, int]:
        return craft.passes(2 * victims), training * size


class ConflictReward(_Together):
    """AT of every member, and a reward for the value of the linearised game where all margins are positive."""

    name = "conflict"
    parallel = False
    weight = 0.5

    def losses(self, loss: TrainingLoss, lesson: Lesson) -> list[tuple[Tensor, Tensor]]:
        value, counts = diversity.game_value(lesson.forwards, lesson.x, lesson.y, lesson.threat)
        # Beyond a value of half of ε there is no further reward.
        penalty = self.weight * torch.where(counts, (0.5 - value).clamp_min(0.0), 0.0) / len(lesson.forwards)
        return [(losses + penalty, z) for losses, z in super().losses(loss, lesson)]

    def passes(self, craft: Adversary, victims: int, training: int, size: int) -> tuple[int, int]:
        return craft.passes(victims), (training + 2) * size


class Bounded(Shared):
    """AT on a member's own examples. For a share of the batch the loss is σ(−margin), a smooth form of the
    ensemble's risk, at the examples of an attack that maximises the members' mean of it. A bounded loss gives
    little weight to examples that are far from correct, so members may differ in the inputs they classify
    correctly.
    """

    name = "bounded"
    level = "bounded"
    scale = 4.0  # the slope of cross-entropy at margin 0, up to a factor

    def losses(self, loss: TrainingLoss, lesson: Lesson) -> list[tuple[Tensor, Tensor]]:
        common = self.common(len(lesson.x))
        made = []
        for forward, x_adv in zip(lesson.forwards, lesson.x_adv, strict=True):
            own, z = loss(forward, Examples(lesson.x, x_adv, lesson.y))
            joint = self.scale * diversity.bounded_risk(z[:common], lesson.y[:common])
            made.append((torch.cat([joint, own[common:]]), z))
        return made


class Distil(_Together):
    """Every member learns the mean logits of the members that the stage started from, at its own adversarial
    examples. This distils the deterministic ensemble into one member's compute."""

    name = "distil"

    def losses(self, loss: TrainingLoss, lesson: Lesson) -> list[tuple[Tensor, Tensor]]:  # noqa: ARG002
        made = []
        for forward, x_adv in zip(lesson.forwards, lesson.x_adv, strict=True):
            with torch.no_grad():
                wisdom = torch.stack([teacher(x_adv) for teacher in lesson.teachers]).mean(dim=0)
            z = forward(x_adv)
            made.append((diversity.taught(z, wisdom), z))
        return made

    def passes(self, craft: Adversary, victims: int, training: int, size: int) -> tuple[int, int]:
        return craft.passes(victims), (training + victims) * size


METHOD_NAMES = {
    "at": "AT",
    "iat": "IAT",
    "mrboost": "MRBoost",
    "mrboost-r": "MRBoost-R",
    "barre": "BARRE",
    "bat": "BAT",
    "joint": "Joint training",
    "columns": "Column generation",
    "shared": "Training on shared examples",
    "bounded": "Bounded-risk training",
    "conflict": "Conflict training",
    "features": "Feature distillation",
    "distil": "Distillation",
    "paths": "Orthogonal paths",
}
"""The methods' names in sentences and tables."""

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Method,
        IAT,
        MRBoost,
        BARRE,
        BAT,
        Joint,
        Columns,
        Shared,
        Paths,
        Features,
        ConflictReward,
        Bounded,
        Distil,
    )
}


def uniform(members: int) -> Weights:
    """1/M for each."""
    return np.full(members, 1 / members)


def mirror_descent(probs: Weights, losses: Weights, rate: float) -> Weights:
    """One step on the simplex: α_i ∝ α_i exp(−rate·loss_i)."""
    logs = np.log(probs) - rate * losses
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()
