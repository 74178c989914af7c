"""What to deploy: one member, a sampled member, an average of k or of all, on the same perturbations.

Every option is a randomized ensemble over the same networks: the members (k = 1), all averages of k of them, and the
average of all (k = M). Each is attacked itself and then also tested with the perturbations found for all others, so
that none looks robust because its own attack was weak.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from randens.attacks.base import AttackLike
from randens.core.errors import InputError, expect
from randens.core.progress import within
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.conflict import Conflict, known_conflict
from randens.evaluation.evaluate import Witnesses
from randens.evaluation.inputs import Case, Settings, chosen_split, prepare
from randens.evaluation.tables import Accuracy, Result, Row, Table, bars, count, table_of
from randens.risk.intervals import Estimate, difference, estimate, joint
from randens.risk.sets import as_attempts

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CONFIDENCE = 0.95
_MOST_SUBSETS = 64
_MOST_ATTEMPTS = 1000  # beyond, sampling survives "any number"
_SLACK = 1e-9

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Option(Row):
    """One option for deployment, with the FLOPs of one inference on average over the draw.

    kind: "member", "sampled", "subset", "deterministic", "vote" or "network". k: the number of networks per input.
    risks: expected error of every input under attack, after the attempts that the advice is about, [n].
    """

    in_memory: ClassVar[str] = "risks"

    k: int
    risks: Array = field(repr=False)


@dataclass(frozen=True)
class Choice:
    """What to deploy at a budget of `compute` members, why, and how far ahead of the best member it is."""

    compute: int
    option: str
    ahead: Estimate
    reason: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Advice(Result):
    """The options, the choice at 1×, 2× and M× a member's compute, and the reasons behind them.

    gain: Σ α_i η_i − η(α). choices is empty on test data, on which nothing is chosen. attempts: what the attacker may
    try; survives: how many attempts leave sampling at least as robust as the best member.
    """

    kind: ClassVar[str] = "advice"

    options: tuple[Option, ...]
    choices: tuple[Choice, ...]
    gain: Estimate
    conflict: Conflict | None
    attempts: float
    survives: float
    confidence: float = _CONFIDENCE

    def table(self) -> Table:
        return table_of(self.options, self.confidence)

    def figure(self) -> Any:
        return bars([(option.name, option.accuracy.robust) for option in self.options], "robust accuracy")

    def sentences(self) -> list[str]:
        said = [f"At {choice.compute}× compute: {choice.option}. {choice.reason}" for choice in self.choices]
        said = said or ["Nothing is recommended on test data: decide on the validation split."]
        if np.count_nonzero(self.about.probs) > 1:
            none = "" if self.gain > 0 else ": sampling gains nothing over its members"
            points = f"{100 * self.gain:.1f} points over the mean of its members ({_interval(self.gain)})"
            times = f"{self.survives:g} attempts, and less robust against more"
            often = "any number of attempts" if self.survives == math.inf else times
            said += [
                f"Sampling gains {points}{none}.",
                f"Sampling is at least as robust as the best member against {often}.",
            ]
        return said + ([] if self.conflict is None else self.conflict.sentences())


def advise(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    networks: Mapping[str, nn.Module] | None = None,
    attempts: float = 1,
    **settings: Unpack[Settings],
) -> Advice:
    """Compare the options for deploying these members, and recommend one.

    Parameters
    ----------
    model, data, attack
        As for `randens.evaluate`; of named data the validation split is the default. On test data the table is
        computed, but nothing is recommended.
    networks : mapping, optional
        Single networks to compare with, by name: one trained with the same passes, or one of the FLOPs of k members.
    attempts : int or inf
        How often an attacker may try, each time against a fresh draw: accuracies and choices are for that.
    **settings
        eps, norm, threat, device, preprocessing, probs, split, limit, seed, folder, progress as for `randens.evaluate`.

    Returns
    -------
    Advice
        `.options` with intervals and FLOPs, `.choices` at 1×, 2× and M× compute, `.sentences()`.

    Examples
    --------
    >>> import randens
    >>> nets = [randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    >>> advice = randens.advise(nets, "digits", "fgsm", eps=0.1, limit=8)
    >>> [option.name for option in advice.options]
    ['best member, number 0', 'sampled uniformly', 'average of all 2']
    """
    tries = as_attempts(attempts)
    expect("networks", networks, Mapping | None)
    with prepare(model, data, attack, **chosen_split(data, settings)) as case:
        case.need_members("advice is")
        rec, members, extra = case.rec, len(case.rec), networks or {}
        fewer = [k for k in range(2, members) if math.comb(members, k) <= _MOST_SUBSETS]
        ensembles = {"": rec, **{f"average of {k} of {members}, sampled": rec.subsets(k) for k in fewer}}
        if members > 1:
            ensembles[f"average of all {members}"] = rec.subsets(members)
        if taken := [name for name in extra if name in ensembles]:
            raise InputError(f"networks names {taken[0]!r}, which is an option already; choose another name")
        ensembles |= {name: RandomizedEnsemble([net]).to(rec.device) for name, net in extra.items()}
        known = _attacked(case, ensembles)
        own, alpha = known.pop(""), rec.probs.cpu().numpy()
        options = [*_own(own, alpha, tries)]
        for name, one in known.items():
            k = 1 if name in extra else int(getattr(one.rec.members[0], "passes", 1))
            kind = "network" if name in extra else "deterministic" if k == members else "subset"
            options.append(_option(name, kind, k, one, one.rec.probs.cpu().numpy(), tries))
        return Advice(
            conflict=known_conflict(own),
            **own.head(*known.values()),
            options=tuple(options),
            choices=() if case.data.split == "test" else _choices(options, members),
            gain=difference(own.pool.foolable @ alpha, own.pool.best(alpha)[0]),
            attempts=tries,
            survives=_survives(own, alpha),
        )


def _attacked(case: Case, ensembles: Mapping[str, RandomizedEnsemble]) -> dict[str, Witnesses]:
    """What attacks find on each, all tested with the perturbations of all; "" has attacks on its members, too."""
    known: dict[str, Witnesses] = {}
    for name, one in ensembles.items():
        report = within(case.progress, name) if name else case.progress
        found = Witnesses(replace(case, rec=one, progress=report))
        for earlier in known.values():
            found.show(earlier.pool)
        probs = one.probs.cpu().numpy()
        if name:
            for step in case.attacks:
                found.attack(step, probs, step.name)
        else:
            uniform = np.full(len(one), 1 / len(one))
            found.attack_all([probs] if np.allclose(probs, uniform) else [probs, uniform])
        known[name] = found
    for before, after in itertools.combinations(known.values(), 2):
        before.show(after.pool)
    return known


def _option(
    name: str, kind: str, k: int, one: Witnesses, probs: Array, attempts: float, level: float = _CONFIDENCE
) -> Option:
    """An ensemble sampled with `probs`."""
    risks = one.pool.best(probs)[0]
    risks = (risks > 0).astype(float) if attempts == math.inf else 1 - (1 - risks) ** attempts
    accuracy = Accuracy(*(estimate(1 - errors, level) for errors in (one.clean @ probs, risks)))
    return Option(name, accuracy, float(probs @ one.flops), kind, k, risks)


def _own(known: Witnesses, alpha: Array, attempts: float) -> Iterator[Option]:
    """The best member, sampling with α and uniformly, and for two classes the best threshold vote."""
    members, best = len(alpha), int(known.pool.foolable.mean(axis=0).argmin())
    uniform, level = np.full(members, 1 / members), joint(_CONFIDENCE, members)
    yield _option(f"best member, number {best}", "member", 1, known, np.eye(members)[best], attempts, level)
    if np.count_nonzero(alpha) > 1 and not np.allclose(alpha, uniform):
        yield _option("sampled with α", "sampled", 1, known, alpha, attempts)
    if members > 1:
        yield _option("sampled uniformly", "sampled", 1, known, uniform, attempts)
    if np.count_nonzero(alpha) > 1 and known.classes == 2:
        yield _vote(known, alpha)


def _vote(known: Witnesses, alpha: Array) -> Option:
    """`rec.threshold_vote` at the most robust threshold on these inputs, which no attempt changes.

    With members of weight w fooled, class 1 has the weight w where the label is 0, else 1 − w. So the worst case of
    the ensemble at α is that of every threshold.
    """
    one = known.y.numpy() == 1
    clean, worst = (np.where(one, 1 - w, w) for w in (known.clean @ alpha, known.pool.best(alpha)[0]))
    thresholds = [t for t in {0.5, 0.0, *(worst + 0.0).round(9).tolist()} if t < 1 - _SLACK]

    def errors(share: Array, threshold: float) -> Array:
        return ((share > threshold + _SLACK) != one).astype(np.float64)

    best = min(thresholds, key=lambda t: (errors(worst, t).mean(), errors(clean, t).mean(), abs(t - 0.5)))
    accuracy = Accuracy(*(estimate(1 - errors(share, best), _CONFIDENCE) for share in (clean, worst)))
    used, name = int((alpha > 0).sum()), f"vote of {np.count_nonzero(alpha)}, class 1 above {best:.3g}"
    return Option(name, accuracy, float((alpha > 0) @ known.flops), "vote", used, errors(worst, best))


def _survives(known: Witnesses, probs: Array) -> float:
    """How many attempts, each with a fresh draw, leave sampling at least as robust as the best member."""
    profile, least = known.pool.profile(), known.pool.foolable.mean(axis=0).min()
    held = (q for q in range(1, _MOST_ATTEMPTS + 1) if profile.risk(probs, q) > least + _SLACK)
    return next(held, math.inf) - 1


def _choices(options: Sequence[Option], members: int) -> tuple[Choice, ...]:
    """The most robust option within each budget, or the best member if it is not clearly worse."""
    single, made = options[0], []
    one = max(o.flops for o in options if o.k == 1 and o.kind != "network")
    for compute in sorted({1, min(2, members), members}):
        # A vote is for comparison: it has no gradients to test it by, and no export.
        affordable = [o for o in options if o.flops <= compute * one * (1 + _SLACK) and o.kind != "vote"]
        top = min(affordable, key=lambda o: (round(float(o.risks.mean()), 9), o.flops))
        # Both are chosen on these inputs: the one among the members, the other among the options.
        level = joint(_CONFIDENCE, max(members, len(affordable)))
        ahead = difference(single.risks, top.risks, level)
        points = f"{100 * ahead:.1f} points more"
        robust = f"{top.accuracy.robust:.1%} robust at {count(top.flops)} FLOPs"
        if top is single:
            reason = f"No option within this budget is more robust ({robust})."
        elif ahead.low > 0:
            reason = f"{robust}, {points} than the best member ({_interval(ahead)})."
        else:
            reason = (
                f"{top.name} has {robust}, {points}, but {len(top.risks)} inputs do not settle it "
                f"({_interval(ahead)}); the member is the simpler choice."
            )
            top, ahead = single, difference(single.risks, single.risks)
        made.append(Choice(compute, top.name, ahead, reason))
    return tuple(made)


def _interval(gained: Estimate) -> str:
    return f"95% interval {100 * gained.low:+.1f} to {100 * gained.high:+.1f}"
