"""Read a run's numbers from its witness store without passes, so that all sections use the same witnesses.

Documents are written at different times, and the store may have more witnesses since. So the evaluation, the
curve over ε, the attacks compared, the pictures and the audit are read again from the store: every witness
within a radius counts there, whichever command found it. Numbers that only the documents have, because the
store was shortened or removed, are kept. If members or data are missing, the documents are shown unchanged.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens import attacks
from randens.attacks.dataset import ask
from randens.audit.auditing import Audit, stored_audit
from randens.audit.case import Check
from randens.core.errors import InputError, RandensError
from randens.evaluation import Estimate, Evaluation
from randens.evaluation.argument_checks import fingerprint
from randens.evaluation.intervals import estimate
from randens.evaluation.results import Points
from randens.evaluation.run_folder import Subject, open_subject
from randens.evaluation.worst_case import average_of
from randens.report.load import (
    AttackLine,
    AttackTable,
    AuditCheck,
    AuditNote,
    Gallery,
    LoadedRun,
    Radii,
    Radius,
    load_runs,
    measured_on,
)
from randens.report.pictures import choose, draw
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.store import Asked, input_keys, member_key

__all__ = ["from_store", "read_runs"]

_ROUNDING = 1e-12


def read_runs(paths: Sequence[str | os.PathLike[str]]) -> tuple[LoadedRun, ...]:
    """`load_runs`, with numbers from each run's witness store."""
    return tuple(from_store(one) for one in load_runs(paths))


def from_store(one: LoadedRun) -> LoadedRun:
    """Return the run with the parts that its store knows read from there; `stored` names them."""
    known = one.evaluation
    if not (one.run.path / "witnesses").is_dir():
        return one
    try:
        subject = open_subject(one.run.path, data=None if known is None else known.data)
        if subject.rec.stochastic:
            return one
        if known is not None and subject.evaluation() is None:
            return _noted(one, "the evaluation is of other members or probabilities than the run has now")
        split, n, threat = (
            ("test", None, subject.threat) if known is None else (known.split, known.n, known.threat)
        )
        witnesses = _Witnesses(subject, split, n, threat)
        evaluation = None if known is None else _evaluation(known, witnesses)
        found: dict[str, Any] = {
            "evaluation": evaluation,
            "radii": _radii(one.radii, evaluation, subject),
            "attacks": _attacks(one.attacks, witnesses, 0.95 if known is None else known.confidence),
            "gallery": _gallery(one.gallery, evaluation, witnesses),
            "audit": _audit(one.audit, evaluation, subject),
        }
    except RandensError as error:
        return _noted(
            one, str(error)
        )  # the data, or code that the members need, are missing, or the store is newer
    one = dataclasses.replace(one, notes=tuple(dict.fromkeys(witnesses.store.notes)))
    read = {part: value for part, value in found.items() if value is not None}
    if evaluation is None or known is None:
        return dataclasses.replace(one, **read, stored=frozenset(read))
    new = np.flatnonzero(evaluation.risk > known.risk + _ROUNDING)
    others = tuple(sorted({evaluation.points.sources[j] for j in new}))
    return dataclasses.replace(one, **read, stored=frozenset(read), others=others)


def _noted(one: LoadedRun, reason: str) -> LoadedRun:
    return dataclasses.replace(one, notes=(f"The documents are shown, not the witness store: {reason}.",))


