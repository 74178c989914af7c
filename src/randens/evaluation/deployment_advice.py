"""What to deploy: one member, a drawn member, k of M averaged, or all, on the same perturbations.

Every option is a randomized ensemble over the same networks: the members (k = 1), all averages of k of them,
and the average of all (k = M). Each is attacked itself and then also tested with the perturbations found for
all others, so that none looks robust because its own attack was weak. A member is attacked alone, with other
members and in averages. A single network to compare with is attacked repeatedly, until it has had as many passes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from randens import models
from randens.attacks import Attack, Cost
from randens.attacks.base import as_ensemble
from randens.attacks.dataset import as_attacks, attack_data
from randens.core.documents import Document, ThreatDocument
from randens.core.errors import InputError
from randens.core.files import Plain, picked
from randens.core.progress import Progress, renamed, silent, within
from randens.core.runs import Kept
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.argument_checks import DataLike, fingerprint, labelled
from randens.evaluation.gradient_conflict import Conflict
from randens.evaluation.intervals import Estimate, difference, estimate
from randens.evaluation.result_tables import Row
from randens.evaluation.results import Accuracy
from randens.evaluation.worst_case import evaluate_ensemble, transferred
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore, as_store, input_keys, member_key

__all__ = ["Advice", "AdviceDocument", "Choice", "Option", "advise"]

_FORMAT = "randens-advice-1"
_MOST_SUBSETS = 64
_SLACK = 1e-9
_RESTARTS = 4  # at least, in each further round of attacks on a single network
_ROUNDS = 25  # of them at most


@dataclass(frozen=True, eq=False)
class Option(Row):
    """One option for deployment, with the FLOPs of one inference on average over the draw.

    kind: "member", "drawn", "subset", "deterministic" or "network". k: the number of networks per input.
    risks, clean: expected error of every input under attack and without, [n].
    """

    k: int
    risks: NDArray[np.float64] = field(repr=False)
    clean: NDArray[np.float64] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON, without the single inputs."""
        return {**picked(self, "name kind k flops"), **self.accuracy.to_json()}


@dataclass(frozen=True)
class Choice(Plain):
    """What to deploy at a budget of `compute` members per inference, and why.

    ahead: robust accuracy of the chosen option minus that of the best member, over the same inputs.
    """

    compute: int
    option: str
    ahead: Estimate
    reason: str


