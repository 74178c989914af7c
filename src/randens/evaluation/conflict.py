"""Joint reach: how far the members' gradients conflict for one perturbation.

Linearize the margin of member i at x: m_i + w_i·δ. One perturbation fools every member of a set T iff
Σ_i λ_i m_i ≤ ε ‖Σ_i λ_i w_i‖_q for all λ in the simplex over T. With rows normalized to ‖w_i‖_q = 1 the right side
is ε·reach(λ), and reach(λ) = ‖Σ_i λ_i w_i/‖w_i‖_q‖_q ≤ 1 is the share of ε left to one perturbation that must
fool all members. 1: no conflict. About 1/√M: independent dense gradients. In linf members with disjoint
supports do not conflict at all, whatever their cosine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randens.attacks import Cost
from randens.attacks.losses import margins
from randens.core.errors import RandensError
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, frozen, to_layout
from randens.evaluation.tables import About, Result, Table, new_axes, saved
from randens.threat import Threat

__all__ = ["Conflict", "conflict_of", "joint_reach"]

_CHUNK = 256  # inputs per pass: M gradients of each are in memory at once


@dataclass(frozen=True, eq=False, repr=False)
class Conflict(Result):
    """How far the members' gradients disagree, at λ uniform, without the box of valid inputs.

    reach: the mean over inputs of ‖Σ_i w_i/‖w_i‖_q‖_q / M, in [0, 1]; 1 means that one perturbation moves all
    margins as much as each alone. pairs: the same for every two members, float64 [M, M], with ones on the
    diagonal. unusable: float64 [M], the share of inputs at which a member's gradient is zero or not finite;
    these inputs are left out of every mean in which the member takes part. A mean over no input is NaN.
    points: float64 [n], the reach at each input, NaN where it was left out. cost: member passes.
    """

    kind: ClassVar[str] = "conflict"

    reach: float
    pairs: NDArray[np.float64]
    unusable: NDArray[np.float64]
    points: NDArray[np.float64]
    cost: Cost = field(default_factory=Cost)
    about: About | None = None  # type: ignore[assignment]
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """One line for the user."""
        members = len(self.unusable)
        if members == 1:
            return "One member: there is no other member to conflict with (reach 1)."
        if np.isnan(self.reach):
            return "The members' reach is unknown: at no input are all gradients usable."
        said = (
            f"One perturbation that must fool all {members} members keeps {self.reach:.1%} of ε (joint reach"
        )
        if members > 2:
            table = self.pairs[np.triu_indices(members, 1)]
            said += f"; pairs {np.nanmin(table):.3f} to {np.nanmax(table):.3f}"
        return f"{said}; 1 is no conflict, {members**-0.5:.3f} independent gradients)."

    def sentences(self) -> list[str]:
        """The one line."""
        return [self.sentence]

    def table(self) -> Table:
        """The reach of every two members."""
        members = range(len(self.unusable))
        lines = [[f"member {i}", *(f"{self.pairs[i, j]:.3f}" for j in members)] for i in members]
        records = [{"i": i, "j": j, "reach": self.pairs[i, j]} for i in members for j in members]
        return Table(["reach", *(f"member {j}" for j in members)], lines, records)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the reach of every two members."""
        figure, axes = new_axes("member", "member")
        figure.colorbar(axes.imshow(self.pairs, vmin=0, vmax=1), label="reach")
        return saved(figure, path)

    def content(self) -> dict[str, Any]:
        """The means; one over no input is null."""
        reach, *pairs = (
            [None if np.isnan(value) else value for value in row]
            for row in [[self.reach], *self.pairs.tolist()]
        )
        return {"reach": reach[0], "pairs": pairs, "unusable": self.unusable, "inputs": len(self.points)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Conflict:
        """Inverse of `content`; the reach of single inputs is not kept and is NaN."""
        # NumPy reads null, which is None, as NaN.
        reach, pairs, unusable = (
            np.array(value[key], dtype=np.float64) for key in ("reach", "pairs", "unusable")
        )
        return Conflict(float(reach), pairs, unusable, np.full(value["inputs"], np.nan))


def conflict_of(rec: RandomizedEnsemble, data: Data, threat: Threat) -> Conflict | None:
    """Measure the joint reach; None where a member refuses gradients or the threat has no dual norm."""
    if threat.norm not in ("linf", "l2", "l1"):  # a finite set has no dual norm
        return None
    members = len(rec)
    reaches, sums = [], np.zeros((members, members))
    counts, unusable = np.zeros((members, members)), np.zeros(members)
    for x, y in zip(torch.split(data.x, _CHUNK), torch.split(data.y, _CHUNK), strict=True):
        try:
            gradients, usable = _gradients(rec, x.to(rec.device), y.to(rec.device))
        except RandensError:  # an ONNX file gives no gradients, and says so
            return None
        together = torch.where(usable.all(dim=0), joint_reach(gradients, threat), torch.nan)
        reaches.append(together.cpu().numpy())
        unusable += (~usable).sum(dim=1).cpu().numpy()
        for i in range(members):
            for j in range(i, members):
                both = usable[i] & usable[j]
                value = joint_reach(gradients[[i, j]], threat)[both].sum() if i != j else both.sum()
                sums[i, j] += float(value)
                counts[i, j] += int(both.sum())
    sums, counts = (table + np.triu(table, 1).T for table in (sums, counts))
    points = np.concatenate(reaches)
    known = points[~np.isnan(points)]
    passes = len(data) * len(rec.networks)
    return Conflict(
        float(known.mean()) if len(known) else float("nan"),
        np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0),
        unusable / len(data),
        points,
        Cost(passes, passes),
    )


def joint_reach(gradients: Tensor, threat: Threat) -> Tensor:
    """‖Σ_i w_i/‖w_i‖_q‖_q / M at every input, [n]; gradients [M, n, ...]. Differentiable.

    A zero gradient counts as a vector of length 0. Leave such inputs out, because constant members would look
    diverse.
    """
    flat = gradients.flatten(2)
    norms = torch.linalg.vector_norm(flat, threat.q, dim=2, keepdim=True)
    unit = flat / torch.where(norms > 0, norms, torch.ones_like(norms))
    reach: Tensor = torch.linalg.vector_norm(unit.mean(dim=0), threat.q, dim=1)
    return reach


def _gradients(rec: RandomizedEnsemble, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Margin gradients in float64 [M, n, d], zero where they cannot be used, and where they can [M, n]."""
    rows = []
    with frozen(rec), torch.enable_grad():
        for member in rec.members:
            inputs = to_layout(x).detach().requires_grad_(True)
            # A copy, because a member may write into what it is given.
            value = margins(member(inputs.clone()).unsqueeze(0), y).sum()
            found = torch.autograd.grad(value, inputs, allow_unused=True)[0] if value.requires_grad else None
            rows.append(torch.zeros_like(inputs) if found is None else found)
    flat = torch.stack([row.detach().flatten(1).cpu() for row in rows]).double()
    usable = torch.isfinite(flat).all(dim=2) & (flat != 0).any(dim=2)
    return torch.where(usable.unsqueeze(2), flat, torch.zeros_like(flat)), usable
