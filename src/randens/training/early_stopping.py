"""Early stopping of a member's training: catastrophic overfitting, and the rule of thumb (Equation 15)."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Watch"]

_NOISE = 0.1


@dataclass(frozen=True)
class Watch:
    """The validations so far: the best accuracy under attack, the training accuracy then, failures in a row.

    `was_within` and `strays`: whether the member ever satisfied the rule of thumb, and the number of
    validations in a row since then that violate it. A fresh member violates it at first, which does not
    count.
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
        """Update after a validation with accuracy `robust` under attack and accuracy `training` on the
        training adversary's examples. It counts as a failure if `robust` is below collapse × best, the
        training accuracy has not dropped, and the loss of accuracy is too large to be noise around chance
        level.
        """
        if robust >= self.best:
            return replace(self, best=robust, training=training, faults=0)
        lost = robust < collapse * self.best and self.best - robust >= _NOISE
        fault = lost and training >= self.training
        return replace(self, faults=self.faults + 1 if fault else 0)

    def within(self, holds: bool) -> Watch:
        """Update after a validation in which the rule of thumb `holds` or not."""
        if holds:
            return replace(self, was_within=True, strays=0)
        return replace(self, strays=self.strays + 1 if self.was_within else 0)