@dataclass(frozen=True, eq=False)
class Advice(Kept):
    """The options, the choice at 1×, 2× and M× a member's compute, and the reasons behind them.

    gain: Σ α_i η_i − η(α) with its interval. conflict: the joint reach. pair, apart: the two members that are most
    often fooled one at a time only, and how often, P(R₁) of Theorem 1. choices is empty on test data, on
    which nothing is chosen. probs: α [M]. data, split, n: the inputs. threat, attacks: what they were
    attacked with. ensemble: the members' fingerprint. confidence: of the intervals. cost: member passes.
    passes: attack passes per input, of each member in all attacks on it ("each member") and of the single networks.
    """

    kept_as: ClassVar[str] = "advice"
    asked: ClassVar[str] = "ensemble data split n threat attacks"

    options: tuple[Option, ...]
    choices: tuple[Choice, ...]
    probs: NDArray[np.float64]
    gain: Estimate
    conflict: Conflict
    pair: tuple[int, int] | None
    apart: Estimate | None
    data: str
    split: str
    n: int
    threat: Threat
    attacks: tuple[str, ...]
    ensemble: str
    confidence: float
    cost: Cost
    passes: Mapping[str, float]

    @property
    def drawn(self) -> tuple[int, ...]:
        """The members with positive probability."""
        return tuple(int(i) for i in np.flatnonzero(self.probs))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the table means, in plain words."""
        said = []
        if len(self.probs) > 1 and len(self.drawn) == 1:
            said.append(f"α selects member {self.drawn[0]}: nothing is drawn.")
        elif len(self.probs) > 1:
            low, high = 100 * self.gain.low, 100 * self.gain.high
            verdict = "" if self.gain.value > 0 else ": drawing gains nothing over its members"
            said.append(
                f"Drawing gains {100 * self.gain.value:.1f} points over the mean of its members "
                f"({self.confidence:.0%} interval {low:+.1f} to {high:+.1f}){verdict}."
            )
        if len(self.probs) > 1:
            said.append(self.conflict.sentence)
        if self.pair is not None and self.apart is not None:
            i, j = self.pair
            said.append(
                f"P(R₁) is largest for members {i} and {j}: at {self.apart.value:.1%} of the inputs each can be "
                f"fooled but never both at once ({self.confidence:.0%} interval {self.apart.low:.1%} to "
                f"{self.apart.high:.1%})."
            )
        said += [f"At {choice.compute}× compute: {choice.option}. {choice.reason}" for choice in self.choices]
        if not self.choices:
            said.append(
                "Nothing is recommended on test data: use the validation split to decide what to deploy."
            )
        if len(self.passes) > 1:
            counts = ", ".join(f"{name} {count:.0f}" for name, count in self.passes.items())
            said.append(f"Attack passes per input: {counts}.")
        return tuple(said)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        names = (
            "options choices sentences probs drawn gain conflict pair apart data split n threat attacks "
            "ensemble confidence cost passes"
        )
        return {"format": _FORMAT, **picked(self, names)}


class OptionDocument(Document):
    """One option of advice.json."""

    name: str
    kind: str
    k: int = Field(ge=1)
    flops: float
    natural: Estimate
    robust: Estimate

    @property
    def row(self) -> Row:
        """As a line of a table."""
        return Row(self.name, Accuracy(self.natural, self.robust), self.flops, self.kind)


class AdviceDocument(Document):
    """What the report and the cards of the zoo show of advice.json."""

    format: Literal["randens-advice-1"]
    options: list[OptionDocument] = Field(min_length=1)
    sentences: list[str] = Field(default_factory=list)
    ensemble: str = ""
    data: str
    split: str
    n: int = Field(ge=1)
    threat: ThreatDocument | None = None
    confidence: float
    attacks: list[str] = Field(default_factory=list)


def advise(
    rec: RandomizedEnsemble,
    data: DataLike,
    attack: Attack | Sequence[Attack],
    *,
    networks: Mapping[str, nn.Module] | None = None,
    subsets: bool = True,
    confidence: float = 0.95,
    folder: str | os.PathLike[str] | WitnessStore | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Compare the options for deploying these members, and recommend one.

    Parameters
    ----------
    rec
        The ensemble, at the probabilities that would be used.
    data
        Validation data. On test data the table is computed, but nothing is recommended.
    attack
        One, or several that work one after the other.
    networks
        Single networks to compare with, by name: one trained with the same passes, or one of the FLOPs of k members.
        Each is attacked until it has had as many attack passes per input as each member.
    subsets
        Whether to measure k of M for 1 < k < M, where there are at most 64 subsets.
    confidence
        Of the intervals.
    folder
        A witness store, as for `evaluate`.
    progress
        ``progress(task, done, total)``.

    Returns
    -------
    Advice
        `.options` with intervals and FLOPs, `.choices` at 1×, 2× and M× compute, `.sentences`.

    Examples
    --------
    >>> import randens
    >>> nets = [randens.models.create("linear", classes=10, input_shape=(1, 8, 8), seed=s) for s in (0, 1)]
    >>> rec = randens.RandomizedEnsemble(nets)
    >>> attack = randens.attacks.create("pgd", randens.Threat("linf", 0.1), steps=2)
    >>> held = randens.data.load("digits", "validation").subset(slice(0, 8))
    >>> [option.name for option in randens.evaluation.advise(rec, held, attack).options][:2]
    ['best member, number 0', 'drawn evenly']
    """
    inputs, chosen = labelled(data, rec), as_attacks(attack)
    report = progress or silent
    plain = (inputs.x, inputs.y)
    store = as_store(folder)
    whole = evaluate_ensemble(
        rec,
        plain,
        chosen,
        also={"uniform": None},
        deterministic=False,
        confidence=confidence,
        folder=store,
        progress=report,
    )
    assert whole.pool is not None
    assert whole.conflict is not None
    cost = whole.cost
    others: dict[str, RandomizedEnsemble] = {}
    for k in range(2, len(rec) + 1):
        if k == len(rec) or (subsets and math.comb(len(rec), k) <= _MOST_SUBSETS):
            title = f"deterministic, all {k}" if k == len(rec) else f"{k} of {len(rec)} averaged"
            others[title] = rec.subsets(k)
    for name, network in (networks or {}).items():
        if name in others:
            raise InputError(f"networks names {name!r}, which is an option already; choose another name")
        others[name] = RandomizedEnsemble([network]).eval()
    pools = {"": whole.pool}
    # With a store, members also start from the witnesses of earlier commands; their passes count, too.
    passes = {"each member": max(cost.passes, _stored(rec, inputs, chosen[0].threat, store))}
    for name, other in others.items():
        pools[name], tested = _transferred(other, inputs, list(pools.values()))
        attacked = partial(_attacked, other, inputs, store, within(report, name))
        pools[name], spent = attacked(chosen, pools[name], np.arange(len(inputs)))
        if name in (networks or {}):
            wanted = passes["each member"] / len(rec.networks)
            pools[name], spent = _until(wanted, attacked, chosen, pools[name], spent)
            passes[name] = spent.passes
        else:
            passes["each member"] += spent.passes
        cost += tested + spent
    passes["each member"] /= len(rec.networks)
    # Each option was tested with perturbations found before it; now also with those found after it.
    everyone, found = {"": rec, **others}, dict(pools)
    for earlier, later in itertools.combinations(everyone, 2):
        pools[earlier] = pools[earlier].merge(transferred(found[later], everyone[earlier], plain))
        cost += Cost(forwards=len(found[later]) * len(everyone[earlier].networks))
    options = _options(rec, others, pools, inputs, networks or {}, confidence)
    known = pools[""]
    alpha = rec.probs.cpu().numpy()
    lost = known.foolable @ alpha - known.best(alpha)[0]
    pair, apart = _apart(known, confidence)
    return Advice(
        options=options,
        choices=() if inputs.split == "test" else _choices(options, len(rec), confidence),
        probs=alpha.copy(),
        gain=difference(lost, np.zeros(len(inputs)), confidence),
        conflict=whole.conflict,
        pair=pair,
        apart=apart,
        data=inputs.name,
        split=inputs.split,
        n=len(inputs),
        threat=chosen[0].threat,
        attacks=tuple(a.name for a in chosen),
        ensemble=fingerprint(rec),
        confidence=confidence,
        cost=cost,
        passes={name: count / len(inputs) for name, count in passes.items()},
    )


