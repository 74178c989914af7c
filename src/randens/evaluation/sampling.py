"""Choose the probabilities of an ensemble by cutting planes whose cuts come from attacks.

The pool W_j of known fooled sets of input j bounds the risk from below, η(α) ≥ mean_j max_{u ∈ W_j} u·α, for
every attack. Repeat: find the best α for the pool, attack every input there, and pool the witnesses; until
the value at an attacked α is within `tol` of the pool's optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from randens.attacks.base import AttackLike
from randens.core.errors import InputError
from randens.evaluation.evaluate import Witnesses
from randens.evaluation.inputs import Settings, chosen_split, prepare
from randens.evaluation.tables import Result, Table, bars, percent
from randens.risk import RiskProfile, Sampling, cutting_planes
from randens.risk.intervals import Estimate
from randens.witness import WitnessPool

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AttackedSampling(Result, Sampling):
    """Sampling probabilities chosen under attack: a `randens.risk.Sampling`, and what it rests on.

    profile, pool: η as the pool of witnesses has it, which `certificate` verifies against. tol: the gap at which to
    stop. exact_oracle: whether the attack is known to find every fooled set.
    """

    kind: ClassVar[str] = "sampling"
    in_memory: ClassVar[str] = "now pool certificate"
    derived: ClassVar[str] = "converged claim gap support member_risks"

    profile: RiskProfile
    pool: WitnessPool
    tol: float
    exact_oracle: bool = False

    @property
    def converged(self) -> bool:
        """Whether the gap is at most `tol`."""
        return self.gap <= self.tol

    @property
    def member_risks(self) -> NDArray[np.float64]:
        """η_i [M]."""
        return self.profile.member_risks

    @property
    def claim(self) -> str:
        """What may be said about these probabilities, and no more."""
        against = "" if self.exact_oracle else " against every witness found"
        what = "risk" if self.attempts == 1 else f"risk after {self.attempts:g} attempts"
        if self.confidence is not None:
            what = f"upper bound of the excess over uniform at {self.confidence:.0%} confidence"
        left = f"others by at most {self.gap:.2g}"
        if self.gap <= _ROUNDING:
            left = "no others have a smaller one"
        elif not self.converged:
            left = f"not settled: others may be better by up to {self.gap:.2g}, allow more sweeps"
        oracle = "exact" if self.exact_oracle else "a heuristic: a stronger attack may change both"
        return f"smallest {what}{against}: {left} (sweeps: {self.sweeps}; the attack is {oracle})"

    def table(self) -> Table:
        rows = list(enumerate(zip(self.probs.tolist(), self.member_risks.tolist(), strict=True)))
        lines = [(f"member {i}", f"{p:.4f}", percent(1 - risk)) for i, (p, risk) in rows]
        records = [{"member": i, "prob": p, "risk_alone": risk} for i, (p, risk) in rows]
        return Table(("", "probability", "robust alone"), lines, records)

    def figure(self) -> Any:
        rows = [(f"member {i}", Estimate(p, p, p)) for i, p in enumerate(self.probs.tolist())]
        return bars(rows, "sampling probability")

    def sentences(self) -> list[str]:
        said = [f"Risk {self.risk:.6f}; these probabilities have the {self.claim}."]
        if self.upper is not None:
            new = f"on new inputs at most {self.upper:.4f}, {self.confidence:.0%} confidence"
            said.append(f"Risk against the perturbations found: {new}.")
        return said


def optimize_sampling(
    model: Any,
    data: Any = None,
    attack: AttackLike = None,
    *,
    tol: float = 1e-3,
    max_sweeps: int = 20,
    attempts: float = 1,
    confidence: float | None = None,
    **settings: Unpack[Settings],
) -> AttackedSampling:
    """Find the probabilities with the smallest risk under attack, and a lower bound for all others.

    The first sweep is at the ensemble's own probabilities. Of equally good probabilities, those with the lower
    clean risk are chosen.

    Parameters
    ----------
    model, data, attack
        As for `randens.evaluate`. Test data are refused; of named data the validation split is the default.
    tol : float
        The gap at which to stop.
    max_sweeps : int
        How often the inputs may be attacked.
    attempts : int or inf
        Minimize the risk after so many attempts, each with a fresh draw.
    confidence : float, optional
        Choose by an upper confidence bound of the risk above that of uniform probabilities instead of the risk on
        these inputs, so that α differs from uniform only if the inputs give enough evidence.
    **settings
        eps, norm, threat, device, preprocessing, probs, split, limit, seed, folder, progress as for `randens.evaluate`.

    Returns
    -------
    AttackedSampling
        `.probs`, `.risk`, `.lower_bound`, `.gap`, `.certificate`, `.pool`.

    Examples
    --------
    >>> import torch, randens
    >>> rec = randens.RandomizedEnsemble([torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)])
    >>> data = torch.rand(9, 4), torch.arange(9) % 3
    >>> best = randens.optimize_sampling(rec, data, "pgd", eps=0.1)
    >>> best.lower_bound <= best.risk <= best.profile.risk([0.5, 0.5])
    True
    """
    with prepare(model, data, attack, **chosen_split(data, settings)) as case:
        rec = case.rec
        case.need_members("probabilities are chosen")
        if case.data.split == "test":
            raise InputError(
                f"data is the test split of {case.data.name}; choose probabilities on its validation split, and "
                "evaluate them on the test split"
            )
        known = Witnesses(case)
        # The probabilities that an earlier call attacked, in order: with them it is continued exactly.
        about = ("sampling", *map(repr, case.attacks))
        attacked: Any = known.note(lambda a: np.array(a, float).reshape(-1, len(rec)).tolist(), *about) or []
        tried, start = attacked[:-1], attacked[-1] if attacked else rec.probs.tolist()

        def attack_at(probs: NDArray[np.float64]) -> RiskProfile:
            if [probs.tolist()] != attacked[-1:]:
                attacked.append(probs.tolist())
                known.add_note(attacked, *about)
            for one in case.attacks:
                known.attack(one, probs, f"{one.name} at α = {np.round(probs, 3).tolist()}")
            return known.pool.profile()

        options: Any = {"tol": tol, "max_sweeps": max_sweeps, "attempts": attempts, "confidence": confidence}
        found = cutting_planes(attack_at, start, tried=tried, clean_risks=known.clean.mean(axis=0), **options)
        return AttackedSampling(
            **vars(found),
            **known.head(),
            profile=known.pool.profile(),
            pool=known.pool,
            tol=float(tol),
            exact_oracle=all(one.exact for one in case.attacks),
        )
