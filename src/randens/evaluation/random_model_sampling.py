"""Choosing the probabilities of an ensemble whose members answer at random.

A perturbation no longer fools a member or not, but with a probability: u ∈ [0, 1]^M instead of {0, 1}^M. The risk is
still η(α) = mean_j max_u u·α, convex and piecewise linear, so α is a linear program over what the attacks found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

from randens.attacks import Attack, Cost
from randens.core.errors import InputError, ModelError
from randens.core.progress import Progress, silent
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.draw_scores import SCORE, score
from randens.evaluation.intervals import Estimate
from randens.evaluation.labelled import Data, labelled
from randens.random_model import FrozenDraw, expanded, is_random
from randens.risk import Sampling

__all__ = ["StochasticSampling", "optimize_stochastic_sampling", "share_fooled"]

_SELECT = 1_400_000_000  # the first seed of the draws that measure what was found; attacks never see these
_JUDGES = 64
_SCORED = 32


@dataclass(frozen=True, eq=False)
class StochasticSampling(Sampling):
    """Probabilities for members that answer at random.

    Attributes
    ----------
    risk, lower_bound : float
        On the draws that measured the perturbations found.
    accuracy, uniform : Estimate
        Expected accuracy at the chosen and at equal probabilities, on fresh draws and the perturbations that are worst
        there; these inputs are the population.
    split : str
        The data it was chosen on.
    attacks, tol : tuple of str, float
        What the draws were attacked with, and the gap at which to stop.
    cost : Cost
        Member passes behind it.
    """

    accuracy: Estimate = field(kw_only=True)
    uniform: Estimate = field(kw_only=True)
    split: str = field(default="unknown", kw_only=True)
    attacks: tuple[str, ...] = field(default=(), kw_only=True)
    tol: float = field(default=0.0, kw_only=True)
    cost: Cost = field(default_factory=Cost, kw_only=True)

    @property
    def claim(self) -> str:
        """What may be said about these probabilities, and no more."""
        return (
            f"no probabilities are better by more than {self.gap:.2g} against every perturbation found, on the draws "
            f"that measured them ({self.sweeps} sweeps of {' and '.join(self.attacks)}; a stronger attack may change "
            "both)"
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {
            **super().to_json(),
            "claim": self.claim,
            "accuracy": self.accuracy.to_json(),
            "uniform": self.uniform.to_json(),
            "attacks": list(self.attacks),
            "split": self.split,
            "tol": self.tol,
            "cost": {"forwards": self.cost.forwards, "backwards": self.cost.backwards},
        }


def optimize_stochastic_sampling(
    rec: RandomizedEnsemble,
    data: Data,
    attack: Attack | Sequence[Attack],
    tol: float = 1e-3,
    max_sweeps: int = 10,
    progress: Progress | None = None,
) -> StochasticSampling:
    """Probabilities with the smallest risk under attack for an ensemble with random members.

    Cutting planes: attack frozen draws at α, measure what was found on draws that no attack sees, take the α that is
    best against everything found, and so on until the gap is at most `tol`.

    Parameters
    ----------
    rec : RandomizedEnsemble
        Some of its members answer at random.
    data : pair (x, y), ImageData or loader
        Never test data, which are refused.
    attack : Attack or sequence of Attack
        Several work one after the other in each sweep.
    tol : float
        The gap at which to stop.
    max_sweeps : int
        How often the inputs may be attacked.
    progress : callable, optional
        Called as progress(task, done, total).

    Returns
    -------
    StochasticSampling
        `.probs`, `.risk`, `.lower_bound`, and `.accuracy` on fresh draws.

    Examples
    --------
    >>> import torch, randens
    >>> noisy = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    >>> model = randens.RandomizedModel(noisy, draws=4, active=torch.nn.Dropout)
    >>> rec = randens.RandomizedEnsemble([model, torch.nn.Linear(4, 3)])
    >>> pgd = randens.attacks.create("pgd", randens.Threat("linf", 0.1), steps=2)
    >>> best = optimize_stochastic_sampling(rec, (torch.rand(6, 4), torch.arange(6) % 3), pgd, max_sweeps=2)
    >>> best.lower_bound <= best.risk
    True
    """
    if not isinstance(rec, RandomizedEnsemble) or not is_random(rec):
        raise InputError("rec has no random members; use randens.optimize_sampling")
    inputs = labelled(data, expanded(rec, 2))
    if inputs.split == "test":
        raise InputError(
            f"data is the test split of {inputs.name}; choose probabilities on its validation split, and evaluate them "
            "on the test split"
        )
    chosen = tuple(attack) if isinstance(attack, (list, tuple)) else (attack,)
    if not chosen or not all(isinstance(a, Attack) for a in chosen):
        raise InputError(f"attack is {attack!r}; give one made by randens.attacks.create, or a list of them")
    report = silent if progress is None else progress
    judges = expanded(rec, _JUDGES, _SELECT)
    y = inputs.y.to(judges.device)
    points: list[Tensor] = [inputs.x]
    shares = [share_fooled(rec, judges, inputs.x, y)]
    cost = Cost(forwards=len(inputs) * len(judges))
    alpha = rec.probs.cpu().numpy().copy()
    attacked: list[NDArray[np.float64]] = []
    while True:
        report("sampling of random members", len(attacked), max_sweeps)
        for one in chosen:
            found = one(expanded(rec.with_probs(alpha)), inputs.x, inputs.y)
            points.append(found.x_adv)
            shares.append(share_fooled(rec, judges, found.x_adv, y))
            cost = cost + found.cost + Cost(forwards=len(inputs) * len(judges))
        attacked.append(alpha)
        table = np.stack(shares)
        best, bound = _lowest(table)
        risks = [_risk(table, point) for point in attacked]
        lowest = int(np.argmin(risks))
        settled = any(np.abs(best - point).max() < 1e-9 for point in attacked)
        if risks[lowest] - bound <= tol or settled or len(attacked) >= max_sweeps:
            break
        alpha = best
    report("sampling of random members", max_sweeps, max_sweeps)
    equal = np.full(len(rec), 1 / len(rec))
    return StochasticSampling(
        probs=attacked[lowest],
        risk=risks[lowest],
        lower_bound=min(bound, risks[lowest]),
        method="cutting-planes",
        iterations=len(attacked),
        sweeps=len(attacked),
        accuracy=_fresh(rec, attacked[lowest], table, points, inputs.y),
        uniform=_fresh(rec, equal, table, points, inputs.y),
        split=inputs.split,
        attacks=tuple(a.name for a in chosen),
        tol=float(tol),
        cost=cost,
    )


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


def _risk(table: NDArray[np.float64], probs: NDArray[np.float64]) -> float:
    """η(α) over perturbations table [W, n, M]."""
    return float((table @ probs).max(axis=0).mean())


def _lowest(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """The α [M] with the lowest mean_j max_w u_wj·α, and that value: a linear program over (α, t [n])."""
    count, n, members = table.shape
    rows = np.arange(count * n)
    flat = table.reshape(-1, members)
    cuts = coo_array(
        (
            np.concatenate([flat.ravel(), -np.ones(count * n)]),
            (
                np.concatenate([np.repeat(rows, members), rows]),
                np.concatenate(
                    [np.tile(np.arange(members), count * n), members + np.tile(np.arange(n), count)]
                ),
            ),
        ),
        shape=(count * n, members + n),
    )
    result = linprog(
        np.concatenate([np.zeros(members), np.full(n, 1 / n)]),
        A_ub=cuts.tocsr(),
        b_ub=np.zeros(count * n),
        A_eq=np.concatenate([np.ones(members), np.zeros(n)])[None, :],
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
    )
    if result.status != 0:
        raise ModelError(f"the linear program for {members} random members failed: {result.message}")
    probs = np.clip(result.x[:members], 0.0, None)
    return probs / probs.sum(), float(result.fun)


def _fresh(
    rec: RandomizedEnsemble,
    probs: NDArray[np.float64],
    table: NDArray[np.float64],
    points: Sequence[Tensor],
    y: Tensor,
) -> Estimate:
    """Expected accuracy at α on fresh draws, each input at the perturbation that the judges find worst there."""
    worst = np.argmax(table @ probs, axis=0)
    x_adv = points[0].clone()
    for row, number in enumerate(worst.tolist()):
        x_adv[row] = points[number][row]
    return score(rec.with_probs(probs), x_adv, y, _SCORED, seed=SCORE + 90_000_000).over_draws(0.95)
