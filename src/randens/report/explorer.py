"""The teaching page: the risk landscape of given numbers, members' risks or configurations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from randens.core.errors import InputError
from randens.core.files import write_atomic
from randens.report.page import fill
from randens.risk import FIGURE_3, RiskProfile, candidates, tight_profile
from randens.risk.checks import as_risks
from randens.risk.sets import from_words

__all__ = ["EXAMPLES", "conflicting_profile", "parse_configurations", "render_explorer", "write_explorer"]

_MOST_MEMBERS = 8
_DEFAULT_RISKS = (0.42, 0.45, 0.5)

EXAMPLES: dict[str, str] = {
    "the five configurations of Figure 3": "\n".join(
        f"0.2: {' '.join(''.join(map(str, u)) for u in sets)}" for sets in FIGURE_3.values()
    ),
    "three members, any one but never two": "0.6: 100 010 001\n0.4: 000",
    "three members, any two but not all": "0.5: 110 101 011\n0.5: 000",
    "a strong member and two weak ones": "0.3: 100 010 001\n0.5: 010 001\n0.2: 000",
    "one robust member among broken ones (BAT)": "0.45: 100 010\n0.55: 010",
    "four members in conflict": "0.3: 1100 0011\n0.3: 1010 0101\n0.2: 1000 0111\n0.2: 0000",
}
"""Configurations to start from, as the page takes them."""


def conflicting_profile(member_risks: ArrayLike, conflict: float = 1.0) -> RiskProfile:
    """A profile with these risks, between the two extremes of Theorem 3.

    conflict = 1: every perturbation fools one member only, which makes the floor tight. conflict = 0: every
    perturbation fools all members that can be fooled at its input, and drawing gains nothing. The inputs at which
    members fail are nested.
    """
    risks = as_risks("member_risks", member_risks)
    if isinstance(conflict, bool) or not isinstance(conflict, int | float) or not 0 <= conflict <= 1:
        raise InputError(f"conflict is {conflict!r}; it must be a number from 0 to 1")
    best = tight_profile(risks)
    if conflict == 1:
        return best
    order = np.argsort(risks, kind="stable")
    weights = np.append(np.diff(risks[order], prepend=0.0), 1.0 - risks.max())
    sets = []
    for place in range(len(risks) + 1):
        row = np.zeros((1, len(risks)), dtype=np.bool_)
        row[0, order[place:]] = True
        sets.append(row)
    worst = RiskProfile.from_configurations(sets, weights, members=len(risks))
    return worst if conflict == 0 else best.merge(worst, share=conflict)


def parse_configurations(lines: Sequence[str]) -> RiskProfile:
    """A profile from lines "weight: set set …", each set a string of zeros and ones, member 0 first."""
    weights, sets, members = [], [], None
    for line in lines:
        head, sign, tail = line.partition(":")
        try:
            weight = float(head)
        except ValueError:
            weight = float("nan")
        words = tail.replace(",", " ").split()
        if not sign or not 0 <= weight <= 1:
            raise InputError(f"configuration is {line!r}; it must be a weight and sets, e.g. '0.6: 10 01'")
        members = members or (len(words[0]) if words else None)
        weights.append(weight)
        sets.append(words)
    if members is None:
        raise InputError("configurations name no set; give at least one, e.g. '0.6: 10 01'")
    rows = [from_words("the configuration", words, members) for words in sets]
    return RiskProfile.from_configurations(rows, weights, members=members)


def write_explorer(
    output: str | os.PathLike[str],
    *,
    member_risks: Sequence[float] | None = None,
    conflict: float = 1.0,
    configurations: Sequence[str] | None = None,
) -> Path:
    """Write the explorer's page; it starts with the numbers given, which can be changed in it.

    Parameters
    ----------
    output : path
        The HTML file.
    member_risks : sequence of float, optional
        Adversarial risks of the members.
    conflict : float
        The share of inputs at which members can be fooled, but not together, from 0 to 1.
    configurations : sequence of str, optional
        Instead of risks: a weight and its maximal fooled sets, e.g. "0.6: 10 01".

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> write_explorer("explorer.html", member_risks=[0.4, 0.5]).name
    'explorer.html'
    """
    target = Path(output)
    text = render_explorer(member_risks=member_risks, conflict=conflict, configurations=configurations)
    write_atomic(target, text.encode())
    return target


def render_explorer(
    *,
    member_risks: Sequence[float] | None = None,
    conflict: float = 1.0,
    configurations: Sequence[str] | None = None,
) -> str:
    """The page as text."""
    if member_risks and configurations:
        raise InputError("both risks and configurations are given; give one of them")
    risks = as_risks("risks", member_risks or _DEFAULT_RISKS)
    profile = parse_configurations(configurations) if configurations else conflicting_profile(risks, conflict)
    if profile.members > _MOST_MEMBERS:
        raise InputError(f"there are {profile.members} members; the page draws at most {_MOST_MEMBERS}")
    start: dict[str, Any] = {
        "candidates": {str(count): [[str(p) for p in row] for row in candidates(count)] for count in (2, 3)},
        "examples": EXAMPLES,
    }
    return fill(
        "explore.html",
        title="Risk landscapes by hand",
        data={"start": start},
        scripts=["landscape.js", "explore.js"],
        by_risks=not configurations,
        risks=" ".join(f"{r:g}" for r in risks.tolist()),
        conflict=float(conflict),
        configurations="\n".join(configurations or [next(iter(EXAMPLES.values()))]),
        examples=EXAMPLES,
    )
