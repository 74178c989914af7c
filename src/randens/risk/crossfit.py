"""Estimate the risk of a rule for choosing α on inputs that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from randens.core.errors import InputError
from randens.core.files import Plain
from randens.risk.certificate import Sampling
from randens.risk.checks import as_count, frozen
from randens.risk.profile import RiskProfile

__all__ = ["CrossFit", "cross_fit"]

Rule = Callable[[RiskProfile], Sampling]
"""Chooses probabilities from a profile."""


@dataclass(frozen=True, eq=False)
class CrossFit(Plain):
    """The risk of a rule; each input is evaluated at probabilities that were chosen without it.

    risk: the mean over the inputs. deviation: its standard error. probs: α chosen without each fold, [folds, M].
    """

    risk: float
    deviation: float
    probs: NDArray[np.float64]


def cross_fit(profile: RiskProfile, rule: Rule, *, folds: int = 5, seed: int = 0) -> CrossFit:
    """Split the inputs into folds, choose α without each fold, and evaluate it on the fold.

    The estimate has no optimism from the choice. It is the risk of the rule with (folds − 1)/folds of the
    inputs.

    Parameters
    ----------
    profile : RiskProfile
        η on n inputs; its `size` must be known and at least `folds`.
    rule : callable
        Chooses probabilities, e.g. ``optimal_sampling`` or a ``partial`` of it.
    folds, seed : int
        The number of folds, and the seed of the split.

    Returns
    -------
    CrossFit
        `.risk` with `.deviation`, and the probabilities chosen without each fold.

    Examples
    --------
    >>> from randens.risk import optimal_sampling
    >>> profile = RiskProfile.from_configurations([[(1, 0), (0, 1)]] * 20)
    >>> cross_fit(profile, optimal_sampling).risk
    0.5
    """
    folds = as_count("folds", folds, minimum=2)
    if profile.size is None or profile.size < folds:
        raise InputError(f"the profile's size is {profile.size}; cross-fitting needs at least {folds} inputs")
    counts = np.rint(profile.weights * profile.size).astype(np.int64)
    if np.abs(counts - profile.weights * profile.size).max() > 1e-6:
        raise InputError("the profile's weights are not counts of inputs; cross-fitting needs single inputs")
    owner = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    chosen, risks = [], []
    for fold in range(folds):
        held = owner[fold::folds]
        left = counts - np.bincount(held, minlength=len(counts))
        rest = int(left.sum())
        others = RiskProfile.from_configurations(
            profile.configurations, left / rest, members=profile.members, size=rest
        )
        probs = rule(others).probs
        chosen.append(probs)
        risks.append(profile.configuration_risks(probs)[held])
    values = np.concatenate(risks)
    return CrossFit(
        float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), frozen(np.array(chosen))
    )
