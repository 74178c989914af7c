"""Check whether the numbers of an evaluation can be trusted; published evaluations have failed these checks.

A robust accuracy is only as good as its attack. Attacks stall on members whose gradients are zero, saturated
or noisy, so these members look robust; the score of a random member depends on chance. Each check compares
quantities that have a known order in a sound evaluation, or that must be equal, and advises what to do if they do not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from randens.attacks import Cost
from randens.audits import checks, random_checks
from randens.audits.checks import Check
from randens.audits.probes import Probes, attack_checks
from randens.core.errors import InputError
from randens.evaluation.evaluate import attack_all
from randens.evaluation.inputs import AttackLike, Case, prepare
from randens.evaluation.loop import Witnesses
from randens.evaluation.result import Evaluation
from randens.evaluation.tables import About, Result, Table, new_axes, saved
from randens.threat import FiniteThreat

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from randens.evaluation.inputs import Settings

__all__ = ["ENOUGH", "Audit", "audit"]

ENOUGH = 50
"""Inputs below which an audit is inconclusive: checks may be off by 2 % of the inputs, and not by less than one."""

_COLORS = {"ok": "tab:green", "note": "tab:orange", "fail": "tab:red"}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Audit(Result):
    """The result of all checks on one classifier or ensemble.

    complete: false if a member's outputs were so broken that attacks on it would be meaningless. cost, now: member
    passes behind the result, and those of this call.
    """

    kind: ClassVar[str] = "audit"

    about: About
    checks: tuple[Check, ...]
    complete: bool
    cost: Cost = field(default_factory=Cost)
    now: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()

    @property
    def conclusive(self) -> bool:
        """Whether there were enough inputs."""
        return self.about.n >= ENOUGH

    @property
    def passed(self) -> bool:
        """Whether no check failed, on enough inputs."""
        return self.complete and self.conclusive and not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks after which the reported number may be too high."""
        return tuple(check for check in self.checks if check.status == "fail")

    @property
    def remarks(self) -> tuple[Check, ...]:
        """The checks that show that some attack alone would have been weak."""
        return tuple(check for check in self.checks if check.status == "note")

    @property
    def verdict(self) -> str:
        """One or two sentences."""
        n = self.about.n
        weak = f" {len(self.remarks)} show that a single attack would have been weak." if self.remarks else ""
        if self.failed or not self.complete:
            names = ", ".join(check.name for check in self.failed)
            rest = "" if self.complete else "; it was not attacked, as its answers cannot be scored"
            return f"{len(self.failed)} of {len(self.checks)} checks failed ({names}): do not trust the number{rest}."
        if not self.conclusive:
            return f"Inconclusive: no check failed on {n} inputs, but fewer than {ENOUGH} say little; audit more."
        proof = "That is no proof: a stronger attack may find more."
        return f"No check of {len(self.checks)} failed on {n} inputs.{weak} {proof}"

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

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw one line per check, colored by its status; with `path`, into that file, too."""
        figure, axes = new_axes("", "", height=1.0 + 0.25 * len(self.checks))
        for line, check in enumerate(reversed(self.checks)):
            axes.barh(line, 1, color=_COLORS[check.status])
        axes.set_yticks(range(len(self.checks)), [check.name for check in reversed(self.checks)])
        axes.set_xticks([])
        return saved(figure, path)

    def sentences(self) -> list[str]:
        """The verdict, then advice."""
        advice = [f"{check.name}: {check.advice}." for check in (*self.failed, *self.remarks)]
        return [self.verdict, *advice]

    def content(self) -> dict[str, Any]:
        """Verdict and checks."""
        return {
            "passed": self.passed,
            "complete": self.complete,
            "conclusive": self.conclusive,
            "verdict": self.verdict,
            "checks": [vars(check) for check in self.checks],
            "cost": self.cost,
        }


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
    >>> len(randens.audit(net, "digits", "pgd", eps=0.05, limit=8).checks) > 10
    True
    """
    if isinstance(settings.get("threat"), FiniteThreat):
        raise InputError(
            "threat is a finite set, for which evaluate is exact; audits are of attacks on balls"
        )
    with prepare(model, data, attack, **settings) as case:
        if case.rec.stochastic:
            found, complete, cost = random_checks.checks(case, case.progress)
            return Audit(
                about=case.about,
                checks=tuple(found),
                complete=complete,
                cost=cost,
                now=cost,
                notes=case.notes,
            )
        choices = {
            **case.chosen_on,
            **({} if evaluation is None else evaluation.chosen_on),
            **(chosen_on or {}),
        }
        found = [checks.splits(choices)]
        if evaluation is not None:
            found.append(checks.belongs(evaluation, case.rec))
        found.append(checks.outputs(case.rec, case.data.x))
        if found[-1].evidence["not_finite"]:  # such members cannot be attacked
            return Audit(about=case.about, checks=tuple(found), complete=False, notes=case.notes)
        known = Witnesses(case.rec, case.data, case.threat, store=case.store, progress=case.progress)
        reported = _reported(case, known, evaluation)
        found += checks.member_checks(known, case.attacks[0].seed)
        found += attack_checks(Probes(known, case.attacks[0].seed), reported)
        return Audit(
            about=case.about,
            checks=tuple(found),
            complete=True,
            cost=known.cost,
            now=known.now,
            notes=case.notes,
        )


def _reported(case: Case, known: Witnesses, evaluation: Evaluation | None) -> np.typing.NDArray[np.float64]:
    """The risk [n] that is checked: of an evaluation of these inputs under this threat, else of the attack."""
    about = case.about
    if evaluation is not None:
        other = evaluation.about
        if (other.data, other.split, dict(other.threat)) == (about.data, about.split, dict(about.threat)):
            return evaluation.risk
    probs = known.rec.probs.cpu().numpy()
    attack_all(known, case, [probs])
    return known.pool.best(probs)[0]
