"""Choose the probabilities of an ensemble by cutting planes whose cuts come from attacks.

The pool W_j of known fooled sets of input j bounds the risk from below, η(α) ≥ mean_j max_{u ∈ W_j} u·α, for
every attack. Repeat: find the best α for the pool, attack every input there, and pool the witnesses; until
the value at an attacked α is within `tol` of the pool's optimum.

A random member is fooled with a probability: u ∈ [0, 1]^M instead of {0, 1}^M. The risk is still
η(α) = mean_j max_u u·α, convex and piecewise linear, so α solves a linear program over the witnesses.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from randens.attacks import Attack, Cost
from randens.attacks.dataset import Knowledge, as_attacks
from randens.core.errors import InputError, whole
from randens.core.files import picked
from randens.core.progress import Progress, silent
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.argument_checks import DataLike, labelled
from randens.random_model import FrozenDraw
from randens.risk import (
    CrossFit,
    RiskProfile,
    Sampling,
    cross_fit,
    cutting_planes,
    optimal_sampling,
)
from randens.risk.confidence import as_confidence
from randens.threat import Threat
from randens.witness import WitnessPool
from randens.witness.store import WitnessStore, as_store

__all__ = [
    "AttackedSampling",
    "optimize_sampling",
    "share_fooled",
]

_ROUNDING = 1e-9
_LEAST_CROSSED = 20  # inputs; fewer are not enough for five folds
_SELECT = 1_400_000_000  # the first seed of the draws that score perturbations; attacks never use these
_JUDGES = 64
_SCORED = 32


@dataclass(frozen=True, eq=False, kw_only=True)
class AttackedSampling(Sampling):
    """Sampling probabilities chosen under attack.

    Attributes
    ----------
    pool : WitnessPool
        Every witness found; pass it to the next call to start from it.
    profile : RiskProfile
        η as the pool has it, which `certificate` verifies against.
    exact_oracle : bool
        Whether the attack is known to find every fooled set.
    attacks, threat : tuple of str, Threat
        The attacks and the threat.
    data, split : str
        The data on which α was chosen, and their split.
    tol : float
        The gap at which to stop.
    cost, now : Cost
        Member passes behind the result, and those of this call.
    reused : int
        The number of stored witnesses at the start.
    crossed : CrossFit or None
        The cross-fitted risk: each input is evaluated at probabilities chosen without it, on the same
        witnesses.
    """

    pool: WitnessPool = field(repr=False)
    profile: RiskProfile = field(repr=False)
    exact_oracle: bool = False
    split: str = "unknown"
    attacks: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)
    tol: float = 0.0
    crossed: CrossFit | None = field(default=None, repr=False)
    threat: Threat | None = None
    data: str = "unknown"
    now: Cost = field(default_factory=Cost, repr=False)
    reused: int = field(default=0, repr=False)

    @property
    def converged(self) -> bool:
        """Whether the gap is at most `tol`."""
        return self.gap <= self.tol

    @property
    def claim(self) -> str:
        """What may be said about these probabilities, and no more."""
        against = "" if self.exact_oracle else " against every witness found"
        if self.confidence is not None:
            against = f" by the {self.confidence:.0%} bound of the excess over uniform{against}"
        left = f"no probabilities are better by more than {self.gap:.2g}"
        reached = (
            f"optimal{against}: {left if self.gap > _ROUNDING else 'no probabilities are better'}"
            if self.converged
            else f"not yet optimal{against}: better by up to {self.gap:.2g} is possible, allow more sweeps"
        )
        oracle = "exact" if self.exact_oracle else "a heuristic: a stronger attack may change both"
        return f"{reached} ({_sweeps(self.sweeps)} of {' and '.join(self.attacks)}; the attack is {oracle})"

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON, without pool and certificate."""
        names = "claim converged exact_oracle attacks data split threat tol crossed cost"
        return {
            **super().to_json(),
            **picked(self, names),
            "n": self.pool.n,
            "member_risks": self.profile.member_risks.tolist(),
        }


