"""The risk landscape η(α): the data for the page, and the optimum.

The page evaluates η in float64 from the grouped configurations, so its size depends on the number of
different configurations and not on the number of inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from randens.core.errors import ModelError
from randens.risk import RiskProfile, Sampling, candidates, optimal_sampling
from randens.risk.theorems import MOST_CANDIDATE_MEMBERS

__all__ = ["MOST_SOLVED", "landscape_data", "solve"]

MOST_SOLVED = 16
"""Up to so many members a report finds the optimum itself."""


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
        "optimum": None if optimum is None else _optimum(profile, optimum),
    }


def _optimum(profile: RiskProfile, optimum: Sampling) -> dict[str, Any]:
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