class _Witnesses:
    """Stored verdicts of the members, and of their average, on the first n inputs of a split, up to a radius."""

    def __init__(self, subject: Subject, split: str, n: int | None, threat: Threat) -> None:
        self.rec, self.threat = subject.rec, threat
        self.probs: NDArray[np.float64] = subject.rec.probs.cpu().numpy()
        self.images = subject.load(split, n)
        self.store = subject.store()
        self.store.refresh(threat, self.images.x)
        self.keys = input_keys(self.images.x, self.images.y)
        members = list(subject.rec.members)
        self.names = tuple(member_key(member) for member in members)
        self.n, self.members = len(self.images), len(members)
        average = average_of(subject.rec) if len(members) > 1 else members[0]
        everyone = slice(None)
        self._of_members = self._recalled(self.names, everyone)
        self._of_average = self._recalled((member_key(average),), everyone)

    def _recalled(self, names: Sequence[str], rows: Any, **options: Any) -> Any:
        return self.store.recall(
            names, self.keys[rows], self.images.x[rows], self.threat, **{"inputs": False} | options
        )

    def pool(self, eps: float) -> WitnessPool:
        """Return the witnesses within `eps`."""
        kept = self._of_members
        near = np.flatnonzero(kept.distance <= eps)
        sources = [kept.sources[row] for row in near.tolist()]
        return WitnessPool(self.n, self.members, kept.points[near], kept.verdicts[near] == 1, sources=sources)

    def average_fooled(self, eps: float) -> NDArray[np.bool_]:
        """Bool [n]: inputs at which the average of all logits is fooled within `eps`."""
        kept = self._of_average
        found = np.zeros(self.n, dtype=bool)
        found[kept.points[(kept.verdicts[:, 0] == 1) & (kept.distance <= eps)]] = True
        return found

    def correct(self) -> NDArray[np.bool_]:
        """Bool [n]: inputs that every member is known to classify correctly without a perturbation."""
        kept = self._of_members
        found = np.zeros(self.n, dtype=bool)
        found[kept.points[kept.clean & (kept.verdicts == 0).all(axis=1)]] = True
        return found

    def located(self, rows: Sequence[int]) -> WitnessPool:
        """Return the witnesses of some inputs, renumbered in their order, with the perturbed inputs."""
        kept = self._recalled(self.names, list(rows), inputs=True)
        return WitnessPool(
            len(rows),
            self.members,
            kept.points,
            kept.verdicts == 1,
            x_adv=kept.x_adv.contiguous().numpy(),
            sources=kept.sources,
        )

    def alone(self, confidence: float) -> list[AttackLine]:
        """Return the attacks that were made alone on the ensemble, at its α and the threat's radius.

        An attack counts on as many of the first inputs as it met.
        """
        found: dict[str, tuple[int, AttackLine]] = {}
        for search in self.store.asked(self.threat, self.images.x):
            about = search.about
            same = (search.members, search.probs) == (self.names, tuple(self.probs.tolist()))
            if not (same and about.alone and about.eps == self.threat.eps):
                continue
            done = self.store.answer(search, self.keys, self.threat, self.images.x).done
            count = self.n if done.all() else int(done.argmin())
            label = f"{about.attack} {json.dumps(about.options, sort_keys=True)}"
            # The same attack of another version may be there as well; the later one counts.
            if count >= max(1, found.get(label, (0,))[0]):
                found[label] = (count, self._line(search, count, confidence))
        return [line for _, line in found.values()]

    def _line(self, search: Asked, count: int, confidence: float) -> AttackLine:
        first = slice(0, count)
        spent = self.store.answer(search, self.keys[first], self.threat, self.images.x[first])
        kept = self._recalled(self.names, first, question=search)
        risks = WitnessPool(count, self.members, kept.points, kept.verdicts == 1).best(self.probs)[0]
        return AttackLine(
            name=search.about.attack,
            robust=estimate(1 - risks, confidence),
            forwards=spent.forwards,
            backwards=spent.backwards,
            seconds=spent.seconds,
            options=_options(search, self.threat),
            n=count,
        )


def _options(search: Asked, threat: Threat) -> str:
    """The options of a search that are not the attack's defaults; those of every attack come last."""
    given = search.about.options
    try:
        usual = ask(attacks.create(search.about.attack, threat), search.members, search.probs, alone=True)
        defaults: dict[str, Any] = json.loads(usual.text)["options"]
    except InputError:
        defaults = {}
    names = [name for name, value in given.items() if name not in defaults or defaults[name] != value]
    names.sort(key=("restarts", "seed", "precision", "batch_size", "drop_finished").count)
    return ", ".join(f"{name}={given[name]}" if name != "precision" else str(given[name]) for name in names)


def _evaluation(known: Evaluation, witnesses: _Witnesses) -> Evaluation:
    old = known.points
    rows, members = np.nonzero(old.foolable)
    alone = np.zeros((len(rows), known.members), dtype=bool)
    alone[np.arange(len(rows)), members] = True
    pool = witnesses.pool(known.threat.eps)
    pool = pool.merge(WitnessPool(known.n, known.members, np.arange(known.n), old.worst, sources=old.sources))
    pool = pool.merge(WitnessPool(known.n, known.members, rows, alone))
    best = pool.best(known.probs)[1]
    found = best >= 0
    worst = np.zeros_like(old.worst)
    worst[found] = pool.fooled[best[found]]
    # If the store has no worse witness, the verdict and its source stay unchanged.
    same = worst @ known.probs <= old.worst @ known.probs + _ROUNDING
    worst[same] = old.worst[same]
    sources = tuple(
        old.sources[j] if same[j] else pool.sources[best[j]] if found[j] else "" for j in range(known.n)
    )
    average = old.deterministic_worst
    if average is not None:
        average = average | witnesses.average_fooled(known.threat.eps)
    points = Points(old.clean, worst, pool.foolable, sources, old.deterministic_clean, average)
    return dataclasses.replace(known, points=points, profile=pool.profile())


