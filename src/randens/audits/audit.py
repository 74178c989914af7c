"""Check whether the numbers of an evaluation can be trusted; published evaluations have failed these checks.

A robust accuracy is only as good as its attack. Attacks stall on members whose gradients are zero or noisy, so these
members look robust; the score of a random member depends on chance. Each check compares quantities that have a known
order in a sound evaluation, or that must be equal, and advises what to do if they do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from randens.attacks.base import AttackLike
from randens.audits.checks import Check, Probes, attack_checks, batches, gradients, random_checks, splits
from randens.core.errors import InputError, expect
from randens.evaluation.evaluate import Witnesses
from randens.evaluation.inputs import Case, Settings, prepare
from randens.evaluation.result import Evaluation
from randens.evaluation.tables import Result, Table, label, new_axes
from randens.threat import FiniteThreat

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ENOUGH", "Audit", "audit"]

ENOUGH = 50
"""Inputs below which an audit is inconclusive: differences on a few inputs may be chance."""

_COLORS = {"ok": "tab:green", "note": "tab:orange", "fail": "tab:red"}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Audit(Result):
    """The result of all checks on one classifier or ensemble."""

    kind: ClassVar[str] = "audit"
    derived: ClassVar[str] = "passed conclusive verdict"

    checks: tuple[Check, ...]

    @property
    def conclusive(self) -> bool:
        """Whether there were enough inputs."""
        return self.about.n >= ENOUGH

    @property
    def passed(self) -> bool:
        """Whether no check failed, on enough inputs."""
        return self.conclusive and not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks after which the reported number may be too high."""
        return tuple(check for check in self.checks if check.status == "fail")

    @property
    def remarks(self) -> tuple[Check, ...]:
        """The checks with a note: some attack alone would have been weak, or a difference may be chance."""
        return tuple(check for check in self.checks if check.status == "note")

    @property
    def verdict(self) -> str:
        """One or two sentences."""
        notes = ", ".join(check.name for check in self.remarks) or "none"
        if self.failed:
            names = [check.name for check in self.failed]
            # Missing gradients alone beat no number and break no law.
            said = "the number may be too high" if names == ["gradients"] else "do not trust the number"
            return f"{len(names)} of {len(self.checks)} checks failed ({', '.join(names)}): {said}."
        if not self.conclusive:
            return (
                f"Inconclusive: no check failed on {self.about.n} inputs, but fewer than {ENOUGH} say little."
            )
        proof = "That is no proof: a stronger attack may find more."
        return f"No check of {len(self.checks)} failed on {self.about.n} inputs; notes: {notes}. {proof}"

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def table(self) -> Table:
        """One line per check."""
        lines = [(check.name, check.status, check.finding) for check in self.checks]
        records = [
            {"check": c.name, "status": c.status, "finding": c.finding, "advice": c.advice}
            for c in self.checks
        ]
        return Table(("check", "", "finding"), lines, records, numbers=False)

    def figure(self) -> Any:
        """Draw one line per check, colored by its status."""
        figure, axes = new_axes("", "", height=1.0 + 0.25 * len(self.checks))
        for line, check in enumerate(reversed(self.checks)):
            axes.barh(line, 1, color=_COLORS.get(check.status, "gray"))
        axes.set_yticks(range(len(self.checks)), [label(check.name) for check in reversed(self.checks)])
        axes.set_xticks([])
        return figure

    def sentences(self) -> list[str]:
        """The verdict, then advice."""
        advice = [f"{check.name}: {check.advice}." for check in (*self.failed, *self.remarks)]
        return [self.verdict, *advice]


def audit(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    evaluation: Evaluation | None = None,
    chosen_on: Mapping[str, str] | None = None,
    **settings: Unpack[Settings],
) -> Audit:
    """Check a classifier, an ensemble or a random model: can its robust accuracy be trusted?

    Parameters
    ----------
    model, data, attack
        As for `randens.evaluate`; a hundred inputs are enough. The attack makes the number that is checked, unless
        `evaluation` is given.
    evaluation : Evaluation, optional
        The reported numbers.
    chosen_on : mapping, optional
        Which split chose what, e.g. ``{"probs": "validation"}``.
    **settings
        eps, norm, threat, device, preprocessing, probs, split, limit, seed, folder, progress as for `randens.evaluate`.

    Returns
    -------
    Audit
        `.passed`, `.verdict`, and the checks with findings and advice.

    Examples
    --------
    >>> import randens
    >>> net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    >>> randens.audit(net, "digits", "pgd", eps=0.05, limit=8)["splits"].passed
    True
    """
    expect("evaluation", evaluation, Evaluation | None)
    expect("chosen_on", chosen_on, Mapping | None)
    if isinstance(settings.get("threat"), FiniteThreat):
        raise InputError(
            "threat is a finite set, for which evaluate is exact; audits are of attacks on balls"
        )
    with prepare(model, data, attack, **settings) as case:
        if case.rec.stochastic:
            found, cost = random_checks(case)
            return Audit(about=case.about, checks=tuple(found), cost=cost, now=cost, notes=case.notes)
        evaluated = {} if evaluation is None else evaluation.chosen_on
        seed = case.attacks[0].seed
        known = Witnesses(case)
        reported = _reported(case, known, evaluation)
        found = [
            splits({**case.chosen_on, **evaluated, **(chosen_on or {})}),
            batches(known),
            gradients(known, seed),
            *attack_checks(Probes(known, seed), reported),
        ]
        return Audit(about=case.about, checks=tuple(found), cost=known.cost, now=known.now, notes=case.notes)


def _reported(case: Case, known: Witnesses, evaluation: Evaluation | None) -> NDArray[np.float64]:
    """The risk [n] that is checked: of an evaluation of these inputs under this threat, else of the attack."""
    probs, about = known.rec.probs.cpu().numpy(), case.about
    if evaluation is not None:
        evaluation.check(case.rec)
        other = evaluation.about
        if not np.array_equal(evaluation.probs, probs):
            raise InputError(
                f"the evaluation is at α = {other.probs}, the ensemble has {about.probs}; evaluate again"
            )
        if (other.data, other.split, dict(other.threat)) == (about.data, about.split, dict(about.threat)):
            return evaluation.risk
    known.attack_all([probs])
    return known.pool.best(probs)[0]
