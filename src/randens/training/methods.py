"""The methods: how a member starts, whom the training adversary attacks, what happens to α.

| method  | member m starts from | training adversary on            | α                                |
|---------|----------------------|----------------------------------|----------------------------------|
| AT      | fresh                | f_1                              | –                                |
| IAT     | fresh                | f_m alone                        | optimised at the end             |
| MRBoost | fresh or f_{m−1}     | mean logits of f_1..f_m          | uniform; optimised at the end    |
| BARRE   | f_{m−1}              | mixture Σα_i softmax_i, f_1..f_m | optimised every E_o epochs       |
| BAT     | fresh                | f_1 alone, for all later members | swept at the end; known broken   |
| joint   | fresh, all at once   | mixture Σα_i softmax_i of all    | mirror descent after every epoch |

Nothing else differs between them: data, batches, budget, checkpoints and the first member are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble

__all__ = ["METHODS", "Method", "Roster", "Weights", "mirror_descent", "uniform"]

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


class Method:
    """Adversarial training; the other methods say only what they do differently.

    level: where the training adversary takes the expectation over the members. inherits: whether member m
    starts from f_{m−1}. reweighs: whether α is optimised while a member is trained; descends: whether it moves
    by mirror descent. choice, attack: how α is chosen at the end, if not as the recipe says. watched: whether a
    member that loses its own robustness is at fault.
    """

    name: ClassVar[str] = "at"
    level: ClassVar[str] = "loss"
    inherits: ClassVar[bool] = False
    reweighs: ClassVar[bool] = False
    descends: ClassVar[bool] = False
    choice: ClassVar[str | None] = None
    attack: ClassVar[str | None] = None
    watched: ClassVar[bool] = True

    def stages(self, members: int) -> list[int]:
        """How many members each stage trains at once."""
        return [1] * members

    def victims(self, roster: Roster) -> tuple[Members, Weights]:
        """The members that the training adversary attacks, with their probabilities."""
        return roster.trained, uniform(len(roster.trained))

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        """What the checkpoints of a stage are compared by: its risk under attack on validation data."""
        return RandomizedEnsemble(list(roster.trained))


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
    """All members at once: one attack on the mixture per batch, on which every member steps."""

    name = "joint"
    descends = True

    def stages(self, members: int) -> list[int]:
        return [members]


class BAT(Method):
    """Boosted adversarial training (Pinot et al.): later members learn f_1's adversarial examples and nothing
    else. They stay as fragile as natural training leaves them, and weak attacks do not notice."""

    name = "bat"
    choice = "sweep"
    # The attack its authors trusted; a stronger one would send all the weight back to f_1.
    attack = "adaptive-pgd-l"
    watched = False

    def victims(self, roster: Roster) -> tuple[Members, Weights]:
        return roster.everyone[:1], uniform(1)

    def judged(self, roster: Roster) -> RandomizedEnsemble:
        return RandomizedEnsemble(roster.everyone, roster.probs)


METHODS: dict[str, Callable[[], Method]] = {
    method.name: method for method in (Method, IAT, MRBoost, BARRE, BAT, Joint)
}


def uniform(members: int) -> Weights:
    """1/M for each."""
    return np.full(members, 1 / members)


def mirror_descent(probs: Weights, losses: Weights, rate: float) -> Weights:
    """One step on the simplex: α_i ∝ α_i exp(−rate·loss_i)."""
    logs = np.log(probs) - rate * losses
    weights = np.exp(logs - logs.max())
    moved: Weights = weights / weights.sum()
    return moved
