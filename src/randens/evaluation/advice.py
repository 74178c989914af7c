"""What to deploy: one member, a sampled member, an average of k or of all, on the same perturbations.

Every option is a randomized ensemble over the same networks: the members (k = 1), all averages of k of them,
and the average of all (k = M). Each is attacked itself and then also tested with the perturbations found for
all others, so that none looks robust because its own attack was weak.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from randens import models
from randens.attacks import Cost
from randens.core.errors import InputError
from randens.core.progress import within
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.conflict import Conflict
from randens.evaluation.evaluate import attack_all, conflict_known
from randens.evaluation.inputs import AttackLike, prepare
from randens.evaluation.intervals import Estimate, difference, estimate
from randens.evaluation.loop import Witnesses
from randens.evaluation.tables import About, Accuracy, Result, Row, Table, count, new_axes, saved, table_of
from randens.risk.checks import as_attempts
from randens.witness import WitnessPool

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from randens.evaluation.inputs import Settings

__all__ = ["Advice", "Choice", "Option", "advise"]

_MOST_SUBSETS = 64
_MOST_ATTEMPTS = 1000  # beyond, sampling survives "any number"
_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Option(Row):
    """One option for deployment, with the FLOPs of one inference on average over the draw.

    kind: "member", "sampled", "subset", "deterministic" or "network". k: the number of networks per input.
    risks: expected error of every input under attack, after the attempts that the advice is about, [n].
    """

    k: int
    risks: NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True)
class Choice:
    """What to deploy at a budget of `compute` members per inference, and why.

    ahead: robust accuracy of the chosen option minus that of the best member, over the same inputs.
    """

    compute: int
    option: str
    ahead: Estimate
    reason: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Advice(Result):
    """The options, the choice at 1×, 2× and M× a member's compute, and the reasons behind them.

    gain: Σ α_i η_i − η(α) with its interval. conflict: the joint reach. pair, apart: the two members that are most
    often fooled one at a time only, and how often, P(R₁) of Theorem 1. choices is empty on test data, on
    which nothing is chosen. attempts: what the attacker may try; survives: how many attempts leave sampling at least
    as robust as the best member. cost, now: member passes behind the result, and those of this call.
    """

    kind: ClassVar[str] = "advice"

    about: About
    options: tuple[Option, ...]
    choices: tuple[Choice, ...]
    gain: Estimate
    conflict: Conflict | None
    pair: tuple[int, int] | None
    apart: Estimate | None
    attempts: float
    survives: float
    confidence: float
    cost: Cost
    now: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """One line per option."""
        return table_of(self.options, self.confidence)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw robust accuracy against compute; with `path`, into that file, too."""
        figure, axes = new_axes("FLOPs of one inference", "robust accuracy")
        for option in self.options:
            robust = option.accuracy.robust
            error = [[robust - robust.low], [robust.high - robust]]
            axes.errorbar([option.flops], [float(robust)], yerr=error, fmt="o", capsize=3, label=option.name)
        axes.legend(frameon=False)
        return saved(figure, path)

    def sentences(self) -> list[str]:
        """The recommendations first, then what they rest on."""
        said = [f"At {choice.compute}× compute: {choice.option}. {choice.reason}" for choice in self.choices]
        if not self.choices:
            said.append("Nothing is recommended on test data: decide on the validation split.")
        sampled = np.flatnonzero(self.about.probs).tolist()
        if len(self.about.probs) > 1 and len(sampled) == 1:
            said.append(f"α selects member {sampled[0]}: nothing is sampled.")
        elif len(self.about.probs) > 1:
            none = "" if self.gain > 0 else ": sampling gains nothing over its members"
            said.append(
                f"Sampling gains {100 * self.gain:.1f} points over the mean of its members "
                f"({self.confidence:.0%} interval {100 * self.gain.low:+.1f} to {100 * self.gain.high:+.1f}){none}."
            )
            said.append(_survival(self.survives))
        if self.conflict is not None:
            said.append(self.conflict.sentence)
        if self.pair is not None and self.apart is not None:
            said.append(
                f"P(R₁) is largest for members {self.pair[0]} and {self.pair[1]}: at {self.apart:.1%} of the inputs "
                f"each can be fooled but never both at once ({self.confidence:.0%} interval {self.apart.low:.1%} to "
                f"{self.apart.high:.1%})."
            )
        return said

    def content(self) -> dict[str, Any]:
        """Options, choices and reasons."""
        names = "choices gain pair apart attempts confidence cost"
        return {
            "options": [
                {"name": o.name, "kind": o.kind, "k": o.k, "flops": o.flops, **vars(o.accuracy)}
                for o in self.options
            ],
            **{name: getattr(self, name) for name in names.split()},
            "survives": None if self.survives == math.inf else self.survives,
            "attempts": "inf" if self.attempts == math.inf else self.attempts,
            "conflict": None if self.conflict is None else self.conflict.content(),
            "sentences": self.sentences(),
        }


