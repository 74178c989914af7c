"""When the training of a member should end early: catastrophic overfitting, and the rule of thumb (Equation 15)."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Watch"]

_NOISE = 0.1


@dataclass(frozen=True)
class Watch:
    """What has been seen so far: the best accuracy under attack, the training accuracy then, faults in a row.

    `was_within` and `strays`: whether the member was ever within the rule of thumb, and validations in a row
    outside of it since then. A member that starts fresh is outside at first and is given time.
    """

    best: float = 0.0
    training: float = 0.0
    faults: int = 0
    was_within: bool = False
    strays: int = 0

    @property
    def worst(self) -> int:
        """The longer of the two series in a row."""
        return max(self.faults, self.strays)

    def seen(self, robust: float, training: float, collapse: float) -> Watch:
        """After a validation with accuracy `robust` under attack, and accuracy `training` on the training
        adversary's examples. A fault: `robust` is below collapse × best, training has not fallen, and the loss
        is too large to be noise around chance level."""
        if robust >= self.best:
            return replace(self, best=robust, training=training, faults=0)
        lost = robust < collapse * self.best and self.best - robust >= _NOISE
        fault = lost and training >= self.training
        return replace(self, faults=self.faults + 1 if fault else 0)

    def within(self, holds: bool) -> Watch:
        """After a validation in which the rule of thumb `holds` or not."""
        if holds:
            return replace(self, was_within=True, strays=0)
        return replace(self, strays=self.strays + 1 if self.was_within else 0)
