"""The methods: how a member starts, whom the training adversary attacks, what happens to α.

| method  | member m starts from | training adversary on                   | α                                |
|---------|----------------------|-----------------------------------------|----------------------------------|
| AT      | fresh                | f_1                                     | –                                |
| IAT     | fresh                | f_m alone                               | optimised at the end             |
| MRBoost | fresh or f_{m−1}     | mean logits of f_1..f_m                 | uniform; optimised at the end    |
| BARRE   | f_{m−1}              | mixture softmax Σα_i softmax_i, f_1..f_m| optimised every E_o epochs       |
| BAT     | fresh                | f_1 alone, for every later member       | swept at the end; known broken   |
| joint   | fresh, all at once   | mixture softmax of all                  | mirror descent after every epoch |

Nothing else differs between them: data, batches, budget, checkpoints and the first member are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble

__all__ = ["METHODS", "Method", "Weights"]

Weights = NDArray[np.float64]
Members = Sequence[nn.Module]


class Method:
    """Adversarial training; the other methods say only what they do differently.

    `level`: where the training adversary takes the expectation over the members. `reweighs`: whether α is
    optimised while a member is trained. `choice`: how α is chosen at the end where the recipe says "exact".
    `watched`: whether a member that loses its own robustness is a fault.
    """

    name: ClassVar[str] = "at"
    level: ClassVar[str] = "loss"
    previous: ClassVar[bool] = False
    reweighs: ClassVar[bool] = False
    choice: ClassVar[str] = "exact"
    attack: ClassVar[str | None] = None
    watched: ClassVar[bool] = True

    def stages(self, members: int) -> list[int]:
        """How many members each stage trains at once."""
        return [1] * members

    def victims(self, finished: Members, trained: Members, probs: Weights) -> tuple[Members, Weights]:
        """The members that the training adversary attacks, with their probabilities."""
        return trained, np.full(len(trained), 1 / len(trained))

    def judged(self, finished: Members, trained: Members, probs: Weights) -> RandomizedEnsemble:
        """What the checkpoints of a stage are compared by: its risk under attack on validation data."""
        return RandomizedEnsemble(list(trained))

    def moved(self, probs: Weights, losses: Weights, rate: float) -> Weights:
        """α after an epoch in which the trained members had these mean losses."""
        return probs


class IAT(Method):
    """Independent adversarial training: M times AT, each with its own seed."""

    name = "iat"


class MRBoost(Method):
    """Boosting the margin of the deterministic ensemble; its randomized form is MRBoost-R."""

    name = "mrboost"
    level = "logits"

    def victims(self, finished: Members, trained: Members, probs: Weights) -> tuple[Members, Weights]:
        everyone = [*finished, *trained]
        return everyone, np.full(len(everyone), 1 / len(everyone))

    def judged(self, finished: Members, trained: Members, probs: Weights) -> RandomizedEnsemble:
        return RandomizedEnsemble([DeterministicEnsemble([*finished, *trained])])


class BARRE(Method):
    """Algorithm 2: f_m starts from f_{m−1} and is trained on the adversarial examples of the whole ensemble."""

    name = "barre"
    level = "softmax"
    previous = True
    reweighs = True

    def victims(self, finished: Members, trained: Members, probs: Weights) -> tuple[Members, Weights]:
        return [*finished, *trained], probs

    def judged(self, finished: Members, trained: Members, probs: Weights) -> RandomizedEnsemble:
        return RandomizedEnsemble([*finished, *trained], probs)


class BAT(Method):
    """Boosted adversarial training (Pinot et al.): later members learn f_1's adversarial examples, and nothing
    else. f_m itself stays as fragile as natural training leaves it; weak attacks do not notice."""

    name = "bat"
    choice = "sweep"
    # The attack its authors trusted; a stronger one would send all the weight back to f_1.
    attack = "apgd-l"
    watched = False

    def victims(self, finished: Members, trained: Members, probs: Weights) -> tuple[Members, Weights]:
        return [(*finished, *trained)[0]], np.ones(1)

    def judged(self, finished: Members, trained: Members, probs: Weights) -> RandomizedEnsemble:
        return RandomizedEnsemble([*finished, *trained], probs)


class Joint(BARRE):
    """All members at once: one attack on the mixture per batch, on which every member steps."""

    name = "joint"
    previous = False
    reweighs = False

    def stages(self, members: int) -> list[int]:
        return [members]

    def moved(self, probs: Weights, losses: Weights, rate: float) -> Weights:
        """Mirror descent on the simplex: α_i ∝ α_i exp(−rate·loss_i)."""
        logs = np.log(probs) - rate * (losses - losses.min())
        weights: Weights = np.exp(logs - logs.max())
        return weights / weights.sum()


METHODS: dict[str, Callable[[], Method]] = {
    method.name: method for method in (Method, IAT, MRBoost, BARRE, BAT, Joint)
}
