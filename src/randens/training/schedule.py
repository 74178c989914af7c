"""The learning rate at every step of a member's training."""

from __future__ import annotations

from randens.training.recipe import SchedulePart

__all__ = ["learning_rate"]


def learning_rate(part: SchedulePart, base: float, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The rate of step number `step` (0 is the first) out of epochs × steps_per_epoch.

    cyclic: from 0 up to `base` over the share `peak` of all steps, then down to 0; both ends are left out, so
    no step has a rate of 0.
    """
    if part.name == "constant":
        return base
    if part.name == "steps":
        epoch = step // steps_per_epoch
        return base * part.factor ** sum(epoch >= milestone for milestone in part.milestones)
    total = steps_per_epoch * epochs
    position = (step + 0.5) / total
    if position < part.peak:
        return base * position / part.peak
    return base * (1 - position) / (1 - part.peak)