def _radii(radii: Radii | None, known: Evaluation | None, subject: Subject) -> Radii | None:
    if radii is None or known is None or (radii.ensemble, radii.data) != (known.ensemble, known.data):
        return None
    if not np.allclose(radii.probs, known.probs) or radii.norm != known.threat.norm:
        return None
    largest = max(radius.eps for radius in radii.radii)
    witnesses = _Witnesses(subject, radii.split, radii.n, known.threat.scaled(largest / known.threat.eps))

    def lower(one: Estimate, values: NDArray[np.floating[Any]]) -> Estimate:
        return min(one, estimate(values, radii.confidence))

    lines = []
    for radius in radii.radii:
        pool = witnesses.pool(radius.eps)
        lines.append(
            Radius(
                eps=radius.eps,
                robust=lower(radius.robust, 1 - pool.best(known.probs)[0]),
                members=[
                    lower(one, 1.0 - pool.foolable[:, index]) for index, one in enumerate(radius.members)
                ],
                deterministic=None
                if radius.deterministic is None
                else lower(radius.deterministic, 1.0 - witnesses.average_fooled(radius.eps)),
            )
        )
    return radii.model_copy(update={"radii": lines})


def _attacks(written: AttackTable | None, witnesses: _Witnesses, confidence: float) -> AttackTable | None:
    """The attacks that the store knows, and those of the document on the same case that it does not know."""
    lines = witnesses.alone(confidence)
    if not lines:
        return None
    about = measured_on(witnesses.rec, witnesses.images, witnesses.threat)
    del about["n"]
    if written is not None and all(getattr(written, key) == value for key, value in about.items()):
        known = {line.label for line in lines}
        lines += [
            line.model_copy(update={"n": line.n or written.n, "kept": True})
            for line in written.attacks
            if line.label not in known
        ]
    return AttackTable(**about, n=max(line.n or 0 for line in lines), attacks=lines, together=None)


def _gallery(written: Gallery | None, known: Evaluation | None, witnesses: _Witnesses) -> Gallery | None:
    """Pictures of stored witnesses; only of those that are as bad as the worst case in the evaluation."""
    pool = witnesses.pool(witnesses.threat.eps)
    risks = pool.best(witnesses.probs)[0]
    correct = witnesses.correct() if known is None else ~known.points.clean.any(axis=1)
    able = correct & (risks > 0) & (risks >= (0.0 if known is None else known.risk - _ROUNDING))
    if len(witnesses.images.shape) != 3 or not able.any():
        return None
    chosen = choose(pool, witnesses.probs, able)
    drawn = draw(witnesses.rec, witnesses.images, chosen, witnesses.located(chosen), witnesses.threat)
    # The store has verdicts, no answers; those in the document are about the same pictures or not used.
    same = {} if written is None else {(e.index, e.perturbed): e for e in written.examples}
    examples = []
    for example in drawn.examples:
        other = same.get((example.index, example.perturbed))
        fits = other is not None and (other.wrong, other.label) == (example.fooled, example.label)
        examples.append(
            example.model_copy(update={"before": other.before, "after": other.after})
            if fits and other is not None
            else example
        )
    return drawn.model_copy(update={"examples": examples})


def _audit(written: AuditNote | None, known: Evaluation | None, subject: Subject) -> AuditNote | None:
    rec = subject.rec
    if written is None or written.threat is None or written.n is None:
        return None
    if written.ensemble != fingerprint(rec) or written.data != subject.data:
        return None
    if written.probs and written.probs != rec.probs.tolist():
        return None
    images = subject.load(written.split, written.n)
    if len(images) != written.n:
        return None
    before = Audit(
        tuple(Check(**vars(check)) for check in written.checks),
        written.complete,
        written.ensemble,
        written.data,
        written.split,
        written.n,
        Threat.from_dict(written.threat.plain()),
        written.seed,
        attacks.Cost(),
        0.0,
    )
    found, kept = stored_audit(
        rec, images, before, subject.store(), evaluation=known, chosen_on=subject.chosen_on
    )
    checks = [AuditCheck.model_validate(check.to_json()) for check in found.checks]
    read = {"passed": found.passed, "verdict": found.verdict, "checks": checks, "kept": list(kept)}
    return written.model_copy(update=read)
