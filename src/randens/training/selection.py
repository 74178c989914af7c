"""The checkpoint rule: which epoch of a member is kept, and when its training ends early.

All epochs of a member are evaluated by one attack at the current α. Witnesses from a search for α are not
used: they would make epochs with a new α look worse than the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from randens.risk import rule_of_thumb
from randens.training.methods import Method, Roster
from randens.training.recipe import Recipe
from randens.training.state import Best, Stage
from randens.training.validation import Batch, Validated, attacked, validation_attack

__all__ = ["CheckpointRule", "Remark"]

_ENDS = "training of this member stops, its best checkpoint is kept"


@dataclass(frozen=True)
class Remark:
    """A reason to stop the training of a member: the event in metrics.jsonl, and a sentence for the user."""

    event: str
    sentence: str
    values: dict[str, Any]


class CheckpointRule:
    """Evaluates the epochs of a run's members by the recipe's `validation`, on validation data (`held`)."""

    def __init__(self, recipe: Recipe, method: Method, held: Batch) -> None:
        self.part, self.method, self.held = recipe.validation, method, held
        self.attack = validation_attack(recipe, method.attack or recipe.validation.attack)

    def due(self, done: int, epochs: int) -> bool:
        """Is epoch `done` of `epochs` evaluated?"""
        return done == epochs or done % self.part.every == 0

    def judged(self, roster: Roster) -> Validated:
        """Evaluate an epoch."""
        return attacked(self.method.judged(roster), *self.held, self.attack)

    def kept(self, stage: Stage, verdict: Validated) -> Best:
        """Return the better of the best epoch so far and this one; the later one if they are equal."""
        best, now = stage.best, (verdict.risk, verdict.natural)
        if self.part.keep == "best" and best is not None and now > (best.risk, best.natural):
            return best
        states = [{k: v.detach().clone() for k, v in m.state_dict().items()} for m in stage.averaged]
        return Best(verdict.risk, verdict.natural, stage.epoch, np.array(stage.probs), states)

    def goes_on(self, stage: Stage) -> bool:
        """Whether the training of this member continues."""
        return stage.watch.worst < self.part.patience

    def remarks(self, stage: Stage, verdict: Validated, accuracy: float) -> Iterator[Remark]:
        """Check for overfitting and the rule of thumb after an epoch; `accuracy` is that on training examples."""
        risks = verdict.pool.profile().member_risks
        if self.method.watched:
            # Only the members in training can lose robustness; they are the last of those attacked.
            robust = 1 - float(np.max(risks[-len(stage.trained) :]))
            stage.watch = stage.watch.seen(robust, accuracy, self.part.collapse)
            if stage.watch.faults:
                best = stage.watch.best
                said = (
                    f"catastrophic overfitting, accuracy under attack fell from {best:.1%} to {robust:.1%} while "
                    f"training accuracy rose to {accuracy:.1%}"
                )
                yield self._remark("overfitting", said, stage.watch.faults, robust=robust, best=best)
        if self.part.rule_of_thumb and len(stage.probs) > 1:
            # Equation 15 for the member in training, which is the last one.
            risk, limit = float(risks[-1]), float(rule_of_thumb(risks[:-1]).high)
            stage.watch = stage.watch.within(risk <= limit)
            if stage.watch.strays:
                said = f"its risk {risk:.1%} is above {limit:.1%}, the rule of thumb's limit"
                yield self._remark("rule-of-thumb", said, stage.watch.strays, risk=risk, limit=limit)

    def _remark(self, event: str, said: str, times: int, **values: float) -> Remark:
        stops = times >= self.part.patience
        return Remark(event, f"{said}; {_ENDS if stops else 'watching'}", {**values, "stops": stops})
