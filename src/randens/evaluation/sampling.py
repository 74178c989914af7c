"""Choosing the probabilities of a real ensemble: cutting planes whose cuts come from attacks.

The pool W_j of fooled sets known for input j bounds the risk from below, η(α) ≥ mean_j max_{u ∈ W_j} u·α,
whatever the attack. Repeat: take the α that is best against the pool, attack every input there, pool what is
found; until the value at an attacked α is within `tol` of the pool's optimum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens.attacks import Attack, Cost
from randens.attacks.dataset import Knowledge, as_attacks
from randens.core.errors import InputError
from randens.core.progress import Progress, silent
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.labelled import Data, labelled
from randens.risk import (
    ConfidentSampling,
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
from randens.witness.store import WitnessStore

__all__ = ["AttackedSampling", "Sweep", "optimize_sampling"]

_ROUNDING = 1e-9
_LEAST_CROSSED = 20  # inputs; with fewer, five folds say nothing


@dataclass(frozen=True, eq=False)
class Sweep:
    """One round of cutting planes.

    Attributes
    ----------
    probs : float64 [M]
        The probabilities attacked.
    expected, risk : float
        Their risk by the pool before and after it.
    best : float
        The lowest risk at any attacked probabilities.
    lower_bound : float
        Below the risk of any probabilities, by the pool.
    """

    probs: NDArray[np.float64]
    expected: float
    risk: float
    best: float
    lower_bound: float


@dataclass(frozen=True, eq=False)
class AttackedSampling(Sampling):
    """Sampling probabilities chosen under attack.

    Attributes
    ----------
    pool : WitnessPool
        Every witness found; pass it on, and the next call starts where this one ended.
    profile : RiskProfile
        η as the pool has it, which `certificate` verifies against.
    history : tuple of Sweep
        One entry per sweep.
    exact_oracle : bool
        Whether the attack is known to find every fooled set.
    attacks, threat : tuple of str, Threat
        What the inputs were attacked with.
    data, split : str
        What it was chosen on.
    tol : float
        The gap at which to stop.
    cost, now : Cost
        Member passes behind it; those made by this call.
    reused : int
        Stored witnesses it began with.
    crossed : CrossFit or None
        The risk of the rule that chose them, each input judged by probabilities chosen without it, from the same
        witnesses.
    upper, objective, confidence : float or None
        Chosen by a confidence: `upper` bounds the true risk at `confidence`, and gap and lower bound are those of the
        bound that was minimised, `objective`.
    """

    pool: WitnessPool = field(kw_only=True, repr=False)
    profile: RiskProfile = field(kw_only=True, repr=False)
    history: tuple[Sweep, ...] = field(default=(), kw_only=True, repr=False)
    exact_oracle: bool = field(default=False, kw_only=True)
    split: str = field(default="unknown", kw_only=True)
    attacks: tuple[str, ...] = field(default=(), kw_only=True)
    cost: Cost = field(default_factory=Cost, kw_only=True)
    tol: float = field(default=0.0, kw_only=True)
    upper: float | None = field(default=None, kw_only=True)
    objective: float | None = field(default=None, kw_only=True)
    confidence: float | None = field(default=None, kw_only=True)
    crossed: CrossFit | None = field(default=None, kw_only=True, repr=False)
    threat: Threat | None = field(default=None, kw_only=True)
    data: str = field(default="unknown", kw_only=True)
    now: Cost = field(default_factory=Cost, kw_only=True, repr=False)
    reused: int = field(default=0, kw_only=True, repr=False)

    @property
    def gap(self) -> float:
        """How much better other probabilities could still be, by the measure that was minimised."""
        value = self.risk if self.objective is None else self.objective
        return max(0.0, value - self.lower_bound)

    @property
    def converged(self) -> bool:
        """Whether the gap came down to `tol`."""
        return self.gap <= self.tol

    @property
    def claim(self) -> str:
        """What may be said about these probabilities, and no more."""
        against = "" if self.exact_oracle else " against every witness found"
        if self.confidence is not None:
            against = f" by the upper bound at {self.confidence:.0%} confidence{against}"
        left = f"no probabilities are better by more than {self.gap:.2g}"
        reached = (
            f"optimal{against}: {left if self.gap > _ROUNDING else 'no probabilities are better'}"
            if self.converged
            else f"not yet optimal{against}: better by up to {self.gap:.2g} is possible, allow more sweeps"
        )
        oracle = "exact" if self.exact_oracle else "a heuristic: a stronger attack may change both"
        return f"{reached} ({self.sweeps} sweeps of {' and '.join(self.attacks)}; the attack is {oracle})"

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON, without pool and certificate."""
        return {
            **super().to_json(),
            "claim": self.claim,
            "converged": self.converged,
            "exact_oracle": self.exact_oracle,
            "attacks": list(self.attacks),
            "data": self.data,
            "split": self.split,
            "threat": None if self.threat is None else self.threat.to_dict(),
            "tol": self.tol,
            "upper": self.upper,
            "objective": self.objective,
            "confidence": self.confidence,
            "crossed": None if self.crossed is None else self.crossed.to_json(),
            "n": self.pool.n,
            "member_risks": self.profile.member_risks.tolist(),
            "cost": {"forwards": self.cost.forwards, "backwards": self.cost.backwards},
            "history": [{**vars(sweep), "probs": sweep.probs.tolist()} for sweep in self.history],
        }


