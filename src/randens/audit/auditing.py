"""Check whether the numbers of an evaluation can be trusted; published evaluations have failed these checks.

A robust accuracy is only as good as its attack. Attacks stall on members whose gradients are zero, saturated
or noisy, so these members look robust; the score of a random member depends on chance. Each check compares
quantities that have a known order in a sound evaluation (iterative and single-step attacks, white box and
random search, small and large radii) or that must be equal (a one-hot α and its member), and advises what to
do if they do not.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from randens._version import __version__
from randens.attacks import Cost
from randens.audit import attack_checks, member_checks
from randens.audit.case import Case, Check, StoredCase
from randens.core.files import picked
from randens.core.progress import Progress, silent
from randens.core.runs import Kept
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.argument_checks import DataLike, fingerprint, labelled, threat_of
from randens.evaluation.results import Evaluation
from randens.threat import Threat
from randens.witness.store import WitnessStore, as_store

__all__ = ["ENOUGH", "Audit", "Check", "audit", "stored_audit"]

_FORMAT = "randens-audit-1"

ENOUGH = 50
"""Inputs below which an audit is inconclusive: checks may be off by 2 % of the inputs, and not by less than one."""


@dataclass(frozen=True)
class Audit(Kept):
    """The result of all checks on one ensemble.

    Attributes
    ----------
    checks : tuple of Check
        The findings.
    complete : bool
        False if a member's outputs were so broken that attacks on it would be meaningless.
    ensemble : str
        The fingerprint of the members.
    data, split, n : str, str, int
        The data, their split, and the number of inputs.
    threat, seed : Threat, int
        The threat and the seed of the attacks.
    probs : tuple of float
        α, at which the ensemble was attacked.
    cost, now, seconds : Cost, Cost, float
        Member passes and time behind the result; `now` are the passes of this call.
    version : str
        Of randens.
    """

    kept_as: ClassVar[str] = "audit"
    asked: ClassVar[str] = "ensemble probs data split n threat seed"

    checks: tuple[Check, ...]
    complete: bool
    ensemble: str
    data: str
    split: str
    n: int
    threat: Threat
    seed: int
    cost: Cost
    seconds: float
    version: str = __version__
    probs: tuple[float, ...] = ()
    now: Cost = field(default_factory=Cost, repr=False)

    @property
    def conclusive(self) -> bool:
        """Whether there were enough inputs: of fewer than 50, one input exceeds the tolerance of the checks."""
        return self.n >= ENOUGH

    @property
    def passed(self) -> bool:
        """Whether every check passed, on enough inputs."""
        return self.complete and self.conclusive and not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.complete and not self.failed and not self.conclusive:
            return f"Inconclusive: no check failed on {self.n} inputs, but fewer than {ENOUGH} say little; audit more."
        if self.passed:
            return (
                f"All {len(self.checks)} checks passed on {self.n} inputs: nothing here makes attacks look weaker "
                "than they are. That is no proof; a stronger attack may still find more."
            )
        names = ", ".join(check.name for check in self.failed)
        rest = "" if self.complete else "; the ensemble was not attacked, as its answers cannot be scored"
        counted = f"{len(self.failed)} of {len(self.checks)} checks failed ({names})"
        return f"{counted}: do not trust robust accuracies yet{rest}."

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        names = "version passed complete conclusive verdict checks ensemble probs data split n threat seed"
        cost = {**vars(self.cost), "seconds": self.seconds}
        return {"format": _FORMAT, **picked(self, names), "cost": cost}


def stored_audit(
    rec: RandomizedEnsemble,
    data: Data,
    known: Audit,
    store: WitnessStore,
    *,
    evaluation: Evaluation | None = None,
    chosen_on: Mapping[str, str] | None = None,
) -> tuple[Audit, tuple[str, ...]]:
    """Read an earlier audit again from a store, without passes, and compare it with `evaluation`.

    Returns the audit, and the names of the checks that are still those of `known`: checks of outputs and gradients,
    and checks whose attacks are not in the store.
    """
    store.refresh(known.threat, data.x)
    found = [member_checks.splits(evaluation, chosen_on)]
    if evaluation is not None:
        found.append(member_checks.belongs(evaluation, rec))
    if known.complete:
        case = StoredCase(rec, data.x, data.y, known.threat, known.seed, store=store)
        compared = evaluation if evaluation and data.split == evaluation.split else None
        found += attack_checks.stored_checks(case, compared)
    new = {check.name: check for check in found}
    kept = tuple(check.name for check in known.checks if check.name not in new)
    checks = [new.pop(check.name, check) for check in known.checks]
    return dataclasses.replace(known, checks=(*checks, *new.values())), kept


def audit(
    rec: RandomizedEnsemble,
    data: DataLike,
    threat: Threat | None = None,
    *,
    evaluation: Evaluation | None = None,
    chosen_on: Mapping[str, str] | None = None,
    seed: int = 0,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Check an ensemble; a random classifier has checks of its own: see `audit_stochastic`.

    Parameters
    ----------
    rec : RandomizedEnsemble
        What to check.
    data : pair, loader or Data
        A hundred inputs are enough.
    threat : Threat
        The threat of the evaluation; None: the ensemble's own.
    evaluation : Evaluation, optional
        Compared with the attacks of the audit.
    chosen_on : mapping, optional
        Which split chose what.
    seed : int
        Decides every random choice.
    folder : path or WitnessStore, optional
        A witness store, where attacks made before are read and new ones kept.
    progress : callable, optional
        ``progress(task, done, total)``.

    Returns
    -------
    Audit
        Checks with findings and advice.

    Examples
    --------
    >>> import randens
    >>> net = randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)
    >>> rec, data = randens.RandomizedEnsemble([net]), randens.data.load("digits", "validation")[:8]
    >>> len(audit(rec, data, randens.Threat("linf", 0.05)).checks) > 10
    True
    """
    if getattr(rec, "stochastic", False):
        # Imported late, because that module imports `Audit`.
        from randens.audit.random_model_checks import audit_stochastic

        return audit_stochastic(rec, data, threat, seed=seed, progress=progress)
    start = time.perf_counter()
    inputs = labelled(data, rec)
    chosen = threat_of(rec, threat)
    store = as_store(folder)
    report = progress or silent
    case = Case(rec, inputs.x, inputs.y, chosen, seed, report, store=store)
    checks = [member_checks.splits(evaluation, chosen_on)]
    if evaluation is not None:
        checks.append(member_checks.belongs(evaluation, rec))
    checks += member_checks.checks(case)
    # Attacks refuse members whose outputs are not finite; the checks so far have reported them.
    complete = member_checks.scorable(checks)
    if complete:
        checks += attack_checks.checks(
            case, evaluation if evaluation and inputs.split == evaluation.split else None
        )
    return Audit(
        tuple(checks),
        complete,
        fingerprint(rec),
        inputs.name,
        inputs.split,
        len(inputs),
        chosen,
        seed,
        case.cost,
        time.perf_counter() - start,
        probs=tuple(rec.probs.tolist()),
        now=case.now,
    )