def _stored(rec: RandomizedEnsemble, inputs: Data, threat: Threat, store: WitnessStore | None) -> float:
    """The passes of all searches in the store that attacked these members on these inputs."""
    if store is None:
        return 0.0
    keys = [member_key(member) for member in rec.members]
    return store.passes(keys, input_keys(inputs.x, inputs.y), threat, inputs.x)


def _transferred(
    rec: RandomizedEnsemble, inputs: Data, known: Sequence[WitnessPool]
) -> tuple[WitnessPool, Cost]:
    """Return the witnesses of `rec` among the perturbations found for other options."""
    pool = WitnessPool(len(inputs), len(rec), x_adv=inputs.x[:0].contiguous().numpy())
    for other in known:
        pool = pool.merge(transferred(other, rec, (inputs.x, inputs.y)))
    return pool, Cost(forwards=sum(map(len, known)) * len(rec.networks))


def _attacked(
    rec: RandomizedEnsemble,
    inputs: Data,
    store: WitnessStore | None,
    progress: Progress,
    attacks: Sequence[Attack],
    pool: WitnessPool,
    rows: NDArray[np.int64],
) -> tuple[WitnessPool, Cost]:
    """Attack one option on some inputs: the pool with the witnesses found, and the cost."""
    cost, part = Cost(), (inputs.x[torch.from_numpy(rows)], inputs.y[torch.from_numpy(rows)])
    for attack in attacks:
        found = attack_data(
            attack, as_ensemble(rec), part, store=store, progress=renamed(progress, attack.name)
        )
        pool = pool.merge(found.pool.replace(n=pool.n, points=rows[found.pool.points]))
        cost += found.cost
    return pool, cost


