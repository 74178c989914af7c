"""The risk landscape η(α): the data for the page, the optimum, and each member's share.

The page evaluates η in float64 from the grouped configurations, so its size depends on the number of
different configurations and not on the number of inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from randens.core.errors import ModelError
from randens.risk import (
    RiskProfile,
    Sampling,
    auxiliary_risk,
    bounds,
    candidates,
    optimal_sampling,
)
from randens.risk.checks import as_probs
from randens.risk.sets import unpack, weigh
from randens.risk.theorems import MOST_CANDIDATE_MEMBERS

__all__ = ["MOST_SOLVED", "Reading", "landscape_data", "optimum_data", "read_landscape", "shares", "solve"]

# Sets whose values differ by less count as equally damaging, so that rounding does not decide.
_TIE = 1e-12
MOST_SOLVED = 16
"""Up to so many members a report finds the optimum itself."""


@dataclass(frozen=True, eq=False)
class Reading:
    """The values of the landscape at α.

    risk: η(α). floor: h(α), the least risk of any members with these risks at α; never below lowest_floor, the
    floor at any α (Theorem 3). gain: Σ α_i η_i − η(α). shares: [M], the part of the risk that comes from drawing
    each member; they sum to the risk.
    """

    risk: float
    floor: float
    lowest_floor: float
    gain: float
    shares: NDArray[np.float64]


def read_landscape(profile: RiskProfile, probs: ArrayLike) -> Reading:
    """The numbers beside the landscape, as the page computes them.

    Parameters
    ----------
    profile : RiskProfile
        η.
    probs : array [M]
        α.

    Returns
    -------
    Reading
        `.risk`, `.floor`, `.lowest_floor`, `.gain` and `.shares` at α.

    Examples
    --------
    >>> from randens.risk import RiskProfile
    >>> read_landscape(RiskProfile.from_configurations([[(1, 0), (0, 1)]]), [0.5, 0.5]).risk
    0.5
    """
    return Reading(
        profile.risk(probs),
        auxiliary_risk(profile.member_risks, probs),
        bounds(profile.member_risks).floor,
        profile.gain(probs),
        shares(profile, probs),
    )


def shares(profile: RiskProfile, probs: ArrayLike) -> NDArray[np.float64]:
    """α_i g_i [M] with g a subgradient of η at α: how much of the risk comes from drawing member i.

    Where several sets are equally damaging, each counts equally.

    Parameters
    ----------
    profile, probs
        As for `read_landscape`.

    Returns
    -------
    array [M]
        They sum to the risk at α.

    Examples
    --------
    >>> from randens.risk import RiskProfile
    >>> shares(RiskProfile.from_configurations([[(1, 0), (0, 1)]]), [0.75, 0.25]).tolist()
    [0.75, 0.0]
    """
    alpha = as_probs(probs, profile.members)
    values = weigh(profile.masks, alpha)
    lengths = np.diff(profile.starts)
    best = np.repeat(np.maximum.reduceat(values, profile.starts[:-1]), lengths)
    damaging = values >= best - _TIE
    count = np.add.reduceat(damaging.astype(np.float64), profile.starts[:-1])
    mass = damaging * np.repeat(profile.weights / count, lengths)
    return np.asarray(alpha * (mass @ unpack(profile.masks, profile.members)), dtype=np.float64)


def landscape_data(
    profile: RiskProfile,
    *,
    marks: Sequence[tuple[str, ArrayLike]] = (),
    start: ArrayLike | None = None,
    optimum: Sampling | None = None,
) -> dict[str, Any]:
    """Plain values for the page: the profile, points to mark by name, where to start, the optimum with its proof.

    Sets are written as hexadecimal masks (bit i is member i), configurations separated by spaces.
    """
    edges = profile.starts.tolist()
    words = [f"{mask:x}" for mask in profile.masks.tolist()]
    return {
        "members": profile.members,
        "weights": profile.weights.tolist(),
        "sets": " ".join(",".join(words[a:b]) for a, b in pairwise(edges)),
        "candidates": [[str(p) for p in row] for row in candidates(profile.members)]
        if 2 <= profile.members <= MOST_CANDIDATE_MEMBERS
        else [],
        "marks": [{"name": name, "probs": np.asarray(probs).tolist()} for name, probs in marks],
        "start": None if start is None else np.asarray(start).tolist(),
        "optimum": None if optimum is None else optimum_data(profile, optimum),
    }


def optimum_data(profile: RiskProfile, optimum: Sampling) -> dict[str, Any]:
    """The optimum and its certificate: q for rows of the profile's sets, which the page checks by adding."""
    proof = optimum.certificate
    data: dict[str, Any] = {
        "probs": optimum.probs.tolist(),
        "risk": optimum.risk,
        "lower_bound": optimum.lower_bound,
        "rows": None,
        "mass": None,
    }
    if proof is not None:
        if not proof.verify(profile):
            raise ModelError("the certificate of the optimum does not verify; this is a fault of the solver")
        owner = np.repeat(np.arange(len(profile.weights)), np.diff(profile.starts))
        place = {key: row for row, key in enumerate(zip(owner.tolist(), profile.masks.tolist(), strict=True))}
        data["rows"] = [
            place[key] for key in zip(proof.configuration.tolist(), proof.masks.tolist(), strict=True)
        ]
        data["mass"] = proof.mass.tolist()
    return data


def solve(profile: RiskProfile, clean_risks: ArrayLike | None = None) -> Sampling | None:
    """The optimum over all probabilities on this profile, with its certificate.

    None for one member, where there is nothing to choose, and for many, where it may take minutes.
    """
    if not 2 <= profile.members <= MOST_SOLVED:
        return None
    return optimal_sampling(profile, method="exact", clean_risks=clean_risks)