def advise(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    networks: Mapping[str, nn.Module] | None = None,
    subsets: bool = True,
    attempts: float = 1,
    confidence: float = 0.95,
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
    subsets : bool
        Whether to measure the average of k for 1 < k < M, where there are at most 64 subsets.
    attempts : int or inf
        How often an attacker may try, each time against a fresh draw: accuracies and choices are for that.
    confidence : float
        Of the intervals.
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
    if settings.get("split") is None and (data is None or isinstance(data, (str, os.PathLike))):
        settings["split"] = "validation"
    with prepare(model, data, attack, **settings) as case:
        rec = case.rec
        if rec.stochastic:
            raise InputError("model answers at random; advice is about deterministic members")
        ensembles = {"": rec, **_averages(rec, subsets)}
        for name, network in (networks or {}).items():
            if name in ensembles:
                raise InputError(f"networks names {name!r}, which is an option already; choose another name")
            ensembles[name] = RandomizedEnsemble([network]).to(rec.device)
        uniform, several = np.full(len(rec), 1 / len(rec)), [rec.probs.cpu().numpy()]
        if len(rec) > 1 and not np.allclose(several[0], uniform):
            several.append(uniform)
        known: dict[str, Witnesses] = {}
        for name, one in ensembles.items():
            report = within(case.progress, name) if name else case.progress
            found = Witnesses(one, case.data, case.threat, store=case.store, progress=report)
            for other in known.values():
                found.show(other.pool)
            if name:
                for step in case.attacks:
                    found.attack(step, one.probs.cpu().numpy(), step.name)
            else:
                attack_all(found, case, several)
            known[name] = found
        # Each option was tested with perturbations found before it; now also with those found after it.
        for earlier, later in itertools.combinations(list(known), 2):
            known[earlier].show(known[later].pool)
        pool, alpha = known[""].pool, several[0]
        options = _options(known, several, set(networks or {}), tries, confidence)
        pair, apart = _apart(pool, confidence)
        return Advice(
            about=case.about,
            options=options,
            choices=() if case.data.split == "test" else _choices(options, len(rec), confidence),
            gain=difference(pool.foolable @ alpha, pool.best(alpha)[0], confidence),
            conflict=conflict_known(known[""]),
            pair=pair,
            apart=apart,
            attempts=tries,
            survives=_survives(pool, alpha),
            confidence=confidence,
            cost=sum((one.cost for one in known.values()), Cost()),
            now=sum((one.now for one in known.values()), Cost()),
            notes=case.notes,
        )


def _averages(rec: RandomizedEnsemble, subsets: bool) -> dict[str, RandomizedEnsemble]:
    """Averages of k members, sampled uniformly, and the average of all."""
    found = {}
    for k in range(2, len(rec) + 1):
        if k == len(rec):
            found[f"average of all {k}"] = rec.subsets(k)
        elif subsets and math.comb(len(rec), k) <= _MOST_SUBSETS:
            found[f"average of {k} of {len(rec)}, sampled"] = rec.subsets(k)
    return found


def _options(
    known: Mapping[str, Witnesses],
    several: Sequence[NDArray[np.float64]],
    networks: set[str],
    attempts: float,
    confidence: float,
) -> tuple[Option, ...]:
    def option(name: str, kind: str, k: int, one: Witnesses, probs: NDArray[np.float64]) -> Option:
        risks = one.pool.best(probs)[0]
        risks = (risks > 0).astype(float) if attempts == math.inf else 1 - (1 - risks) ** attempts
        flops = np.array([models.flops(m, one.x.shape[1:]) for m in one.rec.members], dtype=np.float64)
        clean = estimate(1 - one.clean @ probs, confidence)
        return Option(
            name, Accuracy(clean, estimate(1 - risks, confidence)), float(probs @ flops), kind, k, risks
        )

    own = known[""]
    members = len(own.rec)
    best = int(own.pool.foolable.mean(axis=0).argmin())
    found = [option(f"best member, number {best}", "member", 1, own, np.eye(members)[best])]
    if members > 1 and np.count_nonzero(several[0]) > 1 and len(several) > 1:
        found.append(option("sampled with α", "sampled", 1, own, several[0]))
    if members > 1:
        found.append(option("sampled uniformly", "sampled", 1, own, np.full(members, 1 / members)))
    for name, one in known.items():
        if name:
            k = 1 if name in networks else int(getattr(one.rec.members[0], "passes", 1))
            kind = "network" if name in networks else "deterministic" if k == members else "subset"
            found.append(option(name, kind, k, one, one.rec.probs.cpu().numpy()))
    return tuple(found)


def _apart(pool: WitnessPool, confidence: float) -> tuple[tuple[int, int] | None, Estimate | None]:
    """The two members with the largest P(R₁), and that share with its interval."""
    if pool.members < 2:
        return None, None
    found: dict[tuple[int, int], NDArray[np.bool_]] = {}
    for i, j in itertools.combinations(range(pool.members), 2):
        both = np.zeros(pool.n, dtype=bool)
        both[pool.points[pool.fooled[:, i] & pool.fooled[:, j]]] = True
        found[i, j] = pool.foolable[:, i] & pool.foolable[:, j] & ~both
    pair = max(found, key=lambda key: (int(found[key].sum()), -key[0], -key[1]))
    return pair, estimate(found[pair], confidence)


def _survives(pool: WitnessPool, probs: NDArray[np.float64]) -> float:
    """How many attempts, each with a fresh draw, leave sampling at least as robust as the best member."""
    right, least = 1 - pool.best(probs)[0], 1 - pool.foolable.mean(axis=0).min()
    attempts = 0
    while attempts < _MOST_ATTEMPTS and (right ** (attempts + 1)).mean() >= least - _SLACK:
        attempts += 1
    return attempts if attempts < _MOST_ATTEMPTS else math.inf


def _survival(attempts: float) -> str:
    if attempts == math.inf:
        return "However often an attacker tries, sampling is no less robust than the best member."
    if attempts == 0:
        return "The best member is more robust than sampling at the first attempt already."
    times = "the first attempt" if attempts == 1 else f"{attempts:g} attempts"
    return f"Sampling is at least as robust as the best member against {times}, and less robust against more."


def _choices(options: Sequence[Option], members: int, confidence: float) -> tuple[Choice, ...]:
    """The most robust option within each budget, or the best member if it is not clearly worse."""
    single = options[0]
    made = []
    for compute in sorted({1, min(2, members), members}):
        budget = compute * max(o.flops for o in options if o.k == 1 and o.kind != "network")
        affordable = [o for o in options if o.flops <= budget * (1 + _SLACK)]
        top = min(affordable, key=lambda o: (float(o.risks.mean()), o.flops))
        ahead = difference(single.risks, top.risks, confidence)
        interval = f"{confidence:.0%} interval {100 * ahead.low:+.1f} to {100 * ahead.high:+.1f}"
        robust = f"{top.accuracy.robust:.1%} robust at {count(top.flops)} FLOPs"
        if top is single:
            reason = f"No option within this budget is more robust ({robust})."
        elif ahead.low > 0:
            reason = f"{robust}, {100 * ahead:.1f} points more than the best member ({interval})."
        else:
            reason = (
                f"{top.name} has {robust}, {100 * ahead:.1f} points more, but {len(top.risks)} inputs do not settle it "
                f"({interval}); the member is the simpler choice."
            )
            top, ahead = single, difference(single.risks, single.risks, confidence)
        made.append(Choice(compute, top.name, ahead, reason))
    return tuple(made)
