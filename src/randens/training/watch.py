"""Catastrophic overfitting: robustness collapses on validation data while training looks better and better."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Watch"]


@dataclass(frozen=True)
class Watch:
    """What has been seen so far: the best accuracy under attack, the training accuracy then, faults in a row."""

    best: float = 0.0
    training: float = 0.0
    faults: int = 0

    def seen(self, robust: float, training: float, collapse: float) -> Watch:
        """After a validation with accuracy `robust` under attack, and accuracy `training` on the training
        adversary's examples. It is a fault when `robust` is below collapse × best and training has not fallen."""
        if robust >= self.best:
            return Watch(robust, training, 0)
        fault = robust < collapse * self.best and training >= self.training
        return Watch(self.best, self.training, self.faults + 1 if fault else 0)
