"""Audit of published tables: what reported accuracies imply, and which contradictions they contain.

From the risks of the members and of the randomized ensemble alone follow the share of inputs at which one
perturbation does not fool all members, which probabilities can have been meant, and whether the numbers contradict
Theorem 3, the convexity of η, or the inclusion of one perturbation set in another. Natural accuracy is linear in α,
so it tells more about α than robust accuracy does.

    python -m paper.published                the paper's own tables
    python -m paper.published table.toml     rows of name, members, robust, and if known natural, members_natural,
                                             probs and attacks (name, robust, norm, eps); JSON works as well
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from randens.core.errors import FileError, InputError, RandensError, unknown
from randens.core.files import Plain, parse_json
from randens.risk import auxiliary_risk, bounds
from randens.risk.checks import as_probs, as_risks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
    unit of the last digit that is printed. natural, members_natural: natural accuracies of the ensemble and of each
    member.
    """

    name: str
    members: tuple[float, ...] = ()
    robust: float | None = None
    probs: tuple[float, ...] | None = None
    attacks: tuple[ReportedAttack, ...] = ()
    dimension: int = 3072
    rounding: float = 5e-5
    natural: float | None = None
    members_natural: tuple[float, ...] = ()


@dataclass(frozen=True)
class Audited(Plain):
    """What a row implies.

    conflict: for two members drawn evenly, the P(R₁) that Theorem 1 then implies; for more, the least share of
    inputs at which no perturbation fools all members that can be fooled, from Σ α_i η_i − η (at the probabilities
    given, or uniform ones). probs_range: for every member the smallest and largest probability with which the
    reported risk and natural accuracy are possible, None if there is none. uniform_possible: whether equal
    probabilities are among them.
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
        clean = np.array(reported.members_natural) if reported.natural is not None else np.zeros(0)
        if len(clean) not in (0, len(risks)):
            raise InputError(f"{reported.name} has {len(clean)} natural accuracies for {len(risks)} members")
        natural = float(alpha @ clean) if len(clean) else None
        if natural is not None and abs(natural - (reported.natural or 0.0)) > slack:
            fits = False
            text = f"at {said} the natural accuracy is {natural:.3%}, not {reported.natural:.2%}"
            (violations if given else notes).append(text)
        if not given:
            possible = fits
            ranges = _possible(risks, float(risk), slack, clean, reported.natural)
            if ranges is None and not violations:
                what = "risk" if natural is None else "risk and natural accuracy"
                violations.append(f"no probabilities give the {what} with these members (convexity)")
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
    risks: NDArray[np.float64],
    risk: float,
    slack: float,
    clean: NDArray[np.float64],
    natural: float | None,
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
        limits += [natural + slack, -natural + slack]
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
    known = (
        *("name", "members", "robust", "natural", "members_natural"),
        *("probs", "attacks", "dimension", "decimals"),
    )
    for key in content:
        if key not in known:
            unknown("field of a table's row", key, known)
    name = str(content.get("name", "row"))
    numbers = [*content.get("members", ()), *content.get("members_natural", ())]
    numbers += [content[key] for key in ("robust", "natural") if key in content]
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
        float(content["natural"]) / unit if "natural" in content else None,
        tuple(float(value) / unit for value in content.get("members_natural", ())),
    )


def read_rows(path: Path) -> list[Reported]:
    """The rows of a TOML or JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = parse_json(text.encode()) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise FileError(f"cannot read the table {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"{path} is neither TOML nor JSON: {error}") from error
    rows = content.get("rows") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} holds no rows; give [[rows]] with name, members and robust")
    return [reported_from(row) for row in rows]


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


def main(arguments: Sequence[str]) -> int:
    """Print the audit of a table, by default of the paper's own tables."""
    try:
        if arguments:
            print("\n".join(lines(read_rows(Path(arguments[0])))))
        else:
            from paper.reproduce.published import paper_rows, repeated

            print("\n".join([*lines(paper_rows()), *(f"printed twice: {text}" for text in repeated())]))
    except RandensError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
