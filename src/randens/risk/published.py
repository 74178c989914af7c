"""Audit of published tables: what reported accuracies imply, and which contradictions they contain.

From the risks of the members and of the randomized ensemble alone follow the share of inputs at which one
perturbation does not fool all members, which probabilities can have been meant, and whether the numbers contradict
Theorem 3, the convexity of η, or the inclusion of one perturbation set in another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from randens.core.errors import InputError, unknown
from randens.core.files import Plain
from randens.risk.checks import as_probs, as_risks
from randens.risk.floor_ceiling import auxiliary_risk, bounds

__all__ = ["Audited", "Reported", "ReportedAttack", "audit_published", "included"]


@dataclass(frozen=True)
class ReportedAttack:
    """A robust accuracy under one attack, and the set that it searched; inputs have `dimension` coordinates."""

    name: str
    robust: float
    norm: str
    eps: float


@dataclass(frozen=True)
class Reported:
    """One row of a published table, accuracies as shares.

    members: robust accuracy of each member alone. robust: of the randomized ensemble, None if not reported. probs:
    α, None if not reported. attacks: robust accuracies of the same ensemble under several attacks. rounding: half a
    unit of the last digit that is printed.
    """

    name: str
    members: tuple[float, ...] = ()
    robust: float | None = None
    probs: tuple[float, ...] | None = None
    attacks: tuple[ReportedAttack, ...] = ()
    dimension: int = 3072
    rounding: float = 5e-5


@dataclass(frozen=True)
class Audited(Plain):
    """What a row implies.

    conflict: for two members drawn evenly, the P(R₁) that Theorem 1 then implies; for more, the least share of
    inputs at which no perturbation fools all members that can be fooled, from Σ α_i η_i − η (at the probabilities
    given, or uniform ones). probs_range: for every member the smallest and largest probability with which the
    reported risk is possible, None if there is none. uniform_possible: whether equal probabilities are among them.
    violations: contradictions; notes: further remarks.
    """

    name: str
    conflict: float | None = None
    gain: float | None = None
    probs_range: tuple[tuple[float, float], ...] | None = None
    uniform_possible: bool | None = None
    violations: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def audit_published(reported: Reported) -> Audited:
    """Check one row of a table against Proposition 1, Theorem 1, Theorem 3 and the inclusion of balls."""
    violations: list[str] = []
    notes: list[str] = []
    conflict = gain = ranges = possible = None
    if reported.members and reported.robust is not None:
        risks = as_risks("members", [1 - value for value in reported.members])
        (risk,) = as_risks("robust", [1 - reported.robust])
        slack = 2 * reported.rounding
        limits = bounds(risks)
        if risk < limits.floor - slack:
            violations.append(
                f"the risk {risk:.2%} is below the floor {limits.floor:.2%} that the members' risks allow (Theorem 3)"
            )
        if risk > limits.ceiling + slack:
            violations.append(
                f"the risk {risk:.2%} is above that of the weakest member, {limits.ceiling:.2%} (Theorem 3)"
            )
        given = reported.probs is not None
        said = "the probabilities given" if given else "equal probabilities"
        alpha = as_probs(
            [1 / len(risks)] * len(risks) if reported.probs is None else reported.probs, len(risks)
        )
        mean, least = float(alpha @ risks), auxiliary_risk(risks, alpha)
        fits = bool(least - slack <= risk <= mean + slack)
        gain = mean - float(risk)
        if given and not fits:
            violations.append(
                f"at the probabilities given the risk must lie between {least:.2%} and {mean:.2%}, not at {risk:.2%}"
            )
        if not given:
            possible, ranges = fits, _possible(risks, float(risk), slack)
            if ranges is None and not violations:
                violations.append(f"no probabilities give the risk {risk:.2%} with these members (convexity)")
        if gain >= -slack and len(risks) > 1:
            # π ≤ Σ α_i − max α_i at an input, and it is 0 unless some member that can be fooled is spared.
            most = float(alpha.sum() - alpha.max())
            conflict = max(0.0, gain) / most if most > 0 else None
            if len(risks) == 2 and conflict is not None and np.allclose(alpha, 0.5):
                helps = conflict > abs(risks[0] - risks[1]) + slack
                notes.append(
                    f"P(R₁) = {conflict:.2%} at {said}, |η₁ − η₂| = {abs(risks[0] - risks[1]):.2%}: "
                    + ("drawing beats both members" if helps else "drawing does not beat the better member")
                    + " (Theorem 1)"
                )
    violations += _weaker(reported)
    return Audited(reported.name, conflict, gain, ranges, possible, tuple(violations), tuple(notes))


def included(norm: str, eps: float, other_norm: str, other_eps: float, dimension: int) -> bool:
    """Whether the ball (norm, eps) lies inside the ball (other_norm, other_eps) in `dimension` coordinates."""
    exponents = {"linf": 0.0, "l2": 0.5, "l1": 1.0}
    for given in (norm, other_norm):
        if given not in exponents:
            raise InputError(f"norm is {given!r}; inclusions are known for linf, l2 and l1")
    # ‖δ‖_q ≤ d^(1/q − 1/p) ‖δ‖_p for q ≤ p, and ‖δ‖_q ≤ ‖δ‖_p otherwise.
    growth = max(0.0, exponents[other_norm] - exponents[norm])
    return bool(eps * dimension**growth <= other_eps * (1 + 1e-12))


def _inside(one: ReportedAttack, wide: ReportedAttack, dimension: int) -> bool:
    differ = (one.norm, one.eps) != (wide.norm, wide.eps)
    return differ and included(one.norm, one.eps, wide.norm, wide.eps, dimension)


def _weaker(reported: Reported) -> list[str]:
    """Attacks on a larger set that found less than another one found on a smaller set."""
    found = []
    for wide in reported.attacks:
        best = min(reported.attacks, key=lambda a: (not _inside(a, wide, reported.dimension), a.robust))
        if _inside(best, wide, reported.dimension) and best.robust < wide.robust - 2 * reported.rounding:
            found.append(
                f"{wide.name} ({wide.norm}, ε = {wide.eps:.4g}) leaves {wide.robust:.2%}, yet {best.name} in a set "
                f"that lies inside ({best.norm}, ε = {best.eps:.4g}) leaves {best.robust:.2%}: {wide.name} is weak, "
                f"and misses at least {100 * (wide.robust - best.robust):.2f} points of what its own set holds"
            )
    return found


def _possible(
    risks: NDArray[np.float64], risk: float, slack: float
) -> tuple[tuple[float, float], ...] | None:
    """For every member the range of α_i over {α : h(α) ≤ η ≤ Σ α_i η_i}, a polytope; None if it is empty.

    h(α) = Σ_i (η_(i) − η_(i−1)) t_i with t_i ≥ α_j for all j ≥ i in the order of the risks (Lemma 4).
    """
    members = len(risks)
    order = np.argsort(risks, kind="stable")
    steps = np.diff(risks[order], prepend=0.0)
    axes, none = np.eye(members), np.zeros(members)
    rows = [np.r_[axes[order[j]], -axes[i]] for i in range(members) for j in range(i, members)]
    limits = [0.0] * len(rows) + [risk + slack, -risk + slack]
    rows += [np.r_[none, steps], np.r_[-risks, none]]
    whole = {"A_eq": [np.r_[np.ones(members), none]], "b_eq": [1.0], "bounds": (0.0, 1.0)}
    ends = []
    for axis in axes:
        least, most = (linprog(np.r_[cost, none], np.array(rows), limits, **whole) for cost in (axis, -axis))
        if least.status != 0 or most.status != 0:
            return None
        ends.append((max(0.0, float(least.fun)), min(1.0, -float(most.fun))))
    return tuple(ends)


def reported_from(content: Mapping[str, Any]) -> Reported:
    """A row from plain values, as a TOML or JSON file has them; numbers above 1 are per cent."""
    known = ("name", "members", "robust", "probs", "attacks", "dimension", "decimals")
    for key in content:
        if key not in known:
            unknown("field of a table's row", key, known)
    name = str(content.get("name", "row"))
    numbers = [*content.get("members", ()), *([content["robust"]] if "robust" in content else ())]
    numbers += [one.get("robust", math.nan) for one in content.get("attacks", ())]
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise InputError(
                f"{name} holds {value!r}; accuracies are numbers from 0 to 1, or per cent up to 100"
            )
    unit = 100.0 if any(value > 1 for value in numbers) else 1.0
    decimals = int(content.get("decimals", 2 if unit == 100 else 4))
    try:
        attacks = tuple(
            ReportedAttack(str(a["name"]), float(a["robust"]) / unit, str(a["norm"]), float(a["eps"]))
            for a in content.get("attacks", ())
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{name}: an attack needs name, robust, norm and eps; {error} is not right"
        ) from None
    probs: Sequence[float] | None = content.get("probs")
    return Reported(
        name,
        tuple(float(value) / unit for value in content.get("members", ())),
        float(content["robust"]) / unit if "robust" in content else None,
        None if probs is None else tuple(float(p) for p in as_probs(probs)),
        attacks,
        int(content.get("dimension", 3072)),
        0.5 * 10.0**-decimals / unit,
    )
