"""Joint reach: how far the members' gradients conflict for one perturbation.

Linearize the margin of member i at x: m_i + w_i·δ. One perturbation fools every member of a set T iff
Σ_i λ_i m_i ≤ ε ‖Σ_i λ_i w_i‖_q for all λ in the simplex over T. With rows normalized to ‖w_i‖_q = 1 the right side
is ε·reach(λ), and reach(λ) = ‖Σ_i λ_i w_i/‖w_i‖_q‖_q ≤ 1 is the share of ε left to one perturbation that must
fool all members. 1: no conflict. About 1/√M: independent dense gradients. In linf members with disjoint
supports do not conflict at all, whatever their cosine.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randens.attacks import Cost
from randens.attacks.losses import margins
from randens.core.errors import InputError, RandensError
from randens.core.files import plain
from randens.ensemble import RandomizedEnsemble, frozen, to_layout
from randens.evaluation.inputs import Case, prepare
from randens.evaluation.loop import Witnesses
from randens.evaluation.tables import About, Result, Table, new_axes, saved
from randens.threat import Threat

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from randens.evaluation.inputs import Part

_CHUNK = 256  # inputs per pass: M gradients of each are in memory at once


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Conflict(Result):
    """How far the members' gradients disagree, at λ uniform, without the box of valid inputs.

    reach: the mean over inputs of ‖Σ_i w_i/‖w_i‖_q‖_q / M, in [0, 1]; 1 means that one perturbation moves all
    margins as much as each alone. pairs: the same for every two members, float64 [M, M], with ones on the
    diagonal. unusable: float64 [M], the share of inputs at which a member's gradient is zero or not finite;
    these inputs are left out of every mean in which the member takes part. A mean over no input is NaN.
    points: float64 [n], the reach at each input, NaN where it was left out.
    """

    kind: ClassVar[str] = "conflict"

    reach: float
    pairs: NDArray[np.float64]
    unusable: NDArray[np.float64]
    points: NDArray[np.float64]

    @property
    def sentence(self) -> str:
        """One line for the user."""
        members = len(self.unusable)
        if members == 1:
            return "One member: there is no other member to conflict with (reach 1)."
        if np.isnan(self.reach):
            return "The members' reach is unknown: at no input are all gradients usable."
        table = self.pairs[np.triu_indices(members, 1)]
        pairs = f"; pairs {np.nanmin(table):.3f} to {np.nanmax(table):.3f}" if members > 2 else ""
        return (
            f"One perturbation that must fool all {members} members keeps {self.reach:.1%} of ε (joint reach{pairs}; "
            f"1 is no conflict, {members**-0.5:.3f} independent gradients)."
        )

    def sentences(self) -> list[str]:
        return [self.sentence]

    def table(self) -> Table:
        members = range(len(self.unusable))
        lines = [[f"member {i}", *(f"{self.pairs[i, j]:.3f}" for j in members)] for i in members]
        records = [{"i": i, "j": j, "reach": self.pairs[i, j]} for i in members for j in members]
        return Table(["reach", *(f"member {j}" for j in members)], lines, records)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        figure, axes = new_axes("member", "member")
        figure.colorbar(axes.imshow(self.pairs, vmin=0, vmax=1), label="reach")
        return saved(figure, path)

    def content(self) -> dict[str, Any]:
        rows = [[self.reach], *self.pairs.tolist()]
        reach, *pairs = ([None if np.isnan(value) else value for value in row] for row in rows)
        return {"reach": reach[0], "pairs": pairs, "unusable": self.unusable, "inputs": len(self.points)}

    @staticmethod
    def from_json(value: Mapping[str, Any], about: About) -> Conflict:
        """Inverse of `content`; the reach of single inputs is not kept and is NaN."""
        # NumPy reads null, which is None, as NaN.
        reach, pairs, unusable = (np.array(value[key], np.float64) for key in ("reach", "pairs", "unusable"))
        points = np.full(value["inputs"], np.nan)
        return Conflict(about=about, reach=float(reach), pairs=pairs, unusable=unusable, points=points)


def conflict(
    model: Any, data: Any = None, threat: Threat | None = None, *, eps: Any = None, **settings: Unpack[Part]
) -> Conflict:
    """Measure the joint reach of the members' margin gradients: the share of ε left to one perturbation.

    Parameters
    ----------
    model, data
        As for `randens.evaluate`; the probabilities do not matter.
    threat, eps : Threat, float, optional
        Set the norm; the radius does not matter. None: the ensemble's own.
    **settings
        norm, device, preprocessing, split, limit as for `randens.evaluate`.

    Returns
    -------
    Conflict
        `.reach`, `.pairs` [M, M], `.unusable` [M]. One forward and one backward pass per member and input.

    Examples
    --------
    >>> from randens import RandomizedEnsemble, Threat, conflict, models
    >>> rec = RandomizedEnsemble([models.create("linear", classes=10, input_shape=(1, 8, 8), seed=0)] * 2)
    >>> round(conflict(rec, "digits", Threat("linf", 0.1), limit=20).reach, 6)
    1.0
    """
    with prepare(model, data, "fgsm", threat=threat, eps=eps, **settings) as case:
        case.need_members("the reach is defined")
        found = _measured(case)
        if found is None:
            raise InputError(
                f"threat is {case.threat.norm}, or a member gives no gradients; the reach needs gradients, and a ball "
                "in linf, l2 or l1"
            )
        return found


def known_conflict(known: Witnesses, case: Case) -> Conflict | None:
    """The joint reach of several members, measured once for a store; None where there is none."""
    if len(known.rec) == 1:
        return None
    noted = known.note("conflict", known.threat.norm)
    if noted is not None:
        return Conflict.from_json(noted, case.about)
    found = _measured(case)
    if found is not None:
        known.now += found.cost
        known.add_note(plain(found.content()), "conflict", known.threat.norm)
    return found


def _measured(case: Case) -> Conflict | None:
    """The joint reach; None where a member refuses gradients or the threat has no dual norm."""
    rec, data, threat, members = case.rec, case.data, case.threat, len(case.rec)
    if threat.norm not in ("linf", "l2", "l1"):  # a finite set has no dual norm
        return None
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
                sums[i, j] = sums[j, i] = sums[i, j] + float(value)
                counts[i, j] = counts[j, i] = counts[i, j] + int(both.sum())
    points = np.concatenate(reaches)
    known = points[~np.isnan(points)]
    passes = len(data) * len(rec.networks)
    return Conflict(
        about=dataclasses.replace(case.about, attacks=()),
        notes=case.notes,
        reach=float(known.mean()) if len(known) else float("nan"),
        pairs=np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0),
        unusable=unusable / len(data),
        points=points,
        cost=Cost(passes, passes),
        now=Cost(passes, passes),
    )


def joint_reach(gradients: Tensor, threat: Threat) -> Tensor:
    """‖Σ_i w_i/‖w_i‖_q‖_q / M at every input, [n]; gradients [M, n, ...]. A zero gradient counts as a zero vector."""
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
