"""Catastrophic overfitting: robustness collapses on validation data while training looks better and better."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Watch"]

_NOISE = 0.1


@dataclass(frozen=True)
class Watch:
    """What has been seen so far: the best accuracy under attack, the training accuracy then, faults in a row."""

    best: float = 0.0
    training: float = 0.0
    faults: int = 0

    def seen(self, robust: float, training: float, collapse: float) -> Watch:
        """After a validation with accuracy `robust` under attack, and accuracy `training` on the training
        adversary's examples. A fault: `robust` is below collapse × best, training has not fallen, and the loss
        is too large to be noise around chance level."""
        if robust >= self.best:
            return Watch(robust, training, 0)
        lost = robust < collapse * self.best and self.best - robust >= _NOISE
        fault = lost and training >= self.training
        return Watch(self.best, self.training, self.faults + 1 if fault else 0)