def _until(
    passes: float,
    attacked: Callable[..., tuple[WitnessPool, Cost]],
    attacks: Sequence[Attack],
    pool: WitnessPool,
    cost: Cost,
) -> tuple[WitnessPool, Cost]:
    """Attack a single network on the inputs that are not fooled yet until `passes` passes are spent.

    Each round has restarts from random points and seeds of its own. A proven optimum is not attacked again.
    """
    for number in range(1, _ROUNDS + 1):
        rows = np.flatnonzero(~pool.foolable[:, 0])
        if cost.passes >= passes or not len(rows) or any(attack.exact for attack in attacks):
            break
        again = [
            dataclasses.replace(a, seed=a.seed + number, restarts=max(a.restarts, _RESTARTS)) for a in attacks
        ]
        pool, spent = attacked(again, pool, rows)
        cost += spent
    return pool, cost


def _options(
    rec: RandomizedEnsemble,
    others: Mapping[str, RandomizedEnsemble],
    pools: Mapping[str, WitnessPool],
    inputs: Data,
    networks: Mapping[str, nn.Module],
    confidence: float,
) -> tuple[Option, ...]:
    shape = inputs.x.shape[1:]
    x, y = inputs.x, inputs.y

    def option(
        name: str, kind: str, k: int, one: RandomizedEnsemble, pool: WitnessPool, probs: NDArray[np.float64]
    ) -> Option:
        clean = one.errors(x.to(one.device), y.to(one.device)).cpu().numpy() @ probs
        risks = pool.best(probs)[0]
        flops = np.array([models.flops(m, shape) for m in one.members], dtype=np.float64)
        accuracy = Accuracy(estimate(1 - clean, confidence), estimate(1 - risks, confidence))
        return Option(name, accuracy, float(probs @ flops), kind, k, risks, clean)

    own, members = pools[""], len(rec)
    alpha = rec.probs.cpu().numpy()
    best = int(own.foolable.mean(axis=0).argmin())
    found = [option(f"best member, number {best}", "member", 1, rec, own, np.eye(members)[best])]
    if members > 1:
        uniform = np.full(members, 1 / members)
        if np.count_nonzero(alpha) > 1 and not np.allclose(alpha, uniform):
            found.append(option("drawn with α", "drawn", 1, rec, own, alpha))
        found.append(option("drawn evenly", "drawn", 1, rec, own, uniform))
    for name, other in others.items():
        size = 1 if name in networks else int(getattr(other.members[0], "passes", 1))
        kind = "network" if name in networks else "deterministic" if size == members else "subset"
        evenly = np.full(len(other), 1 / len(other))
        found.append(option(name, kind, size, other, pools[name], evenly))
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


def _choices(options: Sequence[Option], members: int, confidence: float) -> tuple[Choice, ...]:
    """Return the most robust option within each budget, or the best member if it is not clearly worse."""
    single = options[0]
    made = []
    for compute in sorted({1, min(2, members), members}):
        budget = compute * max(o.flops for o in options if o.k == 1 and o.kind != "network")
        affordable = [o for o in options if o.flops <= budget * (1 + _SLACK)]
        top = min(affordable, key=lambda o: (float(o.risks.mean()), o.flops))
        ahead = difference(single.risks, top.risks, confidence)
        interval = f"{confidence:.0%} interval {100 * ahead.low:+.1f} to {100 * ahead.high:+.1f}"
        robust = f"{top.accuracy.robust.value:.1%}"
        if top is single:
            reason = f"No option within this budget is more robust ({robust})."
        elif ahead.low > 0:
            reason = (
                f"{robust} robust, {100 * ahead.value:.1f} points more than the best member ({interval})."
            )
        else:
            simpler = (
                "both are single networks" if top.kind == "network" else "the member is the simpler choice"
            )
            reason = (
                f"{top.name} has {robust}, {100 * ahead.value:.1f} points more, but {len(top.risks)} inputs do not "
                f"settle it ({interval}); {simpler}."
            )
            top, ahead = single, difference(single.risks, single.risks, confidence)
        made.append(Choice(compute, top.name, ahead, reason))
    return tuple(made)
