"""Audit of published tables: what reported accuracies imply, and which contradictions they contain.

From the risks of the members and of the randomized ensemble alone follow the share of inputs at which one
perturbation does not fool all members, which probabilities can have been meant, and whether the numbers contradict
Theorem 3, the convexity of η, or the inclusion of one perturbation set in another. Natural accuracy is linear in α,
so it tells more about α than robust accuracy does.

    python -m paper.published                the paper's own tables; `audit_published` takes any other row
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from paper.reproduce.measure import ATTACKS
from paper.reproduce.tables import ATTACK_NAMES, DATA, METHODS, NETWORKS, paper, paper_names, sampled_name
from randens.core.errors import InputError
from randens.risk import auxiliary_risk, bounds
from randens.risk.sets import as_probs, as_risks
from randens.training.methods import METHOD_NAMES

Weights = NDArray[np.float64]


@dataclass(frozen=True)
class ReportedAttack:
    """A robust accuracy under one attack, and the set that it searched; inputs have `dimension` coordinates."""

    name: str
    robust: float
    norm: str
    eps: float


@dataclass(frozen=True)
class Reported:
    """One row of a published table, accuracies in percent.

    members: robust accuracy of each member alone. robust: of the randomized ensemble. probs: α. attacks: robust
    accuracies of the same ensemble under several attacks. rounding: half a unit of the last digit that is printed.
    natural, members_natural: natural accuracies of the ensemble and of each member. None: not reported.
    """

    name: str
    members: tuple[float, ...] = ()
    robust: float | None = None
    probs: tuple[float, ...] | None = None
    attacks: tuple[ReportedAttack, ...] = ()
    dimension: int = 3072
    rounding: float = 0.005
    natural: float | None = None
    members_natural: tuple[float, ...] = ()


@dataclass(frozen=True)
class Audited:
    """What a row implies.

    conflict: for two members sampled uniformly, P(R₁); for more, the least share of inputs at which no perturbation
    fools all members that can be fooled. gain: Σ α_i η_i − η. Both at the probabilities given, or uniform ones.
    probs_range: the smallest and largest probability of every member with which the reported risk and natural accuracy
    are possible, None if there is none. uniform_possible: whether uniform ones are among them.
    """

    name: str
    conflict: float | None = None
    gain: float | None = None
    probs_range: tuple[tuple[float, float], ...] | None = None
    uniform_possible: bool | None = None
    violations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def audit_published(reported: Reported) -> Audited:
    """Check one row of a table against Proposition 1, Theorem 1, Theorem 3 and the inclusion of balls."""
    found = Audited(reported.name)
    if reported.members and reported.robust is not None:
        found = _audit_sampling(reported, 1 - reported.robust / 100)
    return replace(found, violations=(*found.violations, *_weaker(reported)))


def _audit_sampling(reported: Reported, risk: float) -> Audited:
    """What the risks of the members and of the ensemble, and their natural accuracies, say about α and conflict."""
    risks = as_risks("members", [1 - value / 100 for value in reported.members])
    as_risks("robust", [risk])
    clean = np.array(reported.members_natural) / 100 if reported.natural is not None else np.zeros(0)
    if len(clean) not in (0, len(risks)):
        raise InputError(f"{reported.name} has {len(clean)} natural accuracies for {len(risks)} members")
    given, slack = reported.probs is not None, 2 * reported.rounding / 100
    named = "the probabilities given" if given else "uniform probabilities"
    alpha = as_probs(reported.probs or np.full(len(risks), 1 / len(risks)), len(risks))
    mean, least, limits = float(alpha @ risks), auxiliary_risk(risks, alpha), bounds(risks)
    natural = float(alpha @ clean) if len(clean) else None
    fits = least - slack <= risk <= mean + slack
    fits_natural = natural is None or abs(natural - (reported.natural or 0.0) / 100) <= slack
    violations: list[str] = []
    notes: list[str] = []
    if risk < limits.floor - slack:
        violations.append(f"the risk {risk:.2%} is below these members' floor {limits.floor:.2%} (Theorem 3)")
    if risk > limits.ceiling + slack:
        violations.append(
            f"the risk {risk:.2%} is above the weakest member's, {limits.ceiling:.2%} (Theorem 3)"
        )
    if given and not fits:
        violations.append(f"at {named} the risk is from {least:.2%} to {mean:.2%}, not {risk:.2%}")
    if not fits_natural:
        text = f"at {named} the natural accuracy is {natural:.3%}, not {reported.natural:.2f}%"
        (violations if given else notes).append(text)
    ranges = None
    if not given:
        ranges = _possible(risks, risk, slack, clean, reported.natural)
        if ranges is None and not violations:
            violations.append(
                "no probabilities give the risk and natural accuracy of these members (convexity)"
            )
    conflict = None
    if mean - risk >= -slack and alpha.max() < 1:
        # π ≤ Σ α_i − max α_i at an input, and it is 0 unless some member that can be fooled is spared.
        conflict = max(0.0, mean - risk) / float(alpha.sum() - alpha.max())
        if len(risks) == 2 and np.allclose(alpha, 0.5):
            gap = abs(risks[0] - risks[1])
            helps = "beats both members" if conflict > gap + slack else "does not beat the better member"
            notes.append(
                f"P(R₁) = {conflict:.2%}, |η₁ − η₂| = {gap:.2%}: sampling uniformly {helps} (Theorem 1)"
            )
    possible = None if given else fits and fits_natural
    return Audited(reported.name, conflict, mean - risk, ranges, possible, tuple(violations), tuple(notes))


def included(one: ReportedAttack, wide: ReportedAttack, dimension: int) -> bool:
    """Whether the ball of `one` lies inside another ball, that of `wide`, in `dimension` coordinates."""
    exponents = {"linf": 0.0, "l2": 0.5, "l1": 1.0}
    if unlisted := {one.norm, wide.norm} - set(exponents):
        raise InputError(f"norm is {unlisted.pop()!r}; inclusions are known for linf, l2 and l1")
    # ‖δ‖_q ≤ d^(1/q − 1/p) ‖δ‖_p for q ≤ p, and ‖δ‖_q ≤ ‖δ‖_p otherwise.
    growth = max(0.0, exponents[wide.norm] - exponents[one.norm])
    differ = (one.norm, one.eps) != (wide.norm, wide.eps)
    return differ and bool(one.eps * dimension**growth <= wide.eps * (1 + 1e-12))


def _weaker(reported: Reported) -> list[str]:
    """Attacks on a larger set that found less than another one found on a smaller set."""
    found = []
    for wide in reported.attacks:
        inside = [one for one in reported.attacks if included(one, wide, reported.dimension)]
        best = min(inside, key=lambda attack: attack.robust, default=wide)
        if best.robust < wide.robust - 2 * reported.rounding:
            found.append(
                f"{wide.name} ({wide.norm}, ε = {wide.eps:.4g}) leaves {wide.robust:.2f}%, yet {best.name} in a "
                f"smaller set ({best.norm}, ε = {best.eps:.4g}) {best.robust:.2f}%: {wide.name} is weak, and misses at "
                f"least {wide.robust - best.robust:.2f} points"
            )
    return found


def _possible(
    risks: Weights, risk: float, slack: float, clean: Weights, natural: float | None
) -> tuple[tuple[float, float], ...] | None:
    """For every member the range of α_i over {α : h(α) ≤ η ≤ Σ α_i η_i}, a polytope; None if it is empty.

    h(α) = Σ_i (η_(i) − η_(i−1)) t_i with t_i ≥ α_j for all j ≥ i in the order of the risks (Lemma 4). Natural
    accuracies, if there are any, add the equality Σ α_i A_i = A.
    """
    members = len(risks)
    order = np.argsort(risks, kind="stable")
    steps = np.diff(risks[order], prepend=0.0)
    axes, none = np.eye(members), np.zeros(members)
    rows = [np.r_[axes[order[j]], -axes[i]] for i in range(members) for j in range(i, members)]
    limits = [0.0] * len(rows) + [risk + slack, -risk + slack]
    rows += [np.r_[none, steps], np.r_[-risks, none]]
    if len(clean) and natural is not None:
        rows += [np.r_[clean, none], np.r_[-clean, none]]
        limits += [natural / 100 + slack, -natural / 100 + slack]
    whole = {"A_eq": [np.r_[np.ones(members), none]], "b_eq": [1.0], "bounds": (0.0, 1.0)}
    ends = []
    for axis in axes:
        least, most = (linprog(np.r_[cost, none], np.array(rows), limits, **whole) for cost in (axis, -axis))
        if least.status != 0 or most.status != 0:
            return None
        ends.append((max(0.0, float(least.fun)), min(1.0, -float(most.fun))))
    return tuple(ends)


def paper_rows() -> tuple[Reported, ...]:
    """Every randomized ensemble of the paper: Table 1 with the members of Tables 3 and 4, by size, and Table 5."""
    return (*_best(), *_sizes(), *_attacks())


def _best() -> Iterator[Reported]:
    for data, network in product(DATA, NETWORKS):
        for method, numbers in paper()["best"][network].items():
            base, uniform = "mrboost" if method.startswith("mrboost") else method, method.endswith("-uniform")
            probs = paper()["probabilities"].get(data, {}).get(network, {}).get(base)
            if uniform:
                probs = [1 / numbers["members"]] * numbers["members"]
            name = f"Table 1, {_place(network, data)}, {sampled_name(base)}{'†' if uniform else ''}"
            if method != "at":
                yield _row(name, data, network, base, numbers[data], probs=probs)


def _sizes() -> Iterator[Reported]:
    for (data, table), network in product(zip(DATA, ("Table 2", "Table 6"), strict=True), NETWORKS):
        for m, numbers in enumerate(paper()["sizes"][data][network]["barre"], start=1):
            name = f"{table}, {_place(network, data)}, BARRE, M = {m}"
            if m > 1:
                yield _row(name, data, network, "barre", numbers, m)


def _attacks() -> Iterator[Reported]:
    for network, method in product(NETWORKS, METHODS):
        numbers = paper()["attacks"][network][method]
        count = paper()["best"][network]["barre"]["members"]
        balls = {name: ("l2", 2.0) if name == "acw" else ("linf", 8 / 255) for name in ATTACKS}
        attacks = tuple(
            ReportedAttack(ATTACK_NAMES[name].split(" ")[0], numbers[name], *ball)
            for name, ball in balls.items()
        )
        name = f"Table 5, {paper()['networks'][network]}, {sampled_name(method)}"
        members = tuple(robust for _, robust in paper()["individual"]["cifar10"][network][method])
        yield Reported(name, members, numbers["arc-r"], (1 / count,) * count, attacks)


def _row(
    name: str, data: str, network: str, method: str, pair: list[float], m: int = 5, probs: Any = None
) -> Reported:
    """A row of (natural, robust) with its first m members from Table 3 or 4."""
    natural, robust = zip(*paper()["individual"][data][network][method][:m], strict=True)
    alpha = None if probs is None else tuple(probs)
    return Reported(name, robust, pair[1], alpha, natural=pair[0], members_natural=natural)


def _place(network: str, data: str) -> str:
    return f"{paper()['networks'][network]}, {paper_names().data[data]}"


def repeated() -> tuple[str, ...]:
    """Numbers that the paper prints in two places, where they should differ or do."""
    said, stated = [], paper()
    table1 = {row.name.removeprefix("Table 1, "): row for row in _best()}
    for network in NETWORKS:
        for method in ("iat", "mrboost-r", "barre"):
            row = stated["best"][network][method]
            if stated["attacks"][network][method.removesuffix("-r")]["arc-r"] == row["cifar10"][1]:
                label = f"{_place(network, 'cifar10')}, {METHOD_NAMES[method]}"
                fits = "fit" if audit_published(table1[label]).uniform_possible else "exclude"
                said.append(
                    f"{label}: Table 1 (α by OSP) and Table 5 (uniform) have the same robust accuracy; the natural "
                    f"accuracies {fits} uniform probabilities"
                )
        for data, method in product(DATA, ("at", "barre")):
            best, sizes = stated["best"][network][method], stated["sizes"][data][network]["barre"]
            m, label = best["members"], f"{_place(network, data)}, {METHOD_NAMES[method]}"
            if m <= len(sizes) and sizes[m - 1] != best[data]:
                said.append(f"{label}, M = {m}: {best[data]} in Table 1 and {sizes[m - 1]} by size")
        said += [
            f"{_place(network, data)}, MRBoost: M = {m} and M = {m + 1} have the same numbers {one}"
            for data in DATA
            for m, (one, two) in enumerate(pairwise(stated["sizes"][data][network]["mrboost"]), start=1)
            if one == two
        ]
    return tuple(said)


def lines(rows: Sequence[Reported]) -> Iterator[str]:
    """What an audit of published rows found, in sentences."""
    wrong = 0
    for row in rows:
        one = audit_published(row)
        wrong += bool(one.violations)
        parts = []
        if one.gain is not None:
            parts.append(f"gain {100 * one.gain:+.2f} points")
        if one.conflict is not None:
            parts.append(f"{'P(R1)' if len(row.members) == 2 else 'conflict at least'} {one.conflict:.2%}")
        if one.probs_range is not None:
            ranges = ", ".join(f"{low:.2f}–{high:.2f}" for low, high in one.probs_range)
            parts.append(f"possible α: {ranges}{'' if one.uniform_possible else ' (uniform is not)'}")
        yield f"{one.name}: {'; '.join(parts) or 'nothing to check'}"
        yield from (f"  VIOLATION: {text}" for text in one.violations)
        yield from (f"  note: {text}" for text in one.notes)
    yield f"{len(rows)} rows, {wrong} with violations."


if __name__ == "__main__":
    print("\n".join([*lines(paper_rows()), *(f"printed twice: {text}" for text in repeated())]))