def optimize_sampling(
    rec: RandomizedEnsemble,
    data: DataLike,
    attack: Attack | Sequence[Attack],
    tol: float = 1e-3,
    max_sweeps: int = 20,
    pool: WitnessPool | None = None,
    progress: Progress | None = None,
    *,
    confidence: float | None = None,
    folder: WitnessStore | str | os.PathLike[str] | None = None,
    verify: bool = False,
) -> AttackedSampling:
    """Find the probabilities with the smallest risk under attack, and a lower bound for all others.

    The first sweep is at the ensemble's own probabilities, or with a pool at its optimum. Of equally good
    probabilities, those with the lower clean risk are chosen.

    Parameters
    ----------
    rec : RandomizedEnsemble
        The members; its probabilities are attacked first.
    data : pair (x, y), Data or loader
        Never test data, which are refused.
    attack : Attack or sequence of Attack
        Several work one after the other in each sweep.
    tol : float
        The gap at which to stop.
    max_sweeps : int
        How often the inputs may be attacked.
    pool : WitnessPool
        Known witnesses of these inputs.
    progress : callable, optional
        Called as progress(task, done, total).
    confidence : float
        Choose by an upper confidence bound of the excess over the risk of uniform probabilities
        (`randens.risk.confident_sampling`) instead of the risk on these inputs, so that α differs from
        uniform only if the inputs speak for it.
    folder : path or WitnessStore
        A witness store, as for `evaluate`. Probabilities that these attacks have attacked before are not
        attacked again.
    verify : bool
        Check all stored witnesses, not only a random sample.

    Returns
    -------
    AttackedSampling
        `.probs`, `.risk`, `.lower_bound`, `.gap`, `.certificate`, `.pool`.

    Examples
    --------
    >>> import torch, randens
    >>> rec = randens.RandomizedEnsemble([torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)])
    >>> pgd = randens.attacks.create("pgd", randens.Threat("linf", 0.1), steps=3)
    >>> best = randens.optimize_sampling(rec, (torch.rand(9, 4), torch.arange(9) % 3), pgd)
    >>> best.lower_bound <= best.risk <= best.profile.risk([0.5, 0.5])
    True
    """
    if confidence is not None:
        as_confidence(confidence)
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not 0 <= tol < 1:
        raise InputError(f"tol is {tol!r}; it must be a number from 0 to 1, e.g. 1e-3")
    whole("max_sweeps", max_sweeps)
    if isinstance(rec, RandomizedEnsemble) and rec.stochastic:
        raise InputError(
            "rec has members that answer at random; probabilities are chosen for deterministic members only"
        )
    inputs = _held_out(data, rec)
    chosen = as_attacks(attack)
    store = as_store(folder)
    report = progress or silent
    known = Knowledge(rec, inputs.x, inputs.y, chosen[0].threat, store=store, verify=verify, progress=report)
    alpha, clean_risks = rec.probs.cpu().numpy().copy(), known.clean.mean(axis=0)
    rule = (
        partial(optimal_sampling, method="exact", clean_risks=clean_risks)
        if confidence is None
        else partial(optimal_sampling, confidence=confidence, reference="uniform")
    )
    if pool is not None:
        known.accept(pool)
    if pool is not None or known.reused:
        alpha = rule(known.pool.profile()).probs

    def attack_at(probs: NDArray[np.float64]) -> RiskProfile:
        for step in chosen:
            known.attack(step, probs, f"sweep: {step.name}")
        return known.pool.profile()

    found = cutting_planes(
        attack_at,
        alpha,
        tol=tol,
        max_sweeps=max_sweeps,
        clean_risks=clean_risks,
        confidence=confidence,
    )
    inherited = {f.name: getattr(found, f.name) for f in fields(Sampling)}
    profile = known.pool.profile()
    return AttackedSampling(
        **inherited,
        pool=known.pool,
        profile=profile,
        crossed=cross_fit(profile, rule) if len(inputs) >= _LEAST_CROSSED else None,
        exact_oracle=all(getattr(a, "exact", False) for a in chosen),
        split=inputs.split,
        attacks=tuple(a.name for a in chosen),
        cost=known.cost,
        tol=float(tol),
        threat=chosen[0].threat,
        data=inputs.name,
        now=known.now,
        reused=known.reused,
    )


def _sweeps(number: int) -> str:
    return f"{number} sweep{'s' if number != 1 else ''}"


def share_fooled(
    rec: RandomizedEnsemble, judges: RandomizedEnsemble, x: Tensor, y: Tensor
) -> NDArray[np.float64]:
    """u [n, M]: the share of each member's draws that are wrong; 0 or 1 for members that are not random."""
    errors = judges.errors(x.to(judges.device), y).cpu().numpy()
    owners = {id(member): index for index, member in enumerate(rec.members)}
    columns = [owners[id(m.model if isinstance(m, FrozenDraw) else m)] for m in judges.members]
    shares = np.zeros((len(x), len(rec)))
    for column, owner in enumerate(columns):
        shares[:, owner] += errors[:, column] / columns.count(owner)
    return shares


def _held_out(data: DataLike, rec: RandomizedEnsemble) -> Data:
    """The inputs to choose probabilities on; test data are refused."""
    inputs = labelled(data, rec)
    if inputs.split == "test":
        raise InputError(
            f"data is the test split of {inputs.name}; choose probabilities on its validation split, and "
            "evaluate them on the test split"
        )
    return inputs