def optimize_sampling(
    rec: RandomizedEnsemble,
    data: Data,
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
    """Probabilities with the smallest risk under attack, a lower bound on any others, and the pool behind both.

    The first sweep is at the ensemble's own probabilities, or with a pool at its optimum. Between equally good
    probabilities, those with the lower clean risk win, then those that draw fewer members.

    Parameters
    ----------
    rec : RandomizedEnsemble
        The members; its probabilities are attacked first.
    data : pair (x, y), ImageData or loader
        Never test data, which are refused.
    attack : Attack or sequence of Attack
        Several work one after the other in each sweep.
    tol : float
        The gap at which to stop.
    max_sweeps : int
        How often the inputs may be attacked.
    pool : WitnessPool
        Witnesses known already for these very inputs.
    progress : callable, optional
        Called as progress(task, done, total).
    confidence : float
        Choose by an upper confidence bound of the true risk above that of uniform probabilities
        (`randens.risk.confident_sampling`) instead of the risk on these inputs, so that α leaves the uniform point only
        where they are enough to say so.
    folder : path or WitnessStore
        A witness store, as for `evaluate`. Probabilities that these attacks have been asked about before are not
        attacked again, and are the answer where they are good enough.
    verify : bool
        Judge every stored witness again, and not a sample only.

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
    if isinstance(max_sweeps, bool) or not isinstance(max_sweeps, int) or max_sweeps < 1:
        raise InputError(f"max_sweeps is {max_sweeps!r}; it must be a whole number ≥ 1")
    if isinstance(rec, RandomizedEnsemble) and rec.stochastic:
        raise InputError(
            "rec has members that answer at random; use randens.evaluation.optimize_stochastic_sampling for them"
        )
    inputs = labelled(data, rec)
    if inputs.split == "test":
        raise InputError(
            f"data is the test split of {inputs.name}; choose probabilities on its validation split, and "
            "evaluate them on the test split"
        )
    chosen = as_attacks(attack)
    store = folder if isinstance(folder, WitnessStore) or folder is None else WitnessStore(folder)
    report = silent if progress is None else progress
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
    history: list[Sweep] = []
    expected = 0.0

    def attack_at(probs: NDArray[np.float64]) -> RiskProfile:
        nonlocal expected
        expected = known.pool.risk(probs)
        for step in chosen:
            known.attack(step, probs, f"sweep {len(history) + 1}: {step.name}")
        return known.pool.profile()

    def note(probs: NDArray[np.float64], risk: float, best: float, lower_bound: float) -> None:
        history.append(Sweep(probs, expected, risk, best, lower_bound))

    tried = known.attacked_at(chosen)
    found = cutting_planes(
        attack_at,
        alpha,
        tol=tol,
        max_sweeps=max_sweeps,
        clean_risks=clean_risks,
        confidence=confidence,
        watch=note,
        tried=tried,
        profile=known.pool.profile() if tried else None,
    )
    inherited = {f.name: getattr(found, f.name) for f in fields(Sampling)}
    if isinstance(found, ConfidentSampling):
        inherited.update(upper=found.upper, objective=found.objective, confidence=found.confidence)
    profile = known.pool.profile()
    return AttackedSampling(
        **inherited,
        pool=known.pool,
        profile=profile,
        crossed=cross_fit(profile, rule) if len(inputs) >= _LEAST_CROSSED else None,
        history=tuple(history),
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
